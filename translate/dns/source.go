package dns

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
)

// source is a list of upstreams, with what they have answered. With other upstreams, a proxy has another source: so
// nothing is answered from the cache that upstreams of before have said.
type source struct {
	upstreams []netip.AddrPort
	first     atomic.Uint32 // index of the upstream to ask first
	cache     *cache
	flights   singleflight.Group
	replaced  chan struct{} // closed when another source takes the place of this one
}

func newSource(upstreams []netip.AddrPort, now func() time.Time) *source {
	return &source{upstreams: slices.Clone(upstreams), cache: newCache(now), replaced: make(chan struct{})}
}

// SetUpstreams replaces the upstreams. Questions that are being asked of those before fail. If there are none,
// questions that an upstream would have to answer are refused (REFUSED).
func (p *Proxy) SetUpstreams(upstreams []netip.AddrPort) {
	if slices.Equal(p.source.Load().upstreams, upstreams) {
		return
	}
	close(p.source.Swap(newSource(upstreams, p.o.Now)).replaced)
}

// Upstreams returns the upstreams, and a channel that is closed when others take their place.
func (p *Proxy) Upstreams() (list []netip.AddrPort, changed <-chan struct{}) {
	s := p.source.Load()
	return s.upstreams, s.replaced
}

// until returns a context that ends with another one, or when the source is replaced.
func (s *source) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.replaced:
			end()
		case <-ctx.Done():
		}
	}()
	return ctx, end
}
