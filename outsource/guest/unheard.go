package guest

import (
	"net/netip"
	"sync"
)

// change is what a call has made of a socket: it has a handle of the host's, and is bound or connects.
type change struct {
	handle uint32 // 0: the call has changed nothing
	name   netip.AddrPort
}

// unheard are changes whose calls were not answered yet. If a signal interrupts such a call, the program makes
// it again, and gets the answer that it has missed. The zero value is ready.
type unheard struct {
	mu      sync.Mutex // guards changes
	changes map[change]bool
}

// unheardMax bounds the changes that are remembered, for programs that do not repeat such calls.
const unheardMax = 1024

// add adds a change, and returns it.
func (u *unheard) add(c change) change {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.changes == nil || len(u.changes) >= unheardMax {
		u.changes = map[change]bool{}
	}
	u.changes[c] = true
	return c
}

// take forgets a change. It tells whether nobody had heard of it: a call with the same change repeats another.
func (u *unheard) take(c change) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	is := u.changes[c]
	delete(u.changes, c)
	return is
}
