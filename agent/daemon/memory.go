package daemon

import (
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// idleAfter is longer than the pauses between the starts of many containers, because giving memory
// back takes some milliseconds of CPU time.
const idleAfter = 500 * time.Millisecond

// idleGrowth is the GOGC percentage (see runtime) while no container is started, unless the
// environment sets GOGC. busyGrowth, Go's default, holds while containers are started: a start
// makes much garbage, and more frequent collection takes CPU time.
const idleGrowth, busyGrowth = 50, 100

// memory keeps the daemon's memory small while no container is started.
type memory struct {
	timer *time.Timer // fires when no container has been started for idleAfter
	idle  atomic.Bool
}

func newMemory() *memory {
	m := &memory{}
	m.timer = time.AfterFunc(idleAfter, m.setIdleGC)
	return m
}

func (m *memory) stop() { m.timer.Stop() }

// setIdleGC gives back the memory that starting containers took.
func (m *memory) setIdleGC() {
	if os.Getenv("GOGC") == "" && !m.idle.Swap(true) {
		debug.SetGCPercent(idleGrowth)
	}
	debug.FreeOSMemory()
}

// setBusyGC is called when the start of a container begins.
func (m *memory) setBusyGC() {
	if m.idle.Swap(false) {
		debug.SetGCPercent(busyGrowth)
	}
	m.giveBackLater()
}

// giveBackLater puts off setIdleGC.
func (m *memory) giveBackLater() { m.timer.Reset(idleAfter) }
