package graft

import (
	"errors"

	"golang.org/x/sys/unix"
)

// LetGo closes the sockets that hold ports of the host, for a container that goes on. Connections are
// still led to its servers. The container's next engine holds the ports again (Recover).
func (e *Engine) LetGo() error {
	e.guardsMu.Lock()
	defer e.guardsMu.Unlock()
	var errs []error
	for _, file := range e.guards {
		errs = append(errs, unix.Close(file))
	}
	clear(e.guards)
	return errors.Join(errs...)
}
