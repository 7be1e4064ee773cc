package host

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// # Datagrams
//
// UDP sockets of a guest are its own kernel's. One supervisor sends what leaves the guest as frames of
// package wire, over one connection. Each port of the guest has a socket here, for each family: a client's
// is made by its first datagram, with a port that the host's kernel chooses, and goes when the guest has
// sent nothing for portIdle, as in a NAT (RFC 4787 section 4.3). A server's is made by its bind, if a rule
// covers that. It goes when its supervisors say that no program has the port, or end: each supervisor whose
// program has asked for the port keeps it, because only the guest's kernel knows which of them has it.
//
// Room is bounded: beyond portsMax the client that was silent for longest gives way. All sockets share
// one buffer. While the guest does not read its frames, or has no connection because one supervisor takes
// over from another, datagrams wait in the kernel's queues, which drop what does not fit.

// Limits of a guest's datagrams.
const (
	portsMax   = 1024
	serversMax = 512
	filesMax   = portsMax + 256 // with those that end
	// The first portsLarge sockets have the kernel's usual room for datagrams that wait. Others have
	// twice portSmall bytes.
	portsLarge = 128
	portSmall  = 16 << 10

	portIdle = 5 * time.Minute
	// sendPatience is how long a datagram may wait for room in the host's queues. Then it is lost.
	sendPatience = 100 * time.Millisecond
)

// portKey is a port of a guest.
type portKey struct {
	six    bool // of IPv6
	number uint16
}

// port is the socket of a guest's port.
type port struct {
	key     portKey
	file    *os.File
	raw     syscall.RawConn
	own     uint16           // port of the socket
	streams map[*stream]bool // of a server: whose bind it is; nil: a client. datagrams.mu guards it and binds
	binds   int              // of a server, after its first
	used    atomic.Int64     // when the guest has sent by it, in seconds
	asking  atomic.Bool      // the supervisor is being asked about it
}

// datagrams are the UDP sockets of a guest.
type datagrams struct {
	vm *VM

	mu    sync.Mutex // guards what follows
	ports map[portKey]*port
	files int // that are open: of ports, and of those that end
	// ending has servers that were removed and whose sockets are open: their ports of the host are not free.
	ending map[portKey]chan struct{}
	conn   net.Conn // to the guest; may be nil
	timer  *time.Timer
	over   bool
	change sync.Cond // of conn, and of ports that end

	out    sync.Mutex // held to write to the guest; guards buffer
	buffer []byte
}

// serve takes the guest's connection for datagrams. A later one takes the place of an earlier one. It counts
// as a control stream.
func (d *datagrams) serve(r *vsock.Request) {
	if !d.vm.enter() {
		d.vm.Log.Debug("guest has too many connections for datagrams")
		r.Refuse()
		return
	}
	defer d.vm.leave()
	conn, theirs, err := streamPair()
	if err != nil {
		d.vm.Log.Error("datagrams of a guest", "err", err)
		r.Refuse()
		return
	}
	d.mu.Lock()
	former, over := d.conn, d.over
	if !over {
		d.conn = conn
		d.change.Broadcast()
	}
	d.mu.Unlock()
	if over {
		conn.Close()
		unix.Close(theirs)
		r.Refuse()
		return
	}
	if former != nil {
		former.Close()
	}
	r.Accept(vsock.Socket{File: theirs})
	defer d.leave(conn)
	frames := wire.NewDatagramReader(conn)
	for {
		m, err := wire.ReadDatagram(frames)
		if err == nil {
			err = d.take(m)
		}
		if err != nil {
			d.vm.Log.Debug("datagrams of a guest have ended", "err", err)
			return
		}
	}
}

func (d *datagrams) leave(conn net.Conn) {
	conn.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn == conn {
		d.conn = nil
	}
}

// close ends all sockets.
func (d *datagrams) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	if d.conn != nil {
		d.conn.Close()
	}
	if d.timer != nil {
		d.timer.Stop()
	}
	for _, p := range d.ports {
		d.remove(p)
	}
}

// end ends the servers that are a control stream's alone.
func (d *datagrams) end(s *stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.ports {
		d.release(p, s)
	}
}

