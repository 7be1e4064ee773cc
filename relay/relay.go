// Package relay carries datagrams between a container's host sockets and the servers on the
// container's own loopback.
//
// A program's UDP socket may have been created on the host first. While it is not connected, it may
// send to a server in the container's own namespace: statsd, syslog, a name server at 127.0.0.53.
// The kernel programs of package policy/enforcer redirect such datagrams to this package's sockets
// on the host's loopback, and redirect the answers back. bpf/relay.h describes the addresses that
// they write. The package decides nothing. It drops a datagram without the container's secret. The
// kernel programs check that the receiver of an answer belongs to the container.
//
// # What a program may notice
//
//   - A server sees the program's own port if that port is free in the container's
//     namespace, and another port otherwise. The port stays taken there until the
//     program's socket is closed and one more answer has come, or for idleLimit.
//   - Only the addresses 127.0.0.1 to 127.0.0.254 of 127.0.0.0/8 are reachable, by
//     sockets that are not connected. TTL, TOS and control messages are not carried.
//   - A program in the container's namespace cannot reach such a socket before the
//     socket has sent a datagram there.
//   - A datagram is lost if a queue is full, as on any loopback. It is also lost if
//     its flow was ended to make room for another one.
//
// Start needs CAP_NET_RAW in the host's namespace, CAP_NET_BIND_SERVICE in the container's, and
// Linux 5.15.
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
	// idleLimit is how long a flow without datagrams is kept.
	idleLimit = time.Minute
	// flowsMax is the largest number of a container's flows. A new flow then replaces the one that
	// was idle for the longest time.
	flowsMax = 256
	// bufferSize is the size of a relay socket's queue in bytes. One socket serves all of a
	// container's programs.
	bufferSize = 1 << 20
	// datagramMax is larger than any UDP datagram.
	datagramMax = 1 << 16
)

type buffer [datagramMax]byte

// buffers has the buffers of all relays. Most relays carry nothing most of the time.
var buffers = sync.Pool{New: func() any { return new(buffer) }}

func takeBuffer() *buffer  { return buffers.Get().(*buffer) }
func dropBuffer(b *buffer) { buffers.Put(b) }

// Namespace is a network namespace in which a keeper creates sockets.
type Namespace interface {
	Keeper() (*keeper.Keeper, error)
	Cookie() uint64
}

// Config has what a relay needs.
type Config struct {
	Enforcement *enforcer.Enforcement
	// Host makes sockets in the cgroup that Enforcement is attached to.
	Host Namespace
	// Own is the container's own namespace.
	Own Namespace
	Log *slog.Logger
	// Work measures the CPU time of carrying datagrams. nil: it is not measured.
	Work *cputime.Meter

	idle time.Duration // replaces idleLimit in tests
}

// Relay is the relay of one container.
type Relay struct {
	config  Config
	ends    []*end
	running sync.WaitGroup // goroutines of flows

	mu     sync.Mutex // guards the fields below
	flows  map[flowKey]*flow
	closed bool
}

// errClosed says that the relay makes no more flows.
var errClosed = errors.New("relay is closed")

// Start makes the relay, and makes the kernel programs redirect datagrams to it. It leaves out a
// family that the host does not have.
func Start(c Config) (*Relay, error) {
	if c.idle == 0 {
		c.idle = idleLimit
	}
	r := &Relay{config: c, flows: map[flowKey]*flow{}}
	// A relay of an earlier process is gone together with its flows.
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
			r.config.Log.Info("the host has no loopback of this family, so the relay has none", "ip6", f.ip6)
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

// secrets makes two source addresses that only the kernel programs know: one in 127.0.0.0/8, and
// one in 100::/64 (RFC 6666) with two bytes left for a port.
func secrets() (netip.Addr, netip.Addr) {
	var b [10]byte
	rand.Read(b[:])
	from4 := [4]byte{127, b[0], b[1], b[2]}
	if b[0] == 0 || b[0] == 255 {
		from4[1] = 1 // avoids addresses in use and the broadcast address
	}
	from6 := [16]byte{0: 1}
	copy(from6[8:], b[4:])
	return netip.AddrFrom4(from4), netip.AddrFrom16(from6)
}

// Close ends the relay and all its flows. It waits for a flow that is being made, which needs an
// answer of the keeper of Config.Own. So close that keeper first.
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
