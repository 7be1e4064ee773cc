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

// unheard are changes of calls that a signal interrupted before they were answered. The program makes such a
// call again, and gets the answer that it has missed. The zero value is ready.
type unheard struct {
	mu      sync.Mutex // guards changes
	changes map[change]bool
}

// unheardMax bounds the changes that are remembered: of a program that does not repeat its calls.
const unheardMax = 1024

func (u *unheard) add(c change) {
	if c.handle == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.changes == nil || len(u.changes) >= unheardMax {
		u.changes = map[change]bool{}
	}
	u.changes[c] = true
}

// take tells whether a call repeats one whose answer was not heard.
func (u *unheard) take(c change) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	is := u.changes[c]
	delete(u.changes, c)
	return is
}
