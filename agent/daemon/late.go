package daemon

import (
	"errors"
	"os"
	"time"

	"github.com/tsugiki/tsugiki/gate"
)

// # Containers that are taken over late
//
// A container may not be taken over when the daemon starts: a gate is stopped, or the machine is short of files,
// memory or time. It runs on, and calls that need the daemon wait. So it is tried again, until it ends.

// The pauses before a container is tried again. A gate that does not answer is tried again after the first.
const (
	lateAgain    = 500 * time.Millisecond
	lateAgainMax = 10 * time.Second
)

const (
	notAdopted    = "container not taken over; it runs on without an agent"
	notYetAdopted = "container not taken over yet; it is tried again"
)

// adoptLate takes over a container that is late, once that succeeds.
func (d *Daemon) adoptLate(m *managed) {
	pause, said := lateAgain, ""
	for {
		again, lives, err := m.AdoptLate()
		switch {
		case !lives:
			d.end(m)
			return
		case err == nil:
			if m.Awaits() {
				d.awaitProgram(m, adoptedPatience)
			}
			m.letPodsIn()
			if m.Pod != nil {
				d.admitPod(m.Pod.UID)
			}
			m.log.Info("container taken over", "gates", m.GateCount())
			return
		case errors.Is(err, os.ErrClosed):
			return
		case !again:
			m.log.Error(notAdopted, "err", err)
			return
		case errors.Is(err, gate.ErrSilent):
			pause = lateAgain
		default:
			if text := err.Error(); text != said {
				m.log.Error(notYetAdopted, "err", err)
				said = text
			}
			pause = min(2*pause, lateAgainMax)
		}
		if !d.pauses(pause) {
			return
		}
	}
}

// pauses waits, and tells whether the daemon still serves then.
func (d *Daemon) pauses(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-d.closing:
		return false
	}
}
