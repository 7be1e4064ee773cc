package poll

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHungUp(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	if HungUp(ours) {
		t.Error("hung up while both are open")
	}
	if _, err := theirs.Write([]byte("unread")); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if !HungUp(ours) {
		t.Error("not hung up with the other one closed")
	}
	ours.Close()
	if !HungUp(ours) {
		t.Error("not hung up when closed")
	}
}
