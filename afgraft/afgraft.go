// Package afgraft is the interface of programs that are written for AF_GRAFT: they name their
// endpoints themselves (Nakamura et al., ANCS 2018; include/tsugiki/graft.h). The package has
// the numbers and layouts of that header, and what belongs to an AF_GRAFT socket.
//
// It makes no socket: package graft puts one at an endpoint into the place of another. It
// needs no privilege and runs on any kernel.
package afgraft

import (
	"errors"

	"github.com/tsugiki/tsugiki/endpoint"
)

// DefaultSource is the endpoint of a socket that connects or sends before it is bound.
const DefaultSource = "default-source"

// State is what belongs to an AF_GRAFT socket.
type State struct {
	Name            string // of its endpoint; empty: not bound yet
	Delayed         bool
	NameTransparent bool
}

// Option is a socket option that waits to be set, or that was.
type Option struct {
	Level, Name int
	Value       []byte
	Done        bool
	Result      int // 0 or a negative errno, once it is done
}

// ErrQueueFull says that more options wait, or a longer one, than there is room for.
var ErrQueueFull = errors.New("no room for another delayed socket option")

// Store keeps, in the kernel and with the sockets, what belongs to AF_GRAFT ones. A
// *enforcer.Enforcement is one.
type Store interface {
	// AFGraft returns what belongs to a socket, or false if the file is no AF_GRAFT one.
	AFGraft(sock int) (State, bool, error)
	SetAFGraft(sock int, s State) error
	// AFGraftOptions returns the delayed options of a socket, in the order in which they came.
	AFGraftOptions(sock int) ([]Option, error)
	// SetAFGraftOptions replaces them. More than there is room for are ErrQueueFull.
	SetAFGraftOptions(sock int, options []Option) error
	// Name returns the number by which the kernel programs know an endpoint that a socket was
	// bound to by name. It is good until Withdraw. The number is 0 if the endpoint is there no more: is tells so, and is
	// asked while no other number is given.
	Name(ep *endpoint.Endpoint, is func() bool) (number uint32, err error)
	Withdraw(ep *endpoint.Endpoint) error
}
