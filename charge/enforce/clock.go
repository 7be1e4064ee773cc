package enforce

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// clock is the loop's time and alarm. Several goroutines may call its methods.
type clock interface {
	// now returns the time since the start. It never decreases.
	now() time.Duration
	// set sets the time at which wait returns. It replaces the time set before.
	set(at time.Duration)
	// wait blocks until the time that was set, or a little longer.
	wait()
	close() error
}

// timer is a clock made of CLOCK_MONOTONIC and a timerfd. A Go timer is up to a millisecond late. A
// thread that blocks in a system call makes the Go runtime watch it, which costs more CPU time than
// the looks.
type timer struct {
	start time.Time
	file  *os.File

	mu sync.Mutex // guards fd
	fd int        // the descriptor of file; negative after close
}

func newTimer() (*timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	return &timer{start: time.Now(), file: os.NewFile(uintptr(fd), "timerfd"), fd: fd}, nil
}

func (t *timer) now() time.Duration { return time.Since(t.start) }

func (t *timer) set(at time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fd < 0 {
		return
	}
	ts := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(at-t.now(), 1)))}
	_ = unix.TimerfdSettime(t.fd, 0, &ts, nil)
}

func (t *timer) wait() {
	var count [8]byte
	if _, err := t.file.Read(count[:]); err != nil {
		time.Sleep(time.Millisecond) // so that a lasting error does not make the loop spin
	}
}

func (t *timer) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fd = -1
	return t.file.Close()
}
