package translate

import (
	"net/netip"
	"time"
)

// Virtual tells whether an address means another host in this container than elsewhere.
func (t *Table) Virtual(v4 netip.Addr) bool { return t.prefix.Contains(v4) || t.whole.Contains(v4) }

// Size returns how many virtual addresses the pool has to give out.
func (t *Table) Size() int { return 1<<(32-t.prefix.Bits()) - 2 }

// Now returns the time since the machine's boot, with which Mapping.Until is to be compared.
func (t *Table) Now() time.Duration { return t.clock() }

// InUse returns the number of mappings that an answer or a peer has in use, whether sockets are
// connected to their hosts or not.
func (t *Table) InUse() (n int) {
	now := int64(t.clock())
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i := uint32(1); i < t.used; i++ {
		if s := &t.slots[i]; s.sum != 0 && s.until > now {
			n++
		}
	}
	return n
}
