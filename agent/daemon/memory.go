package daemon

import (
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// idleAfter is longer than what lies between the starts of many containers: to give
// memory back takes some milliseconds of CPU time.
const idleAfter = 500 * time.Millisecond

// idleGrowth is by how many percent the heap may grow before it is collected while no
// container is started, unless GOGC says (see runtime). Starting makes much garbage, and
// to collect it more often takes CPU time: then it is busyGrowth, Go's own.
const idleGrowth, busyGrowth = 50, 100

// memory keeps the daemon's memory small while no container is started.
type memory struct {
	timer *time.Timer // for when no container has been started for idleAfter
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

// setBusyGC is for who begins to start a container.
func (m *memory) setBusyGC() {
	if m.idle.Swap(false) {
		debug.SetGCPercent(busyGrowth)
	}
	m.giveBackLater()
}

// giveBackLater puts off setIdleGC.
func (m *memory) giveBackLater() { m.timer.Reset(idleAfter) }
