package graft

import (
	"errors"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// acceptTries is how many clients are refused in one call because there is no room for them.
const acceptTries = 16

// acceptRelayedAtOnce is acceptAtOnce for a server whose connections are relayed.
func (e call) acceptRelayedAtOnce(listener *socket) (file int, peer netip.AddrPort, waits bool, err error) {
	for range acceptTries {
		file, peer, waits, err = e.acceptAtOnce(listener.file)
		if err != nil {
			return -1, peer, waits, err
		}
		file, err = e.acceptRelayed(listener, file, peer)
		if err != nil {
			e.Log.Error("accept a relayed connection", "peer", peer, "err", err)
			return -1, peer, waits, unix.ECONNABORTED
		}
		if file >= 0 {
			return file, peer, waits, nil
		}
	}
	return -1, peer, waits, unix.EAGAIN
}

// acceptRelayed connects a socket for the program with the peer of a connection that a server has
// accepted, and returns the socket. It owns the connection. If there is no room, it returns -1.
func (e call) acceptRelayed(listener *socket, file int, peer netip.AddrPort) (int, error) {
	at, err := localName(file) // by the kernel: with the view's port
	if err == nil {
		err = unix.SetNonblock(file, true)
	}
	f := os.NewFile(uintptr(file), "relayed connection")
	defer f.Close()
	real, known := e.Enforcer.BoundTo(file)
	conn, cerr := net.FileConn(f)
	if err = errors.Join(err, cerr); err != nil {
		return -1, err
	}
	leave, ok := e.relays.enter()
	if !ok {
		e.Log.Warn("no room for another relayed connection", "peer", peer, "limit", relayedMax)
		e.Gateway.Full(conn, at.Port())
		return -1, nil
	}
	name := e.peerName4(peer)
	if peer.Addr().Is4In6() { // the kernel programs have named the virtual address
		if v6, known := e.Translator.V6(peer.Addr().Unmap()); known {
			peer = netip.AddrPortFrom(v6, peer.Port())
		}
	}
	inside, program, err := e.insert(listener, netip.AddrPortFrom(e.Translation.Own, at.Port()), name)
	if err == nil {
		c := Relayed{Program: inside, Peer: conn, ServerInside: true, Port: at.Port(), PeerAddr: peer, PeerAddr4: name}
		if known && !real.Addr().IsUnspecified() { // getsockname(2) may say another
			c.Own6 = real.Addr()
		}
		if err = e.relays.begin(func() {
			defer leave()
			e.carry(c)
		}); err == nil {
			return program, nil
		}
		inside.Close()
		unix.Close(program)
	}
	leave()
	conn.Close()
	return -1, err
}

// insert makes a connection between a program, whose listener has accepted it, and the relay.
func (e call) insert(listener *socket, own, peer netip.AddrPort) (net.Conn, int, error) {
	k, err := e.makeSink()
	if err != nil {
		return nil, -1, err
	}
	file, err := e.newSocket(keeper.Kind{Family: unix.AF_INET, Type: unix.SOCK_STREAM, Protocol: unix.IPPROTO_TCP})
	if err != nil {
		return nil, -1, err
	}
	var inside net.Conn
	if err = e.copyAllOptions(listener, file); err == nil {
		var w waitingSocket
		if w, err = e.wait(file, k, peer); err == nil {
			inside, err = e.meet(w)
		}
	}
	if err == nil {
		err = established(file)
	}
	if err == nil { // not before: wait has asked for the port that the socket has
		err = e.Enforcer.StandIn(file, k.at.Port(), own, peer)
	}
	if err != nil {
		if inside != nil {
			inside.Close()
		}
		unix.Close(file)
		return nil, -1, err
	}
	return inside, file, nil
}

// established waits until a socket that a peer on this machine has connected to is connected.
func established(file int) error {
	const patience = 1000 // ms
	list := []unix.PollFd{{Fd: int32(file), Events: unix.POLLOUT}}
	for {
		switch n, err := unix.Poll(list, patience); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0 || list[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0:
			return unix.ECONNABORTED
		default:
			return nil
		}
	}
}

// published returns how a rule publishes a port of a program's server at an IPv6 address.
func (e *Engine) published(at netip.Addr) func(port uint16) (uint16, bool) {
	return func(port uint16) (uint16, bool) {
		ep, host := e.begin().Table.Ingress(policy.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), port))
		if ep == nil || ep.Netns != "" || ep.Addr != at && ep.Addr != netip.IPv6Unspecified() {
			return 0, false
		}
		return host, true
	}
}
