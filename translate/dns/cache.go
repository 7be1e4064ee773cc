package dns

import (
	"container/list"
	"fmt"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	cacheSize = 128 << 10 // octets of messages, about a thousand
	// The longest times for which answers are kept. Negative ones: RFC 2308 section 5 allows hours.
	// Failures: RFC 9520 section 3.2 demands one second at least.
	keepAnswer   = maxTTL * time.Second
	keepNegative = 5 * time.Minute
	keepFailure  = time.Second
)

// key has everything on which an upstream's answer depends. The name is in lower case.
type key struct {
	name   string
	qtype  uint16
	do, cd bool
}

func (k key) String() string { return fmt.Sprint(k.name, " ", k.qtype, k.do, k.cd) }

// cache keeps answers as messages, which are small. It drops the one whose last use is the oldest.
type cache struct {
	now func() time.Time

	mu    sync.Mutex // guards the fields below
	byKey map[key]*list.Element
	order *list.List // of *kept, used last first
	size  int
}

type kept struct {
	key     key
	wire    []byte
	at, end time.Time
}

func newCache(now func() time.Time) *cache {
	return &cache{now: now, byKey: map[key]*list.Element{}, order: list.New()}
}

// get returns a message and its age in whole seconds.
func (c *cache) get(k key) (wire []byte, age uint32, ok bool) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byKey[k]
	if !ok {
		return nil, 0, false
	}
	v := e.Value.(*kept)
	if !now.Before(v.end) || now.Before(v.at) {
		c.remove(e)
		return nil, 0, false
	}
	c.order.MoveToFront(e)
	return v.wire, uint32(now.Sub(v.at) / time.Second), true
}

// put keeps a message for some time. It does not keep a large message, which takes the room of many
// others.
func (c *cache) put(k key, wire []byte, life time.Duration) {
	if life <= 0 || len(wire) > cacheSize/16 {
		return
	}
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.byKey[k]; ok {
		c.remove(e)
	}
	c.byKey[k] = c.order.PushFront(&kept{k, wire, now, now.Add(life)})
	for c.size += len(wire); c.size > cacheSize; {
		c.remove(c.order.Back())
	}
}

func (c *cache) remove(e *list.Element) {
	v := c.order.Remove(e).(*kept)
	delete(c.byKey, v.key)
	c.size -= len(v.wire)
}

// lifetime returns how long a distilled message is valid: as long as each of its records. A
// negative answer without a SOA record is not valid for later questions (RFC 2308 section 5).
func lifetime(m *dns.Msg) time.Duration {
	life := keepAnswer
	switch {
	case m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError:
		return keepFailure
	case negative(m):
		soa := soaOf(m)
		if soa == nil {
			return 0
		}
		life = min(keepNegative, seconds(soa.Hdr.Ttl))
	}
	for _, rr := range m.Answer {
		life = min(life, seconds(rr.Header().Ttl))
	}
	return life
}

// negative tells whether a distilled message has no record of the requested type.
func negative(m *dns.Msg) bool {
	for _, rr := range m.Answer {
		if rr.Header().Rrtype == m.Question[0].Qtype {
			return false
		}
	}
	return true
}

// seconds converts a TTL. A TTL above 2^31 is zero (RFC 2181 section 8).
func seconds(ttl uint32) time.Duration {
	if ttl > 1<<31-1 {
		return 0
	}
	return time.Duration(ttl) * time.Second
}
