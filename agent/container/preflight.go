package container

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/policy"
)

// checkAddress checks that the host has the address of an endpoint.
func checkAddress(ep *endpoint.Endpoint, ns *netns.NS) error {
	if ep.Type == endpoint.Unix {
		return nil
	}
	err := ns.Do(func() error { return tryBind(ep.Addr, 0, unix.SOCK_DGRAM) })
	switch {
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("endpoint %s: the host has no address %s; add it, or name one that it has", ep.Name, ep.Addr)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("endpoint %s: the host has no %s", ep.Name, ep.Type)
	case err != nil:
		return fmt.Errorf("endpoint %s: try address %s: %w", ep.Name, ep.Addr, err)
	}
	return nil
}

// checkPorts checks that the ports of an endpoint's rules are free. It skips ports that the
// container itself has bound, of which ours tells. It skips ranges too: the program takes one port
// of them.
func checkPorts(t *policy.Table, ep *endpoint.Endpoint, ns *netns.NS, ours func(protocol int, at netip.AddrPort) bool) error {
	for _, r := range t.IngressRules() {
		if r.Endpoint != ep || ep.Type == endpoint.Unix || r.Ports.Size() > 1 {
			continue
		}
		port := r.HostPort(r.Ports.First)
		at := netip.AddrPortFrom(ep.Addr, port)
		for _, p := range []struct {
			typ, protocol int
			name          string
		}{{unix.SOCK_STREAM, unix.IPPROTO_TCP, "TCP"}, {unix.SOCK_DGRAM, unix.IPPROTO_UDP, "UDP"}} {
			if !r.Protocol.Meets(policy.Protocol(p.protocol)) {
				continue
			}
			err := ns.Do(func() error { return tryBind(ep.Addr, port, p.typ) })
			if errors.Is(err, unix.EADDRINUSE) && ours(p.protocol, at) {
				continue
			}
			if errors.Is(err, unix.EADDRINUSE) {
				return fmt.Errorf("endpoint %s: %s port %d of %s is taken on the host; stop what listens there, or choose another port",
					ep.Name, p.name, port, ep.Addr)
			}
			if err != nil {
				return fmt.Errorf("endpoint %s: try %s port %d: %w", ep.Name, p.name, port, err)
			}
		}
	}
	return nil
}

// hostPorts reads which ports the kernel of a namespace gives to sockets that ask for none, and
// which ports it keeps for sockets that name them (ip-sysctl: ip_local_port_range,
// ip_local_reserved_ports).
func hostPorts(ns *netns.NS) (ephemeral endpoint.PortRange, kept []endpoint.PortRange, err error) {
	err = ns.Do(func() error {
		local, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
		if err == nil {
			_, err = fmt.Sscan(string(local), &ephemeral.First, &ephemeral.Last)
		}
		if err != nil {
			return err
		}
		reserved, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_reserved_ports")
		for text := range strings.FieldsFuncSeq(string(reserved), func(r rune) bool { return r == ',' || r == '\n' }) {
			r, perr := endpoint.ParsePortRange(text)
			kept, err = append(kept, r), errors.Join(err, perr)
		}
		return err
	})
	if err != nil {
		return ephemeral, nil, fmt.Errorf("find the host's ephemeral ports: %w", err)
	}
	return ephemeral, kept, nil
}

// tryBind binds a socket and closes it.
func tryBind(addr netip.Addr, port uint16, typ int) error {
	family := unix.AF_INET6
	var sa unix.Sockaddr = &unix.SockaddrInet6{Port: int(port), Addr: addr.As16()}
	if addr.Is4() {
		family = unix.AF_INET
		sa = &unix.SockaddrInet4{Port: int(port), Addr: addr.As4()}
	}
	s, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if typ == unix.SOCK_STREAM {
		// Connections in TIME_WAIT do not make a port taken.
		if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
	}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return err
		}
	}
	return unix.Bind(s, sa)
}
