package testkit

import "golang.org/x/sys/unix"

// HoldSignals keeps two signals from the calling thread, which has to be the test's own: those that
// Go's runtime sends its threads (SIGURG), and those of ended children (SIGCHLD). They would end a
// wait on a socket that has a limit of time, in spite of SA_RESTART (signal(7)). Restore takes that
// back, for a thread that goes on.
func HoldSignals(t TB) (restore func()) {
	t.Helper()
	var held, before unix.Sigset_t
	for _, s := range []unix.Signal{unix.SIGURG, unix.SIGCHLD} {
		held.Val[0] |= 1 << (s - 1)
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &held, &before); err != nil {
		t.Fatalf("hold signals: %v", err)
	}
	return func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }
}
