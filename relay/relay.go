// Package relay carries datagrams between a container's host sockets and the
// servers on its own loopback.
//
// A UDP socket that was created on the host first and is not connected may send to a
// server in the container's own namespace: statsd, syslog, a name server at
// 127.0.0.53. The kernel programs of package policy/enforcer lead such datagrams to the
// sockets that this package has on the host's loopback, and answers back; what
// they write into the addresses is told in bpf/relay.h. The package decides
// nothing: what comes without the container's secret is dropped, and whether the
// receiver of an answer is the container's is the kernel programs' to say.
//
// # What a program may notice
//
//   - A server sees the program's port only where nobody in the container's
//     namespace has it; else another. The port stays taken there until the
//     program's socket is closed and a last answer has come, or for idleLimit.
//   - Of 127.0.0.0/8 only 127.0.0.1 to 127.0.0.254 are reached, by sockets that
//     are not connected. TTL, TOS and control messages are not carried.
//   - Nobody in the container's namespace reaches such a socket before it has
//     sent something there.
//   - A datagram that finds no room is lost, as on any loopback; so is one from
//     a socket whose flow was ended for another's.
//
// Start needs CAP_NET_RAW in the host's namespace, CAP_NET_BIND_SERVICE in the
// container's, and Linux 5.15.
package relay

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy/enforcer"
)

const (
	// idleLimit is how long a flow is kept that carries nothing.
	idleLimit = time.Minute
	// flowsMax is how many flows a container has; the one that was idle for
	// longest makes room.
	flowsMax = 256
	// bufferSize is the room for datagrams that wait at the relay: one socket has
	// to do for all of the container's.
	bufferSize = 1 << 20
	// datagramMax is more than the largest datagram has.
	datagramMax = 1 << 16
)

type buffer [datagramMax]byte

// buffers are those of all relays: most have nothing to carry most of the time.
var buffers = sync.Pool{New: func() any { return new(buffer) }}

func takeBuffer() *buffer  { return buffers.Get().(*buffer) }
func dropBuffer(b *buffer) { buffers.Put(b) }

// Place is a network namespace in which sockets can be had.
type Place interface {
	Keeper() (*keeper.Keeper, error)
	Cookie() uint64
}

// Config is what a relay works with.
type Config struct {
	Enforcement *enforcer.Enforcement
	// Host makes sockets in the cgroup that Enforcement is attached to.
	Host Place
	// Own is the container's own namespace.
	Own Place
	Log *slog.Logger
	// Work measures what it takes to carry datagrams; nil: nothing does.
	Work *cputime.Meter

	idle time.Duration // tests: instead of idleLimit
}

// Relay is the relay of one container.
type Relay struct {
	config  Config
	ends    []*end
	running sync.WaitGroup // flows

	mu     sync.Mutex // guards what follows
	flows  map[flowKey]*flow
	closed bool
}

// errClosed is why there are no more flows.
var errClosed = errors.New("relay is closed")

// Start makes the relay and tells the kernel programs of it. A family that the
// host does not have is left out.
func Start(c Config) (*Relay, error) {
	if c.idle == 0 {
		c.idle = idleLimit
	}
	r := &Relay{config: c, flows: map[flowKey]*flow{}}
	// Where another process has led datagrams before, that one is gone, and its flows.
	err := c.Enforcement.LeadToRelay(enforcer.Relay{})
	if err == nil {
		err = c.Enforcement.ForgetSenders(r.has)
	}
	if err != nil {
		return nil, fmt.Errorf("start relay: %w", err)
	}
	lead, err := r.open()
	if err == nil {
		err = c.Enforcement.LeadToRelay(lead)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start relay: %w", err), r.Close())
	}
	return r, nil
}

func (r *Relay) open() (enforcer.Relay, error) {
	lead := enforcer.Relay{Netns: r.config.Host.Cookie()}
	lead.From4, lead.From6 = secrets()
	for _, f := range []struct {
		ip6    bool
		secret netip.Addr
		port   *uint16
	}{{false, lead.From4, &lead.Port4}, {true, lead.From6, &lead.Port6}} {
		e, err := r.newEnd(f.ip6, f.secret)
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
			r.config.Log.Info("the host has no loopback of a family, nor has the relay", "ip6", f.ip6)
			continue
		}
		if err != nil {
			return lead, err
		}
		r.ends = append(r.ends, e)
		*f.port = e.port
	}
	return lead, nil
}

// secrets makes source addresses that only the kernel programs know: one of
// 127.0.0.0/8, and one of 100::/64 (RFC 6666) with two bytes left for a port.
func secrets() (netip.Addr, netip.Addr) {
	var b [10]byte
	rand.Read(b[:])
	from4 := [4]byte{127, b[0], b[1], b[2]}
	if b[0] == 0 || b[0] == 255 {
		from4[1] = 1 // neither an address in use nor a broadcast
	}
	from6 := [16]byte{0: 1}
	copy(from6[8:], b[4:])
	return netip.AddrFrom4(from4), netip.AddrFrom16(from6)
}

// Close ends the relay and all its flows. A flow that is being made holds it up
// until the keeper of Config.Own has answered or ended, so close that one first.
func (r *Relay) Close() error {
	r.mu.Lock()
	r.closed = true
	for key, f := range r.flows {
		delete(r.flows, key)
		f.close()
	}
	r.mu.Unlock()
	var errs []error
	for _, e := range r.ends {
		e.watch.Stop()
		errs = append(errs, e.file.Close())
		e.watch.Wait()
	}
	r.running.Wait()
	return errors.Join(errs...)
}
