package host

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// make has the engine make a call, or makes it where the kernel carries on.
func (h *handle) make(engine func(graft.Program, int, netip.AddrPort) (graft.Answer, error), call func(int, unix.Sockaddr) error, name netip.AddrPort) error {
	err := finish(engine(h.program(), int(h.id), name))
	if errors.Is(err, errCarryOn) {
		err = call(h.sock, sockaddr.Of(name))
	}
	return err
}

// errnoFor returns the errno of an error that is the program's.
func errnoFor(err error) (errno unix.Errno, is bool) {
	var refused *keeper.SocketError
	switch {
	case errors.As(err, &refused):
		return unix.Errno(refused.Errno), true
	case errors.Is(err, errFull):
		return unix.ENOBUFS, true
	}
	return errno, errors.As(err, &errno)
}

// frameMax is the size of the longest frame, and more.
const frameMax = wire.DatagramMax + 64

// receive gives the guest what comes to a socket, until the socket ends.
func (d *datagrams) receive(p *port) {
	_ = p.raw.Read(func(fd uintptr) bool {
		for d.await(p) && d.batch(p, int(fd)) {
		}
		return false
	})
}

// await waits until the guest has a connection; false if the port ends before.
func (d *datagrams) await(p *port) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.conn == nil && d.ports[p.key] == p {
		d.change.Wait()
	}
	return d.ports[p.key] == p
}

// batch gives the guest datagrams that have come to a socket; false if there are no more.
func (d *datagrams) batch(p *port, file int) (more bool) {
	d.out.Lock()
	defer d.out.Unlock()
	if d.buffer == nil {
		d.buffer = make([]byte, 0, 4*frameMax)
	}
	b := d.buffer
	for more = true; more && cap(b)-len(b) >= frameMax; {
		const head = frameMax - wire.DatagramMax
		room := b[len(b)+head : len(b)+frameMax]
		n, from, err := unix.Recvfrom(file, room, unix.MSG_DONTWAIT)
		switch {
		case err == nil:
			m := wire.Datagram{Port: p.key.number, Peer: nameOf(from), Bytes: room[:n]}
			if b, err = m.Append(b); err != nil {
				d.vm.Log.Debug("a datagram for a guest was dropped", "err", err)
			}
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			more = false
		default:
			b, _ = d.errors(p, file, b) // the call has taken the error, and no datagram
		}
	}
	d.write(b)
	return more
}

// write writes frames. It waits as long as the guest does not read. Without a connection they are lost.
// The caller holds out.
func (d *datagrams) write(b []byte) {
	d.mu.Lock()
	conn := d.conn
	d.mu.Unlock()
	if conn == nil || len(b) == 0 {
		return
	}
	if _, err := conn.Write(b); err != nil {
		conn.Close()
	}
}

// tell sends the guest one frame.
func (d *datagrams) tell(m wire.Datagram) {
	b, err := m.Append(nil)
	if err != nil {
		return
	}
	d.out.Lock()
	defer d.out.Unlock()
	d.write(b)
}

// sendsMax is how many times a datagram is sent while the kernel tells errors of earlier ones: its queue may
// have errors for several calls.
const sendsMax = 32

// send sends a datagram of the guest's. The kernel tells an error of an earlier datagram at the next call, which
// sends nothing. That goes to the guest as the other's if the queue of errors has it. The queue may have no
// room for it, so that an error is this datagram's only if the call gives it again.
func (d *datagrams) send(p *port, m wire.Datagram) error {
	var err, former error
	rerr := p.raw.Write(func(fd uintptr) bool {
		for range sendsMax {
			err = unix.Sendto(int(fd), m.Bytes, unix.MSG_DONTWAIT, sockaddr.Of(m.Peer))
			if errors.Is(err, unix.EAGAIN) {
				err = nil
				list := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
				if n, _ := unix.Poll(list, int(sendPatience.Milliseconds())); n > 0 {
					continue
				}
			}
			if err == nil {
				return true
			}
			frames, some := d.errors(p, int(fd), nil)
			switch {
			case some:
				d.out.Lock()
				d.write(frames)
				d.out.Unlock()
			case errors.Is(err, former):
				return true
			default:
				former = err
			}
		}
		if former == nil {
			err = nil // all were others': the datagram is lost
		}
		return true
	})
	if rerr != nil {
		return nil // the socket has ended meanwhile: the datagram is lost
	}
	return err
}

// errors appends frames with the errors that the kernel has of a socket's earlier datagrams (ip(7), IP_RECVERR).
func (d *datagrams) errors(p *port, file int, b []byte) (frames []byte, some bool) {
	const max = 64 // at once
	oob := make([]byte, 512)
	for range max {
		_, n, _, from, err := unix.Recvmsg(file, nil, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil {
			return b, some
		}
		errno, peer := errorOf(oob[:n]), nameOf(from)
		some = some || errno != 0
		if d.vm.Virtual != nil {
			peer = netip.AddrPortFrom(d.vm.Virtual(peer.Addr()), peer.Port())
		}
		m := wire.Datagram{Errno: errno, Port: p.key.number, Peer: peer}
		// EMSGSIZE says that a path has a smaller MTU, of which the kernel takes account from now on.
		if errno != 0 && unix.Errno(errno) != unix.EMSGSIZE {
			if added, err := m.Append(b); err == nil {
				b = added
			}
		}
	}
	return b, some
}

// errorOf returns the errno of a struct sock_extended_err (linux/errqueue.h) in control messages; 0 if
// there is none, or if a call of this host's has had it as its own errno.
func errorOf(oob []byte) uint16 {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for _, m := range list {
		is4 := m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_RECVERR
		is6 := m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if (is4 || is6) && len(m.Data) > 4 && m.Data[4] != unix.SO_EE_ORIGIN_LOCAL {
			return uint16(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}
