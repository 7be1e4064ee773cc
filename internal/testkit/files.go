package testkit

import "golang.org/x/sys/unix"

// NextFile returns the number that the next descriptor of this process gets.
func NextFile(t TB) int {
	t.Helper()
	next, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("%v", err)
	}
	unix.Close(next)
	return next
}

// WithFiles calls fn while this process can open only so many more files.
func WithFiles(t TB, room int, fn func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatalf("%v", err)
	}
	few := unix.Rlimit{Cur: uint64(NextFile(t) + room), Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatalf("%v", err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatalf("%v", err)
		}
	}()
	fn()
}
