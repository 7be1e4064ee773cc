package pidfd

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Of many children, each is reaped when it has ended, and no goroutine waits for it.
func TestOnEnd(t *testing.T) {
	testkit.CheckLeaks(t)
	before := runtime.NumGoroutine()
	type ended struct {
		i   int
		err error
	}
	reaped := make(chan ended, 20)
	var hold []io.Closer
	for i := range 20 {
		cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("read line; exit %d", i))
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		hold = append(hold, stdin)
		OnEnd(cmd.Process.Pid, func() { reaped <- ended{i, cmd.Wait()} })
	}
	if n := runtime.NumGoroutine() - before; n > 1 {
		t.Errorf("%d goroutines for 20 processes", n)
	}
	for i, stdin := range hold {
		if len(reaped) > 0 {
			t.Fatalf("process %d was reaped before its end", (<-reaped).i)
		}
		stdin.Close()
		select {
		case e := <-reaped:
			code := 0
			if exit := (*exec.ExitError)(nil); errors.As(e.err, &exit) {
				code = exit.ExitCode()
			}
			if e.i != i || code != i {
				t.Errorf("process %d ended, and %d was reaped: %v", i, e.i, e.err)
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("process %d was not reaped", i)
		}
	}
	none := make(chan struct{})
	OnEnd(0, func() { close(none) }) // nobody's
	<-none
}

// What is done by an FD is done to the process that was opened, also when that has ended.
func TestFD(t *testing.T) {
	cmd := exec.Command("/bin/cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := OpenFD(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	file, err := fd.File(0)
	if err != nil {
		t.Error(err)
	} else if err := unix.Close(file); err != nil {
		t.Error(err)
	}
	if !fd.Lives() {
		t.Error("it does not live")
	}
	if err := fd.Kill(); err != nil {
		t.Error(err)
	}
	if state := cmd.Wait(); state == nil || state.Error() != "signal: killed" {
		t.Errorf("it ended by %v", state)
	}
	if _, err := fd.File(0); !errors.Is(err, unix.ESRCH) || fd.Lives() || fd.Kill() != nil {
		t.Errorf("it has ended: its file: %v, lives %v, kill: %v", err, fd.Lives(), fd.Kill())
	}
	if _, err := OpenFD(cmd.Process.Pid); !errors.Is(err, unix.ESRCH) {
		t.Errorf("open a process that has ended: %v", err)
	}
}
