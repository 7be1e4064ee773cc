package main

import (
	"fmt"
	"net/netip"
)

// Settings are what the host and its network have. In the second one the host and the remote have IPv6
// alone, and programs of guests know IPv4 alone.
const (
	plain      = "IPv4"
	translated = "IPv4 on IPv6"
)

// Modes are ways to the remote. Ratios are to the first.
const (
	outsourced = "outsourced" // the guest's sockets are the host's
	onTAP      = "tap"        // the guest's network card is a TAP device of the host
	onSlirp    = "slirp"      // the network card is behind libslirp
	proxyHost  = "tap+proxy"  // on TAP, with haproxy on the host
	proxyGuest = "tap+guest proxy"
	native     = "host" // a process of the host, by IPv4 or IPv6
	hostProxy  = "host+proxy"
)

var modeNames = []string{outsourced, onTAP, onSlirp, proxyHost, proxyGuest, native, hostProxy}

// explanations say what the modes are.
var explanations = []string{
	"outsourced: tsugiki guest; the guest has no network card",
	"tap: the paravirtual card (UML: vector; QEMU: virtio-net) on a TAP device, whose packets the host routes",
	"slirp: the card behind libslirp (UML: slirp4netns on a bridge with the TAP device; QEMU: -netdev user)",
	"tap+proxy, tap+guest proxy: haproxy between IPv4 and IPv6, on the host and in the guest; host+proxy: the same beside a process of the host",
	"host: the client and the server are processes of the host, with the protocol that the network has",
	"CPU processes: of the VMM with the guest in it, of tsugiki guest attach, slirp4netns or haproxy; of the program, where it is on the host. CPU machine: all of the host, with the remote and everybody else",
}

// way is a way of programs to the remote, and back.
type way struct {
	setting, mode string
	place         place
	remote        host
	streams       int        // process of the remote's server, for this way alone
	dial          netip.Addr // of the remote's servers, as programs of the way name it
	port          uint16     // of the first of three: the remote's two servers, the way's own one
	listen        netip.Addr // where the way's own server listens
	reach         netip.Addr // where the remote's client finds it
	setUp         []string   // lines for the guest's shell
	spend         []int      // processes that carry its bytes
}

// Ports of a way, behind its first.
const (
	streamPort = iota
	echoPort
	ownPort
	portsOfWay
)

func (w *way) at(which uint16) string { return fmt.Sprint(w.port + which) }

const firstPort = 5000

// Addresses of guests, behind those of testkit.
var (
	loopback4   = netip.MustParseAddr("127.0.0.1")
	wildcard4   = netip.IPv4Unspecified()
	guests4     = netip.MustParsePrefix("10.88.0.0/16")
	guests6     = netip.MustParsePrefix("2001:db8:88::/48")
	nat64       = netip.MustParsePrefix("2001:db8:64::/96")
	nat64Remote = netip.MustParseAddr("2001:db8:64::198.51.100.2") // what testkit.RemoteAddr4 is on a host without IPv4
	slirpGuest  = netip.MustParseAddr("10.0.2.15")
	slirpHost   = netip.MustParseAddr("10.0.2.2")
)

// link4 and link6 are the ends of a guest's link: 1 is the host's, 2 the guest's.
func link4(number, end int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 88, byte(number), byte(end)})
}

func link6(number, end int) netip.Addr {
	a := guests6.Addr().As16()
	a[7], a[15] = byte(number), byte(end)
	return netip.AddrFrom16(a)
}
