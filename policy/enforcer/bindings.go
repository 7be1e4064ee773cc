package enforcer

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/policy"
)

// AllowBind lets a host socket make one bind, and sets the name that the socket shows. It has to be
// called before the bind, by the process that binds for the program. If the port was 0, it has to
// be called again with the port that the kernel chose: the binding counts only as long as the
// socket has the binding's port.
func (e *Enforcement) AllowBind(sock int, b policy.Binding) error {
	row := bpf.PolicyBinding{
		Host:     wordsOf(b.Host.Addr()),
		View:     wordsOf(b.View.Addr()),
		HostPort: b.Host.Port(),
		ViewPort: b.View.Port(),
	}
	row.Ingress, row.Private, row.Published = boolByte(b.Ingress), boolByte(b.Private), boolByte(b.Published.IsValid())
	row.Named, row.Netns, row.Call, row.Rule = b.Named, b.Netns, b.Call, uint32(b.Rule)
	err := e.remember(sock, b)
	if err == nil {
		err = e.bind(sock, row)
	}
	if err == nil {
		err = e.second(sock, b)
	}
	if err != nil {
		return fmt.Errorf("allow bind to %s: %w", b.Host, err)
	}
	return nil
}

// bind notes the binding that a socket may make, unless the socket is another container's. For such
// a socket, the note of that container's supervisor holds.
func (e *Enforcement) bind(sock int, row bpf.PolicyBinding) error {
	var there bpf.PolicyBinding
	if err := e.set.BindingBySocket.Lookup(uint32(sock), &there); err == nil && there.Container != e.id {
		return fmt.Errorf("the socket is another container's: %w", unix.EPERM)
	}
	row.Container = e.id
	return putInSocket(e.set.BindingBySocket, sock, row)
}

// remember makes the table of peers that a UDP server may answer, before the server is bound.
func (e *Enforcement) remember(sock int, b policy.Binding) error {
	if !b.Ingress && !b.Published.IsValid() {
		return nil
	}
	protocol, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_UDP {
		return err
	}
	return e.makeTable(peersTable)
}

// busyTries is the number of attempts on a socket's storage while another call of the program on
// the same socket keeps the storage busy.
const busyTries = 100