// release takes a server from a stream, and ends the server that is no other's. The caller holds mu.
func (d *datagrams) release(p *port, s *stream) {
	if !p.streams[s] {
		return
	}
	if delete(p.streams, s); len(p.streams) == 0 {
		d.remove(p)
	}
}

// remove ends a socket. The caller holds mu. Its file is open as long as the guest does not read what the
// socket has for it.
func (d *datagrams) remove(p *port) {
	if d.ports[p.key] != p {
		return
	}
	delete(d.ports, p.key)
	d.change.Broadcast()
	ended := make(chan struct{})
	if p.streams != nil {
		d.ending[p.key] = ended
	}
	go func() {
		p.file.Close()
		close(ended)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.files--
		if d.ending[p.key] == ended {
			delete(d.ending, p.key)
		}
	}()
}

// take takes a frame of the guest's. An errno is the program's; any other error is a fault of ours.
func (d *datagrams) take(m wire.Datagram) error {
	key := portKey{m.Peer.Addr().Is6(), m.Port}
	if m.Errno != 0 {
		d.refused(key)
		return nil
	}
	p, err := d.client(key, m.Peer)
	if err == nil {
		err = d.send(p, m)
	}
	if errno, is := errnoFor(err); is {
		d.tell(wire.Datagram{Errno: uint16(errno), Port: m.Port, Peer: m.Peer})
		return nil
	}
	return err
}

// socket makes a UDP socket. It is no program's handle: it has no number of the guest's.
func (d *datagrams) socket(six bool) (*handle, error) {
	maker, err := d.vm.Maker()
	if err != nil {
		return nil, err
	}
	kind := keeper.Kind{Family: unix.AF_INET, Type: unix.SOCK_DGRAM, Protocol: unix.IPPROTO_UDP}
	if six {
		kind.Family = unix.AF_INET6
	}
	sock, err := maker.Socket(kind)
	if err != nil {
		return nil, err
	}
	if six {
		if err := unix.SetsockoptInt(sock, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			unix.Close(sock)
			return nil, err
		}
	}
	return &handle{vm: d.vm, id: 1, sock: sock}, nil
}

// client returns the socket of a port, and makes one by which to is reached if there is none.
func (d *datagrams) client(key portKey, to netip.AddrPort) (*port, error) {
	d.mu.Lock()
	p := d.ports[key]
	d.mu.Unlock()
	if p != nil {
		p.used.Store(time.Now().Unix())
		return p, nil
	}
	h, err := d.socket(key.six)
	if err != nil {
		return nil, err
	}
	any := netip.IPv4Unspecified()
	if key.six {
		any = netip.IPv6Unspecified()
	}
	if err = h.make(d.vm.Engine.Bind, unix.Bind, addrPort(any)); err == nil {
		err = finish(d.vm.Engine.Send(h.program(), int(h.id), to))
	}
	if err != nil && !errors.Is(err, errCarryOn) {
		unix.Close(h.sock)
		return nil, err
	}
	return d.add(key, h, nil)
}

// server makes the socket of a port whose bind a rule covers. made says that there was none: else the
// guest's kernel decides whether programs share the port.
func (d *datagrams) server(at netip.AddrPort, s *stream) (made *port, err error) {
	key := portKey{at.Addr().Is6(), at.Port()}
	d.mu.Lock()
	p := d.ports[key]
	servers := 0
	for _, other := range d.ports {
		if other.streams != nil {
			servers++
		}
	}
	shared := p != nil && p.streams != nil
	if shared {
		p.streams[s] = true
		p.binds++
	}
	ending := d.ending[key]
	d.mu.Unlock()
	if shared {
		return nil, d.keep(s)
	}
	if servers >= serversMax {
		return nil, errFull
	}
	if ending != nil {
		select {
		case <-ending:
		case <-time.After(alivePatience): // the guest does not read
			return nil, unix.EADDRINUSE
		}
	}
	h, err := d.socket(key.six)
	if err != nil {
		return nil, err
	}
	err = finish(d.vm.Engine.Bind(h.program(), int(h.id), at))
	if errors.Is(err, errCarryOn) { // the rule has gone
		err = unix.EADDRNOTAVAIL
	}
	if err != nil {
		unix.Close(h.sock)
		return nil, err
	}
	if made, err = d.add(key, h, s); err != nil {
		return nil, err
	}
	return made, d.keep(s)
}

