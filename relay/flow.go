package relay

import (
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// flowKey identifies a host socket of the container's programs by its port.
type flowKey struct {
	ip6  bool
	port uint16
}

// flow is the socket in the container's own namespace that stands for a host socket.
type flow struct {
	socket
	key flowKey
	end *end
	// used is the time of the last datagram in either direction, since start.
	used atomic.Int64
}

// start is the origin of flow.used.
var start = time.Now()

func (f *flow) use() { f.used.Store(int64(time.Since(start))) }

func (f *flow) close() { _ = f.file.Close() }

// pass sends a datagram to a server through the sender's flow.
func (r *Relay) pass(e *end, d datagram, to netip.AddrPort) {
	// The flow may end after flowOf has found it. Then a second try makes a new one.
	for range 2 {
		f, err := r.flowOf(e, d.from.Port())
		if err != nil {
			r.config.Log.Debug("a datagram to the container's own loopback was lost", "addr", to, "err", err)
			return
		}
		f.use()
		if err := f.send(d.data, to); !errors.Is(err, os.ErrClosed) {
			return // other errors lose the datagram, as networks do
		}
	}
}

var errUnknown = errors.New("no socket of the container has sent from this port")

// flowOf returns the flow of a sender, and makes it if there is none. For each family only one
// goroutine (end.serve) calls flowOf.
func (r *Relay) flowOf(e *end, port uint16) (*flow, error) {
	key := flowKey{e.ip6, port}
	r.mu.Lock()
	f := r.flows[key]
	r.mu.Unlock()
	if f != nil {
		return f, nil
	}
	if !r.config.Enforcement.SentToRelay(e.ip6, port) {
		// The table of senders may be full, so rows without a flow are removed.
		return nil, errors.Join(errUnknown, r.config.Enforcement.ForgetSenders(r.has))
	}
	f = &flow{key: key, end: e}
	f.use()
	var err error
	if f.socket, err = newSocket(r.config.Own, e.ip6, unix.SOCK_NONBLOCK, func(fd int) error { return bindNear(fd, e.ip6, port) }); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		f.close()
		return nil, errClosed
	}
	if len(r.flows) >= flowsMax {
		r.endOldest()
	}
	r.flows[key] = f
	r.running.Add(1)
	go f.serve()
	return f, nil
}

// has tells whether a sender has a flow.
func (r *Relay) has(ip6 bool, port uint16) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.flows[flowKey{ip6, port}] != nil
}

// bindNear binds the socket to a loopback address and the port, or to another port if that one is
// taken.
func bindNear(fd int, ip6 bool, port uint16) error {
	addr := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if ip6 {
		addr = netip.IPv6Loopback()
	}
	err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(addr, port)))
	if err != nil {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(addr, 0)))
	}
	return err
}

// endOldest ends the flow that was idle for the longest time. The caller holds mu.
func (r *Relay) endOldest() {
	var oldest *flow
	for _, f := range r.flows {
		if oldest == nil || f.used.Load() < oldest.used.Load() {
			oldest = f
		}
	}
	r.end(oldest)
	oldest.close()
}

// serve forwards the servers' answers until the flow is closed or idle, or its sender has closed.
func (f *flow) serve() {
	r := f.end.relay
	defer r.running.Done()
	defer r.forget(f)
	for {
		expires := time.Duration(f.used.Load()) + r.config.idle
		if err := f.file.SetReadDeadline(start.Add(expires)); err != nil {
			return
		}
		err := f.answer()
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Duration(f.used.Load())+r.config.idle > time.Since(start) {
			continue
		}
		if err != nil {
			return
		}
	}
}

// answer forwards datagrams until an error.
func (f *flow) answer() error {
	for {
		b, d, err := f.receive()
		if err != nil {
			return err
		}
		f.end.relay.config.Work.Do(func() {
			if alias, ok := f.end.aliasOf(d.from); ok {
				f.use()
				err = f.end.send(d.data, netip.AddrPortFrom(alias, f.key.port))
			}
		})
		dropBuffer(b)
		// The kernel programs refuse the datagram because the sender has closed.
		if errors.Is(err, unix.EPERM) {
			return err
		}
	}
}

func (r *Relay) forget(f *flow) {
	r.mu.Lock()
	if r.flows[f.key] == f {
		r.end(f)
	}
	r.mu.Unlock()
	f.close()
}

// end removes a flow and its sender's row, so that a sender that sends again gets a new flow. The
// caller holds mu.
func (r *Relay) end(f *flow) {
	if err := r.config.Enforcement.ForgetSender(f.key.ip6, f.key.port); err != nil {
		r.config.Log.Warn("end a flow to the container's own loopback", "err", err)
	}
	delete(r.flows, f.key)
}
