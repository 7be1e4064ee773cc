package helper

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

func awaitRing(t *testing.T, rung <-chan struct{}) {
	t.Helper()
	select {
	case <-rung:
	case <-time.After(testkit.Patience):
		t.Fatal("no alarm")
	}
}

// The alarm of a waiting process rings when the process works, and not before.
func TestWake(t *testing.T) {
	cmd := shell(t, "kill -STOP $$; "+spin, "")
	p := process(t, cmd.Process.Pid)
	var status unix.WaitStatus
	if _, err := unix.Wait4(p.PID(), &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("it does not stop: %v, %v", status, err)
	}
	for range 3 { // a timer is set again and again
		stopped, err := p.Elapsed()
		if err != nil {
			t.Fatal(err)
		}
		rung := make(chan struct{}, 1)
		var used time.Duration // when it rings
		var readErr error
		const after = 20 * time.Millisecond
		if err := p.Wake(after, func() { used, readErr = p.Elapsed(); rung <- struct{}{} }); err != nil {
			t.Fatal(err)
		}
		if err := p.Wake(after, func() { t.Error("an alarm that is set already was set") }); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		awaitRing(t, rung)
		if readErr != nil || used-stopped < after {
			t.Errorf("it rang after %v (%v)", used-stopped, readErr)
		}
		if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Wait4(p.PID(), &status, unix.WUNTRACED, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWakeOfMany(t *testing.T) {
	const many = 20
	rung := make(chan int, many)
	var all [many]*exec.Cmd
	for i := range many {
		cmd := shell(t, "kill -STOP $$; "+spin, "")
		all[i] = cmd
		p := process(t, cmd.Process.Pid)
		var status unix.WaitStatus
		if _, err := unix.Wait4(p.PID(), &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
			t.Fatalf("it does not stop: %v, %v", status, err)
		}
		if err := p.Wake(time.Millisecond, func() { rung <- i }); err != nil {
			t.Fatal(err)
		}
		if i%2 > 0 {
			continue
		}
		if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[int]bool{}
	for late := time.After(testkit.Patience); len(seen) < many/2; {
		select {
		case i := <-rung:
			if seen[i] || i%2 > 0 {
				t.Errorf("%d has rung, again: %v", i, seen[i])
			}
			seen[i] = true
			if err := all[i].Process.Signal(unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		case <-late:
			t.Fatalf("only %d have rung", len(seen))
		}
	}
}

func TestWakeOfNobody(t *testing.T) {
	cmd := shell(t, "sleep 1000", "")
	p := process(t, cmd.Process.Pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	never := func() { t.Error("it rang") }
	if err := p.Wake(time.Millisecond, never); !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EINVAL) {
		t.Errorf("of a process that is gone: %v", err)
	}
	p.Close()
	if err := p.Wake(time.Millisecond, never); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// BenchmarkElapsedOfManyThreads measures reading the clock of a process with many threads, such as
// a shim, without and with an alarm.
func BenchmarkElapsedOfManyThreads(b *testing.B) {
	for _, alarm := range []bool{false, true} {
		name := map[bool]string{false: "no alarm", true: "alarm"}[alarm]
		b.Run(name, func(b *testing.B) {
			p, err := Open(os.Getppid()) // go test, or a shell
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			if alarm {
				if err := p.Wake(time.Hour, func() {}); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if _, err := p.Elapsed(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