// keep lets a stream that is over have no servers: it may have ended while one was made.
func (d *datagrams) keep(s *stream) error {
	s.mu.Lock()
	over := s.over
	s.mu.Unlock()
	if !over {
		return nil
	}
	d.end(s)
	return unix.EBADF
}

// add makes a socket that of a port, and owns it. s is a server's stream; nil: it is a client.
func (d *datagrams) add(key portKey, h *handle, s *stream) (*port, error) {
	level, option := unix.SOL_IP, unix.IP_RECVERR
	if key.six {
		level, option = unix.SOL_IPV6, unix.IPV6_RECVERR
	}
	_ = unix.SetsockoptInt(h.sock, level, option, 1) // without it, programs are not told errors
	name, err := unix.Getsockname(h.sock)
	if err == nil {
		err = unix.SetNonblock(h.sock, true)
	}
	if err != nil {
		unix.Close(h.sock)
		return nil, err
	}
	p := &port{key: key, file: os.NewFile(uintptr(h.sock), "datagrams"), own: nameOf(name).Port()}
	if s != nil {
		p.streams = map[*stream]bool{s: true}
	}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		p.file.Close()
		return nil, err
	}
	p.used.Store(time.Now().Unix())
	d.mu.Lock()
	defer d.mu.Unlock()
	switch former := d.ports[key]; {
	case former != nil && s == nil:
		p.file.Close()
		return former, nil
	case d.over || d.files >= filesMax:
		p.file.Close()
		return nil, errFull
	case former != nil:
		d.remove(former)
	case len(d.ports) >= portsMax && !d.makeRoom():
		p.file.Close()
		return nil, errFull
	}
	d.files++
	if len(d.ports) >= portsLarge {
		_ = p.raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, portSmall) })
	}
	d.ports[key] = p
	if d.timer == nil {
		d.timer = time.AfterFunc(portIdle, func() { d.expire(time.Now()) })
	}
	go d.receive(p)
	return p, nil
}

// makeRoom ends the client that was silent for longest; false if there is none. The caller holds mu.
func (d *datagrams) makeRoom() bool {
	var oldest *port
	for _, p := range d.ports {
		if p.streams == nil && (oldest == nil || p.used.Load() < oldest.used.Load()) {
			oldest = p
		}
	}
	if oldest != nil {
		d.remove(oldest)
	}
	return oldest != nil
}

// expire ends clients that are idle at a time, and has supervisors asked about such servers.
func (d *datagrams) expire(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.ports {
		switch idle := now.Sub(time.Unix(p.used.Load(), 0)) >= portIdle; {
		case idle && p.streams == nil:
			d.remove(p)
		case idle:
			go d.check(p)
		}
	}
	d.timer = nil
	if len(d.ports) > 0 && !d.over {
		d.timer = time.AfterFunc(portIdle, func() { d.expire(time.Now()) })
	}
}

// refused hears that the guest has nobody at a port. Only of a server that means that its program has
// gone: a client may hear one peer alone.
func (d *datagrams) refused(key portKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.ports[key]; p != nil && p.streams != nil {
		go d.check(p)
	}
}

// check ends a server whose program has gone. One question about a server is enough.
func (d *datagrams) check(p *port) {
	if !p.asking.CompareAndSwap(false, true) {
		return
	}
	defer p.asking.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), alivePatience)
	defer cancel()
	question := wire.Message{Type: unix.SOCK_DGRAM, Number: uint32(p.key.number)}
	if p.key.six {
		question.Flags = wire.Flag6
	}
	d.mu.Lock()
	asked, binds := maps.Clone(p.streams), p.binds
	d.mu.Unlock()
	alive := false
	for s := range asked {
		if alive = s.isAlive(ctx, question); alive {
			break
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	alive = alive || p.binds != binds // a program has bound it since the supervisor looked
	if p.used.Store(time.Now().Unix()); !alive {
		d.remove(p)
	}
}
