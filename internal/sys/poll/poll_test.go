package poll

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPoll(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	check := func(when string, readable, hungUp bool) {
		t.Helper()
		if Readable(ours) != readable || HungUp(ours) != hungUp {
			t.Errorf("%s: readable %t, hung up %t", when, Readable(ours), HungUp(ours))
		}
	}
	check("open", false, false)
	if _, err := theirs.Write([]byte("unread")); err != nil {
		t.Fatal(err)
	}
	check("written", true, false)
	theirs.Close()
	check("the other one is closed", true, true)
	ours.Close()
	check("closed", false, true)
}
