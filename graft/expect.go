package graft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// # Connections that a client expects
//
// A client of FTP in active mode listens at a port, and has its server connect there. The client's socket is on
// the container's loopback, where no peer reaches it. So an IPv6 listener of the engine takes one
// connection, of this server alone: a socket filter drops the packets of all others. The engine then
// connects to the client's listener, by a marker as for servers of two namespaces (own.go). When
// the client accepts the marker, it gets the server's connection.
//
// Only a port that the kernel has chosen for a listener of the container can be opened: no service has
// such a port.

// expectPatience is how long a server has to connect.
const expectPatience = 2 * time.Minute

var (
	errNoListener = errors.New("no socket listens at this port, or the program has chosen the port")
	errEnded      = errors.New("the control connection has ended")
)

// expectation opens ports for the peer of one connection, one at a time.
type expectation struct {
	e    *Engine
	peer netip.Addr // the server
	at   netip.Addr // the container's address, as the server sees it

	mu     sync.Mutex // guards what follows
	ended  bool
	cancel func() // ends the port that is open; nil: there is none
}

// open lets the server connect once to a port where the program listens.
func (x *expectation) open(port uint16) (netip.AddrPort, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return netip.AddrPort{}, errEnded
	}
	x.drop()
	c := x.e.begin()
	if err := c.mayExpect(port); err != nil {
		return netip.AddrPort{}, err
	}
	file, err := c.listenFor(x.peer, netip.AddrPortFrom(x.at, 0), port)
	if err != nil {
		return netip.AddrPort{}, err
	}
	at, err := c.boundTo(file)
	f := os.NewFile(uintptr(file), "listener for a server")
	var release func()
	if err == nil {
		err = f.SetReadDeadline(time.Now().Add(expectPatience))
	}
	if err == nil {
		release, err = x.e.relays.hold(f)
	}
	if err != nil {
		return netip.AddrPort{}, errors.Join(err, f.Close())
	}
	ended := make(chan struct{})
	err = x.e.relays.begin(func() {
		defer release()
		if conn, peer, err := acceptOne(f); err == nil {
			f.Close()
			x.e.lead(port, conn, peer, ended)
		}
		f.Close()
	})
	if err != nil {
		release()
		return netip.AddrPort{}, errors.Join(err, f.Close())
	}
	x.e.Know(Expects)
	x.e.relays.expect(port, 1)
	x.cancel = func() {
		f.Close()
		close(ended)
		x.e.relays.expect(port, -1)
	}
	return at, nil
}

// drop ends the port that is open. The caller holds x.mu.
func (x *expectation) drop() {
	if x.cancel != nil {
		x.cancel()
		x.cancel = nil
	}
}

// end ends all that the connection has opened. Data connections of the program stay.
func (x *expectation) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
	x.drop()
}

// mayExpect returns an error unless a socket of the container listens at a port that the kernel has
// chosen.
func (e call) mayExpect(port uint16) error {
	s, found, err := e.host.ListenerAt(localhost4(port))
	if err != nil {
		return err
	}
	if !found || s.Cgroup != e.Enforcer.Cgroup() || !e.Ephemeral.Contains(port) || e.Enforcer.IsPrivate(unix.IPPROTO_TCP, port) {
		return errNoListener
	}
	return nil
}

// listenFor makes an IPv6 listener that hears one peer.
func (e call) listenFor(peer netip.Addr, at netip.AddrPort, port uint16) (int, error) {
	file, err := e.newSocket(keeper.Kind{Family: unix.AF_INET6, Type: unix.SOCK_STREAM, Protocol: unix.IPPROTO_TCP})
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptInt(file, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	if err == nil {
		err = e.Enforcer.NoteTranslated(file)
	}
	if err == nil {
		err = unix.SetsockoptSockFprog(file, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, hears(peer))
	}
	if err == nil {
		view := netip.AddrPortFrom(e.Translation.Own, port)
		err = e.bindHost(file, e.host, policy.Binding{Host: at, View: view, Ingress: true})
	}
	if err == nil {
		err = unix.SetNonblock(file, true)
	}
	if err == nil {
		err = unix.Listen(file, 1)
	}
	if err != nil {
		unix.Close(file)
		return -1, fmt.Errorf("listen for a server: %w", err)
	}
	return file, nil
}

// boundTo returns the address on the host to which the engine has bound a socket.
func (e call) boundTo(file int) (netip.AddrPort, error) {
	at, known := e.Enforcer.BoundTo(file)
	if !known || at.Port() == 0 {
		return at, errors.New("a socket has no port")
	}
	return at, nil
}

// networkHeader is SKF_NET_OFF of linux/filter.h: offsets from the IP header.
const networkHeader = 1<<32 - 0x100000

// hears is a filter that passes packets of one IPv6 address.
func hears(peer netip.Addr) *unix.SockFprog {
	const source = 8 // in the IPv6 header
	const words = 4
	addr := peer.As16()
	var filter []unix.SockFilter
	for i := range words {
		toDrop := uint8(2*(words-1-i) + 1)
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(networkHeader + source + 4*i)},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: binary.BigEndian.Uint32(addr[4*i:]), Jf: toDrop})
	}
	return program(append(filter,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0})...)
}

