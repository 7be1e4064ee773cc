package container

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"

	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/keeper"
)

// place is a network namespace with the keeper that makes a container's sockets in the namespace.
// The keeper is started when it is first needed, and again if it was killed: it holds only sockets
// that no program has yet.
type place struct {
	ns     *netns.NS
	cgroup *cgroup.Group // whose sockets they are
	owner  *cgroup.Group // killed by the keeper if we die, or nil
	user   *launch.User
	log    *slog.Logger

	mu     sync.Mutex // guards what follows
	keeper *keeper.Keeper
	used   bool  // a keeper was started: sockets may be there
	closed error // why no keeper is started any more
}

func (p *place) Cookie() uint64 { return p.ns.Cookie() }

func (p *place) Addresses() ([]netip.Addr, error) { return p.ns.Addresses() }

func (p *place) Do(fn func() error) error { return p.ns.Do(fn) }

func (p *place) In(fn func() error) error { return p.ns.In(fn) }

func (p *place) ListenerAt(at netip.AddrPort) (netns.Socket, bool, error) { return p.ns.ListenerAt(at) }

func (p *place) Keeper() (*keeper.Keeper, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed != nil {
		return nil, fmt.Errorf("start keeper: %w", p.closed)
	}
	if p.keeper != nil {
		select {
		case <-p.keeper.Done():
			p.log.Warn("keeper was killed, starting another", "pid", p.keeper.PID())
			p.keeper.Close()
			p.keeper = nil
		default:
			// This includes a keeper that does not answer and cannot be killed: another would fare
			// no better.
			return p.keeper, nil
		}
	}
	p.used = true
	k, err := p.start()
	if err != nil {
		return nil, err
	}
	p.keeper = k
	return k, nil
}

// Maker is the Keeper, for the engine.
func (p *place) Maker() (graft.SocketMaker, error) {
	k, err := p.Keeper()
	if err != nil {
		return nil, err // not a nil *keeper.Keeper, which is no nil SocketMaker
	}
	return k, nil
}

func (p *place) start() (*keeper.Keeper, error) {
	dir, err := p.cgroup.Open()
	if err != nil {
		return nil, fmt.Errorf("open cgroup of keeper: %w", err)
	}
	defer dir.Close()
	c := keeper.Config{Netns: p.ns, CgroupDir: dir, Log: p.log}
	if p.owner != nil {
		if c.Kill, err = p.owner.Killer(); err != nil {
			return nil, fmt.Errorf("open cgroup of container: %w", err)
		}
		defer c.Kill.Close()
	}
	if p.user != nil {
		c.UID, c.GID = p.user.UID, p.user.GID
	}
	return keeper.Start(c)
}

// close ends the keeper. Calls that wait for the keeper get an error at once.
func (p *place) close() error {
	p.mu.Lock()
	p.closed = os.ErrClosed
	k := p.keeper
	p.mu.Unlock()
	if k == nil {
		return nil
	}
	return k.Close()
}

// endIdle ends the keeper until one is needed again, because it costs each container a process.
// Nobody may be using it.
func (p *place) endIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keeper == nil {
		return
	}
	go func(k *keeper.Keeper) {
		if err := k.Close(); err != nil {
			p.log.Warn("end keeper", "err", err)
		}
	}(p.keeper)
	p.keeper = nil
}

// closeUnused closes a place in which there never was a socket, and tells whether it closed the
// place.
func (p *place) closeUnused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.used {
		p.closed = graft.ErrGone
	}
	return !p.used
}
