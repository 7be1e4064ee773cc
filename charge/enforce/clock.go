package enforce

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// clock is what the loop goes by. Its methods may be called by several goroutines.
type clock interface {
	// now is the time since the start. It never goes back.
	now() time.Duration
	// set has wait return then, whatever was set before.
	set(at time.Duration)
	// wait returns at the time that was set, or a little later.
	wait()
	close() error
}

// timer is the kernel's monotonic clock with a timerfd, which is exact: a Go timer is
// up to a millisecond late, and a thread that blocks in a system call has the runtime
// watch it, which costs more than the looks.
type timer struct {
	start time.Time
	file  *os.File

	mu sync.Mutex // guards what follows
	fd int        // of file; less than 0: it is closed
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
		time.Sleep(time.Millisecond) // not to spin, whatever that may be
	}
}

func (t *timer) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fd = -1
	return t.file.Close()
}
