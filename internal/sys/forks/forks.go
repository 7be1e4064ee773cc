// Package forks knows which children of this process have not executed their program yet.
//
// Such a child has a copy of each descriptor that was open when it was forked. The copies that are
// to be closed at exec keep sockets, and the ports of these, until then: for milliseconds where the
// child waits for a CPU. The package starts no process. It needs no privilege, and no newer kernel
// than Go does.
package forks

import (
	"sync"
	"time"
)

// patience is how long after its start a child is waited for. One that takes longer is kept from
// running, as in a cgroup that somebody has frozen.
const patience = time.Second

type child struct {
	began    time.Time
	executed chan struct{} // closed also if it could not
}

var (
	mu       sync.Mutex // guards children
	children = map[*child]struct{}{}
)

// Start calls start, which starts a process and returns when that has executed its program, as
// exec.Cmd.Start does. It returns the error of start.
func Start(start func() error) error {
	c := &child{time.Now(), make(chan struct{})}
	mu.Lock()
	children[c] = struct{}{}
	mu.Unlock()
	defer func() {
		mu.Lock()
		delete(children, c)
		mu.Unlock()
		close(c.executed)
	}()
	return start()
}

// Await waits until the children that were being started have executed their programs. What this
// process had closed before is closed then, but for a child that was started a second ago.
func Await() {
	for _, c := range started() {
		late := time.NewTimer(time.Until(c.began.Add(patience)))
		select {
		case <-c.executed:
		case <-late.C:
		}
		late.Stop()
	}
}

func started() (list []*child) {
	mu.Lock()
	defer mu.Unlock()
	for c := range children {
		list = append(list, c)
	}
	return list
}
