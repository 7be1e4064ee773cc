package graft

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// anyPortTries is the number of ports to try for a program that binds port 0.
const anyPortTries = 1024

// bindAnyPort binds a host socket to a port of the kernel's choice, which it shares with no other
// socket. If the kernel might choose a port that is reserved for another container, the engine
// chooses the port, because a socket cannot be bound twice.
func (e *Engine) bindAnyPort(file int, place Place, b policy.Binding) error {
	any, err := anyPortsOf(place)
	if err != nil {
		return err
	}
	p, err := portOf(file, place.Cookie(), b.Host)
	if err != nil {
		return err
	}
	share := reuseOf(file)
	share.undo(file) // a UDP socket could share a port that is in use
	defer share.apply(file)
	if !e.Ports.Reserved(p, any.PortRange) {
		return e.letKernelChoose(file, p, b)
	}
	size := any.Size()
	first := rand.IntN(size)
	for i := range min(size, anyPortTries) {
		port := any.First + uint16((first+i*stride(size))%size)
		if any.reserves(port) {
			continue
		}
		b.Host = netip.AddrPortFrom(b.Host.Addr(), port)
		p.At = netip.AddrPortFrom(p.At.Addr(), port)
		err = refusal(e.Ports.Bind(p, nil, func() error { return e.bindAllowed(file, b, reuse{}) }))
		var r refusalError
		if !errors.As(err, &r) || r.errno != unix.EADDRINUSE {
			return err
		}
	}
	return refusalError{unix.EADDRINUSE}
}

// letKernelChoose binds a socket to port 0.
func (e *Engine) letKernelChoose(file int, p Port, b policy.Binding) error {
	if err := e.bindAllowed(file, b, reuse{}); err != nil {
		return err
	}
	port, err := e.allowChosen(file, b)
	if err != nil {
		return err
	}
	p.At = netip.AddrPortFrom(p.At.Addr(), port)
	err = e.Ports.Bind(p, nil, func() error { return nil })
	if errors.Is(err, unix.EADDRINUSE) {
		return nil // it was reserved after it was in use
	}
	return err
}

// stride returns a step that visits each of size ports once, with few neighbours in a row.
func stride(size int) int {
	const prime = 7919
	if size%prime == 0 {
		return 1
	}
	return prime
}

// anyPorts are the ports that the kernel gives to sockets that ask for none (ip-sysctl,
// ip_local_port_range), except those that the administrator has reserved.
type anyPorts struct {
	endpoint.PortRange
	reserved []endpoint.PortRange
}

func (a anyPorts) reserves(port uint16) bool {
	for _, r := range a.reserved {
		if r.Contains(port) {
			return true
		}
	}
	return false
}

func anyPortsOf(place Place) (any anyPorts, err error) {
	var local, reserved []byte
	err = place.Do(func() (err error) {
		if local, err = os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
			reserved, err = os.ReadFile("/proc/sys/net/ipv4/ip_local_reserved_ports")
		}
		return err
	})
	if err == nil {
		any, err = parseAnyPorts(string(local), string(reserved))
	}
	if err != nil {
		return any, fmt.Errorf("find the host's ephemeral ports: %w", err)
	}
	return any, nil
}

// parseAnyPorts reads "32768 60999" and "8080,9000-9010".
func parseAnyPorts(local, reserved string) (any anyPorts, err error) {
	if any.PortRange, err = portRange(strings.Fields(local)); err != nil {
		return any, err
	}
	for _, text := range strings.FieldsFunc(strings.TrimSpace(reserved), func(r rune) bool { return r == ',' }) {
		r, err := portRange(strings.Split(text, "-"))
		if err != nil {
			return any, err
		}
		any.reserved = append(any.reserved, r)
	}
	return any, nil
}

// portRange reads a first and a last port, or a single port.
func portRange(ports []string) (r endpoint.PortRange, err error) {
	if len(ports) < 1 || len(ports) > 2 {
		return r, fmt.Errorf("%q is no range of ports", ports)
	}
	for _, p := range []struct {
		text string
		to   *uint16
	}{{ports[0], &r.First}, {ports[len(ports)-1], &r.Last}} {
		n, err := strconv.ParseUint(p.text, 10, 16)
		if err != nil {
			return r, err
		}
		*p.to = uint16(n)
	}
	if r.First > r.Last {
		return r, fmt.Errorf("%q is no range of ports", ports)
	}
	return r, nil
}
