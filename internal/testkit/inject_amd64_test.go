package testkit

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// A call is made also where the process has not yet begun anew the call that was interrupted by the
// one before.
func TestInjectAtOnce(t *testing.T) {
	c := exec.Command("cat")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	// execve(2) reports itself to who traces: it is over when the program answers.
	if _, err := in.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		if errno := Inject(t, c.Process.Pid, unix.SYS_CLOSE, 1<<20); errno != unix.EBADF {
			t.Fatalf("call %d: %v, want %v", i, errno, unix.EBADF)
		}
	}
}
