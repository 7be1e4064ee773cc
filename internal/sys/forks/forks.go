// Package forks knows which children of this process may still have copies of its descriptors.
//
// A child has a copy of each descriptor that was open when it was forked. The copies that are to be
// closed at exec keep sockets, and the ports of these, until then: for milliseconds where the child
// waits for a CPU. exec.Cmd.Start does not wait for all of that: the kernel closes the copies after
// it has told the parent of the exec, in no certain order, and ends files only on the child's way to
// its program's first instruction. So a child is known to have closed all copies when its program
// has closed one that it got on purpose.
//
// The package needs no privilege, and no newer kernel than Go does.
package forks

import (
	"os"
	"os/exec"
	"sync"
	"time"
)

// patience is the longest wait after the start of a child. A child that takes longer cannot run,
// for example because its cgroup is frozen.
var patience = time.Second

type child struct {
	began  time.Time
	closed chan struct{} // closed when the child has closed all copies, has ended, or did not start
}

var (
	mu       sync.Mutex // guards children
	children = map[*child]struct{}{}
)

// Start starts a program as cmd.Start does, whose errors it returns. The program gets one file more
// than cmd.ExtraFiles says, behind those. It has to close that file, for Await waits until then.
func Start(cmd *exec.Cmd) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, write)
	c := begin()
	err = cmd.Start()
	write.Close()
	if err != nil {
		c.end()
		read.Close()
		return err
	}
	go func() {
		defer c.end()
		defer read.Close()
		_, _ = read.Read(make([]byte, 1)) // nothing but the end of file
	}()
	return nil
}

func begin() *child {
	c := &child{time.Now(), make(chan struct{})}
	mu.Lock()
	defer mu.Unlock()
	children[c] = struct{}{}
	return c
}

func (c *child) end() {
	mu.Lock()
	defer mu.Unlock()
	delete(children, c)
	close(c.closed)
}

// Await waits until the children that were being started have closed their copies of this process's
// descriptors. What this process had closed before is closed then, but for a child that was started
// a second ago.
func Await() {
	for _, c := range started() {
		late := time.NewTimer(time.Until(c.began.Add(patience)))
		select {
		case <-c.closed:
		case <-late.C:
		}
		late.Stop()
	}
}

// Starting is the number of children that have not closed their copies yet. Each has a descriptor of
// this process.
func Starting() int { return len(started()) }

func started() (list []*child) {
	mu.Lock()
	defer mu.Unlock()
	for c := range children {
		list = append(list, c)
	}
	return list
}
