package notify

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/graft"
)

// Where a filter's calls wait killably (Linux 5.19), a signal with a handler does not interrupt a call that
// waits here, and neither does a fatal one that comes after it: the kernel wakes a thread only for
// the first. So the supervisor looks for signals of threads that wait, and answers ERESTARTSYS: with a
// signal at hand, the kernel runs the handler, and then starts the call again or fails it with EINTR, as it
// does for its own calls.
//
// The kernel must have marked the thread, or the program would see ERESTARTSYS. It marks a thread for
// a signal of its own, and the first thread for one of the process (complete_signal of kernel/signal.c), unless
// the thread blocks the signal. A thread that waits here takes no signal meanwhile, so the mark stays.

// signalPeriod is how often the supervisor looks.
const signalPeriod = 250 * time.Millisecond

// restartSys is ERESTARTSYS of linux/errno.h.
const restartSys = unix.Errno(512)

// interruptWaiting lets calls that wait for a connection be interrupted, until the supervisor ends.
func (s *Supervisor) interruptWaiting() {
	tick := time.NewTicker(signalPeriod)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		s.waiting.forgetWatched(func(c waitingCall) bool { return !s.listener.valid(c.request.ID) })
		for _, c := range s.waiting.takeIf(s.isInterrupted) {
			_ = s.answer(c.request, graft.Answer{Action: graft.Fail, Errno: restartSys}) // it has logged
		}
	}
}

// forgetWatched forgets the watched calls for which a condition holds.
func (w *waiting) forgetWatched(is func(waitingCall) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watched = slices.DeleteFunc(w.watched, is)
}

// forget has a watched call not interrupted any more: the supervisor answers it.
func (w *waiting) forget(id uint64) {
	w.forgetWatched(func(c waitingCall) bool { return c.request.ID == id })
}

// takeIf takes the calls for which a condition holds.
func (w *waiting) takeIf(is func(waitingCall) bool) (taken []waitingCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watched = slices.DeleteFunc(w.watched, func(c waitingCall) bool {
		if !is(c) {
			return false
		}
		taken = append(taken, c)
		return true
	})
	for cookie, calls := range w.calls {
		var rest []waitingCall
		for _, c := range calls {
			if is(c) {
				taken = append(taken, c)
			} else {
				rest = append(rest, c)
			}
		}
		w.calls[cookie] = rest
	}
	return taken
}

// isInterrupted tells whether the thread of a call that waits has a signal to take.
func (s *Supervisor) isInterrupted(c waitingCall) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.request.Thread))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			s.log.Warn("find signals of a thread", "pid", c.request.Thread, "err", err)
		}
		return false
	}
	// The number may be another thread's by now.
	return hasSignal(status) && s.listener.valid(c.request.ID)
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