func putInSocket(m *ebpf.Map, sock int, row any) (err error) {
	for range busyTries {
		if err = m.Put(uint32(sock), row); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return err
}

// Bound tells whether AllowBind was called for a host socket, and ForgetBind was not.
func (e *Enforcement) Bound(sock int) bool {
	_, found := e.binding(sock)
	return found
}

// BoundTo returns the address that AllowBind let a host socket bind.
func (e *Enforcement) BoundTo(sock int) (netip.AddrPort, bool) {
	row, found := e.binding(sock)
	return netip.AddrPortFrom(addrOf(row.Host), row.HostPort), found
}

// BoundBy tells whether AllowBind let a host socket bind in answer to a call.
func (e *Enforcement) BoundBy(sock int, call uint64) bool {
	row, found := e.binding(sock)
	return found && row.Call == call
}

// Serve lets the container's programs reach a server on their own loopback. AllowBind has let the
// server bind the host's address, in the namespace with the cookie netns.
func (e *Enforcement) Serve(protocol int, b policy.Binding, netns uint64) error {
	kind := uint8(served6)
	if b.Host.Addr().Unmap().Is4() {
		kind = served4
	}
	row := bpf.PolicyLocation{Addr: wordsOf(b.Host.Addr()), Port: b.Host.Port(), Netns: netns}
	var err error
	if e.loopback != nil {
		err = e.serveOnLoopback(protocol, kind, b, row)
	} else {
		err = e.rows.services.put(e.portKey(kind, protocol, b.View.Port()), row)
	}
	if err != nil {
		return fmt.Errorf("let programs reach their server at %s: %w", b.Host, err)
	}
	return nil
}

// OWNER_BITS of the BPF programs, and KEY_BITS of the keys that are looked up as a whole.
const (
	ownerBits   = 32
	numberBits  = ownerBits + 32
	serviceBits = ownerBits + 32
	senderBits  = 32
)

// Services returns the services for which Serve was called, by this process or an earlier one.
func (e *Enforcement) Services() ([]policy.Service, error) {
	var list []policy.Service
	rows := e.services()
	for _, key := range rows.list() {
		var at bpf.PolicyLocation
		if key.Kind > served4 {
			continue
		}
		if err := rows.lookup(key, &at); err != nil {
			return nil, fmt.Errorf("read services: %w", err)
		}
		list = append(list, policy.Service{
			Protocol: int(key.Protocol), Port: key.Port, Is4: key.Kind == served4,
			Host: netip.AddrPortFrom(addrOf(at.Addr), at.Port), Netns: at.Netns,
		})
	}
	return list, nil
}

// Served tells whether Serve was called for an address of the host's, or for its port on all
// addresses. It does not tell which socket has the port by now.
func (e *Enforcement) Served(protocol int, host netip.AddrPort) bool {
	rows := e.services()
	for _, key := range rows.list() {
		var at bpf.PolicyLocation
		if int(key.Protocol) != protocol || key.Kind > served4 || rows.lookup(key, &at) != nil {
			continue
		}
		any := at.Addr == wordsOf(netip.IPv6Unspecified()) || at.Addr == wordsOf(netip.IPv4Unspecified())
		if at.Port == host.Port() && (any || at.Addr == wordsOf(host.Addr())) {
			return true
		}
	}
	return false
}

// NoteAnyPort notes whether the kernel or the program chooses the port of a socket in the
// container's own namespace.
func (e *Enforcement) NoteAnyPort(sock int, any bool) error {
	row, err := e.held(sock)
	if err != nil || row.AnyPort == boolToWord(any) && row.Container == e.id {
		return err
	}
	row.AnyPort, row.Container = boolToWord(any), e.id
	if err := putInSocket(e.set.HeldBySocket, sock, row); err != nil {
		return fmt.Errorf("note who chooses a socket's port: %w", err)
	}
	return nil
}

// AnyPort tells whether the kernel chose the port of a socket in the container's own
// namespace.
func (e *Enforcement) AnyPort(sock int) bool {
	row, err := e.held(sock)
	return err == nil && row.AnyPort != 0 && row.Container == e.id
}

func (e *Enforcement) held(sock int) (row bpf.PolicyHeld, err error) {
	err = e.set.HeldBySocket.Lookup(uint32(sock), &row)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	return row, err
}

// ForgetBind withdraws the permission of AllowBind after a failed bind.
func (e *Enforcement) ForgetBind(sock int) error {
	if !e.Bound(sock) {
		return nil
	}
	err := e.set.BindingBySocket.Delete(uint32(sock))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget allowed bind: %w", err)
	}
	return nil
}

// BoundByIngress tells whether AllowBind let a host socket bind an address that a rule lets the
// container serve. It does not tell whether the socket was bound, or is still bound.
func (e *Enforcement) BoundByIngress(sock int) bool {
	row, found := e.binding(sock)
	return found && row.Ingress != 0
}

func (e *Enforcement) binding(sock int) (row bpf.PolicyBinding, found bool) {
	err := e.set.BindingBySocket.Lookup(uint32(sock), &row)
	if err != nil || row.Container != e.id {
		return bpf.PolicyBinding{}, false
	}
	return row, true
}

// NoteTranslated notes that an IPv6 host socket replaces an IPv4 one. All processes then see its
// domain (SO_DOMAIN) as AF_INET.
func (e *Enforcement) NoteTranslated(sock int) error {
	row, err := e.held(sock)
	if err != nil {
		return err
	}
	row.Translated, row.Container = 1, e.id
	if err := putInSocket(e.set.HeldBySocket, sock, row); err != nil {
		return fmt.Errorf("note that a socket is translated: %w", err)
	}
	return nil
}