// acceptOne waits for a connection.
func acceptOne(f *os.File) (conn int, peer netip.AddrPort, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, peer, err
	}
	werr := raw.Read(func(fd uintptr) bool {
		conn, peer, err = acceptFrom(int(fd))
		return !errors.Is(err, unix.EAGAIN)
	})
	if werr != nil {
		return -1, peer, werr
	}
	return conn, peer, err
}

// expect counts for how many connections a port is open.
func (r *relays) expect(port uint16, change int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expected[port] += change
	if r.expected[port] <= 0 {
		delete(r.expected, port)
	}
}

// expects tells whether a listener may get a marker.
func (r *relays) expects(port uint16) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.expected[port] > 0
}

// lead makes the program accept a connection, and returns when the program has accepted it or ended is
// closed.
func (e *Engine) lead(port uint16, conn int, peer netip.AddrPort, ended <-chan struct{}) {
	marker, from, err := e.mark(port, conn, peer)
	if err != nil {
		e.Log.Warn("a server's connection is reset", "peer", peer, "err", err)
		reset(conn)
		return
	}
	defer marker.Close()
	done := make(chan struct{})
	defer close(done)
	err = e.relays.begin(func() {
		select {
		case <-ended:
			_ = marker.SetDeadline(time.Now()) // it may be closed
		case <-done:
		}
	})
	if err == nil {
		_ = awaitEnd(marker) // it ends in any case
	}
	if _, is := e.relays.take(from); is {
		reset(conn)
	}
}

// mark connects to the program's listener, and notes for which connection it does.
func (e *Engine) mark(port uint16, conn int, peer netip.AddrPort) (_ *os.File, from netip.AddrPort, err error) {
	file, err := e.newSocket(keeper.Kind{Family: unix.AF_INET, Type: unix.SOCK_STREAM, Protocol: unix.IPPROTO_TCP})
	if err != nil {
		return nil, from, err
	}
	resetAtEnd(file)
	if err = unix.Bind(file, sockaddr.Of(localhost4(0))); err == nil {
		from, err = localName(file)
	}
	if err == nil {
		err = unix.SetNonblock(file, true)
	}
	if err == nil {
		e.relays.mu.Lock()
		e.relays.marked[from] = marked{conn: conn, peer: peer}
		e.relays.mu.Unlock()
		if err = unix.Connect(file, sockaddr.Of(localhost4(port))); errors.Is(err, unix.EINPROGRESS) {
			err = nil
		}
	}
	if err != nil {
		e.relays.take(from)
		unix.Close(file)
		return nil, from, err
	}
	return os.NewFile(uintptr(file), "marker of a server's connection"), from, nil
}

// take returns the connection that a marker stands for, and forgets the marker.
func (r *relays) take(from netip.AddrPort) (marked, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, is := r.marked[from]
	delete(r.marked, from)
	return m, is
}

// exchangeExpected returns the connection that a program gets when it has accepted one from an
// address, and the name of the peer.
func (e call) exchangeExpected(listener *socket, file int, from netip.AddrPort) (int, netip.AddrPort) {
	m, is := e.relays.take(from)
	if !is {
		return file, from
	}
	reset(file)
	if err := e.copyOptions(listener, m.conn); err != nil {
		e.Log.Warn("connection has not the options of its listener", "peer", m.peer, "err", err)
	}
	return m.conn, e.peerName4(m.peer)
}
