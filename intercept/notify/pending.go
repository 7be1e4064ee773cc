package notify

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Where a filter's calls wait killably (Linux 5.19), a signal with a handler does not interrupt a call that
// waits here, and neither does a fatal one that comes after it: the kernel wakes a thread only for
// the first. So the supervisor looks for signals of threads that wait, and answers ERESTARTSYS: with a
// signal at hand, the kernel runs the handler, and then starts the call again or fails it with EINTR, as it
// does for its own calls. A call with a limit (SO_RCVTIMEO) always fails with EINTR.
//
// The kernel must have marked the thread, or the program would see ERESTARTSYS. It marks a thread for
// a signal of its own, and the first thread for one of the process (complete_signal of kernel/signal.c), unless
// the thread blocks the signal. A thread that waits here takes no signal meanwhile, so the mark stays.

// signalPeriod is how often the supervisor looks.
const signalPeriod = 250 * time.Millisecond

// restartSys is ERESTARTSYS of linux/errno.h.
const restartSys = unix.Errno(512)

// lookAfterWaiting ends calls that wait for a connection when their time is over, lets signals interrupt
// them, and forgets those whose callers do not wait any more, until the supervisor ends.
func (s *Supervisor) lookAfterWaiting() {
	tick := time.NewTicker(signalPeriod)
	defer tick.Stop()
	limit := time.NewTimer(signalPeriod)
	defer limit.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			s.lookForCallers()
		case <-s.waiting.limited:
		case <-limit.C:
		}
		if next := s.endExpired(); next > 0 {
			limit.Reset(next)
		}
	}
}

// lookForCallers forgets calls whose callers do not wait, and ends those whose callers have a signal.
func (s *Supervisor) lookForCallers() {
	for _, c := range s.waiting.all() {
		if !s.listener.Valid(c.request.ID) {
			s.waiting.take(c)
		} else if s.isInterrupted(c) && s.waiting.take(c) {
			s.end(c, c.signal)
		}
	}
}

// endExpired ends the calls whose time is over. It returns how long the next call has; 0 if none has a
// limit.
func (s *Supervisor) endExpired() (next time.Duration) {
	for _, c := range s.waiting.all() {
		if c.expired() && s.waiting.take(c) {
			s.end(c, unix.EAGAIN)
		} else if left := time.Until(c.end); !c.end.IsZero() && (next == 0 || left < next) {
			next = max(left, 1)
		}
	}
	return next
}

// end answers a call that was taken.
func (s *Supervisor) end(c *waitingCall, errno unix.Errno) {
	answer := fail(errno)
	s.count(c.request, answer, time.Since(c.came))
	_ = s.answer(c.request, answer) // it has logged
}

// isInterrupted tells whether the thread of a call that waits has a signal to take.
func (s *Supervisor) isInterrupted(c *waitingCall) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.request.Thread))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			s.log.Warn("find signals of a thread", "pid", c.request.Thread, "err", err)
		}
		return false
	}
	// The number may be another thread's by now.
	return hasSignal(status) && s.listener.Valid(c.request.ID)
}

// hasSignal reads /proc/TID/status (proc(5)), and tells whether the kernel has marked the thread.
func hasSignal(status []byte) bool {
	value := map[string]uint64{}
	for lines := bufio.NewScanner(bytes.NewReader(status)); lines.Scan(); {
		name, text, _ := bytes.Cut(lines.Bytes(), []byte(":\t"))
		base := 16
		switch string(name) {
		case "Tgid", "Pid":
			base = 10
		case "SigPnd", "ShdPnd", "SigBlk":
		default:
			continue
		}
		n, err := strconv.ParseUint(string(text), base, 64)
		if err != nil {
			return false
		}
		value[string(name)] = n
	}
	pending := value["SigPnd"]
	if value["Tgid"] == value["Pid"] {
		pending |= value["ShdPnd"]
	}
	return pending&^value["SigBlk"] != 0
}
