package guest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// isOwn tells whether an address is the device's: the socket's datagrams go to the host.
func (c *control) isOwn(addr netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, own := range c.own {
		if own == addr.Unmap() {
			return true
		}
	}
	return false
}

// connectDatagrams answers connect(2) of a UDP socket. The supervisor makes the call. If that makes the
// socket one whose datagrams go to the host, the host is asked whether they may.
func (s *supervisor) connectDatagrams(c *caller, k *kind) (answer, error) {
	to, is, err := c.name(c.Args[1], c.number(2))
	if err != nil || !is || staysInGuest(to) {
		return carryOn, err
	}
	if addr := to.Addr(); addr.IsLinkLocalUnicast() || addr.IsMulticast() {
		return carryOn, nil // of a link of the guest's
	}
	if k.family == unix.AF_INET && !to.Addr().Is4() || k.family == unix.AF_INET6 && to.Addr().Is4() {
		return carryOn, nil // the kernel refuses it, or has it as an address of IPv4
	}
	former, ferr := unix.Getpeername(k.file)
	if err := unix.Connect(k.file, sockaddr.Of(to)); err != nil {
		return answer{}, err // the program's errno
	}
	own, err := ownName(k.file)
	if err != nil || !s.control.isOwn(own.Addr()) {
		return answer{}, faultOf(err)
	}
	_, errno, err := s.seenAs(own.Port(), to)
	if err != nil || errno == 0 {
		return answer{}, faultOf(err)
	}
	if ferr == nil {
		err = unix.Connect(k.file, former)
	} else {
		err = disconnect(k.file)
	}
	return answer{errno: errno}, faultOf(err)
}

// disconnect takes a UDP socket's peer away.
func disconnect(file int) error {
	unspec := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(file), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec))
	if errno != 0 {
		return errno
	}
	return nil
}

// ownName is the guest's own name of a socket.
func ownName(file int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(file)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return nameOf(sa), nil
}

func nameOf(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// seenAs asks the host by which name a peer sees a port of the guest's, or why it does not.
func (s *supervisor) seenAs(port uint16, peer netip.AddrPort) (name netip.AddrPort, errno unix.Errno, err error) {
	plain := netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
	reply, err := s.control.call(&wire.Message{Op: wire.Connect, Type: unix.SOCK_DGRAM, Number: uint32(port), Name: plain})
	if err != nil {
		return name, 0, err
	}
	name = reply.Name
	if peer.Addr().Is4In6() && name.Addr().Is4() {
		name = netip.AddrPortFrom(netip.AddrFrom16(name.Addr().As16()), name.Port())
	}
	return name, unix.Errno(reply.Errno), nil
}

// bindDatagrams answers bind(2) of a UDP socket: the host has a socket for it if a rule covers the address.
// Then the guest's kernel carries on.
func (s *supervisor) bindDatagrams(c *caller, k *kind) (answer, error) {
	at, is, err := c.name(c.Args[1], c.number(2))
	if err != nil || !is || at.Port() == 0 || at.Addr().Unmap().IsLoopback() {
		return carryOn, err
	}
	if own, err := ownName(k.file); err != nil || own.Port() != 0 {
		return carryOn, faultOf(err) // it is bound
	}
	m := &wire.Message{Op: wire.Bind, Type: unix.SOCK_DGRAM, Name: at, Flags: flagsOf(at)}
	if only, err := unix.GetsockoptInt(k.file, unix.SOL_IPV6, unix.IPV6_V6ONLY); err == nil && only != 0 {
		m.Options = []wire.Option{{Level: unix.SOL_IPV6, Name: unix.IPV6_V6ONLY, Value: []byte{1, 0, 0, 0}}}
	}
	s.control.noteBind(at.Port())
	reply, err := s.control.call(m)
	if err != nil {
		return carryOn, faultOf(err)
	}
	return answer{errno: unix.Errno(reply.Errno), proceed: reply.Errno == 0}, nil
}

// nameDatagrams answers getsockname(2) of a UDP socket. The guest's kernel knows the names of all that do
// not send to the host.
func (s *supervisor) nameDatagrams(c *caller, k *kind) (answer, error) {
	own, err := ownName(k.file)
	if err != nil || !s.control.isOwn(own.Addr()) {
		return carryOn, faultOf(err)
	}
	peer, err := unix.Getpeername(k.file)
	if err != nil {
		return carryOn, nil //nolint:nilerr // it has none
	}
	name, errno, err := s.seenAs(own.Port(), nameOf(peer))
	if err != nil || errno != 0 || !name.IsValid() {
		return carryOn, faultOf(err)
	}
	return answer{}, c.give(sockaddr.Bytes(name), c.Args[1], c.Args[2], true)
}

// bindPatience is how long the kernel may take to carry on with a bind(2) of a UDP socket. Until then its
// program counts as there.
const bindPatience = 10 * time.Second

// noteBind notes that a program is about to bind a port.
func (c *control) noteBind(port uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, since := range c.binding {
		if time.Since(since) > bindPatience {
			delete(c.binding, other)
		}
	}
	c.binding[port] = time.Now()
}

// hasDatagrams tells whether a UDP socket of the guest's has a port, or is about to have it. A socket of
// IPv6 may have the port of IPv4, too.
func (c *control) hasDatagrams(port uint16, six bool) bool {
	c.mu.Lock()
	since, binding := c.binding[port]
	c.mu.Unlock()
	if binding && time.Since(since) <= bindPatience {
		return true
	}
	for _, path := range []string{"/proc/net/udp", "/proc/net/udp6"} {
		if six && path == "/proc/net/udp" {
			continue
		}
		b, err := os.ReadFile(path)
		if err == nil && listsPort(b, port) || err != nil && !errors.Is(err, os.ErrNotExist) {
			return true
		}
	}
	return false
}

// listsPort tells whether a local address in a table of sockets (proc(5), /proc/net/udp) has a port.
func listsPort(table []byte, port uint16) bool {
	want := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasSuffix(f[1], want) {
			return true
		}
	}
	return false
}
