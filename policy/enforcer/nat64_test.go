package enforcer

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/translate"
)

// behind has a container that may ask some IPv6 hosts, and those of IPv4 that are behind a NAT64. A remote
// hears what is sent to any of the IPv4 hosts.
func behind(t *testing.T, prefix netip.Prefix, hosts []netip.Addr, rules []string, fn func(c *contained, remotes []int)) {
	t.Helper()
	n, err := translate.NewNAT64(prefix)
	if err != nil {
		t.Fatal(err)
	}
	containers(t, func(_ uint64, list []*contained) {
		c := list[0]
		if err := c.UseLoopback(7); err != nil {
			t.Fatal(err)
		}
		d, err := c.TranslateDatagrams(testPool)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		testkit.AddToLoopback(t, "2001:db8::1/128")
		remotes := make([]int, len(hosts))
		for i, host := range hosts {
			v6, ok := n.Embed(host)
			if !ok {
				t.Fatalf("%s is not behind %s", host, n)
			}
			testkit.AddToLoopback(t, v6.String()+"/128")
			remotes[i] = of(t, nil, unix.AF_INET6, unix.SOCK_DGRAM)
			if err := unix.Bind(remotes[i], sockaddr.Of(netip.AddrPortFrom(v6, 5353))); err != nil {
				t.Fatal(err)
			}
		}
		proxy := of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		c.private(t, proxy, unix.IPPROTO_UDP, netip.MustParseAddrPort("0.0.0.0:53"), 20000)
		way := VirtualHost{Source: netip.MustParseAddr("2001:db8::1"), Device: loopbackDevice}
		attached(t, errors.Join(d.LeadNAT64(prefix, n.OfInternet(), way), d.Begin(), d.Attach(loopbackDevice, -1)))
		fn(c, remotes)
	}, rules)
}

// Sockets send to an IPv4 host behind a NAT64, with a prefix of each length, and know it by its IPv4
// address.
func TestBehindNAT64(t *testing.T) {
	host := netip.MustParseAddrPort("192.88.33.201:5353")
	for _, text := range []string{"2001:db9::/32", "2001:db9:100::/40", "2001:db9:122::/48", "2001:db9:122:300::/56", "2001:db9:122:344::/64", "2001:db9:122:344::/96", "64:ff9b::/96"} {
		t.Run(text, func(t *testing.T) {
			prefix := netip.MustParsePrefix(text)
			behind(t, prefix, []netip.Addr{host.Addr()}, []string{"[" + prefix.String() + "]:5353=six"}, func(c *contained, remotes []int) {
				client, connected := of(t, c, unix.AF_INET, unix.SOCK_DGRAM), of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
				for range 2 {
					if err := unix.Sendto(client, []byte("sendto"), 0, sockaddr.Of(host)); err != nil {
						t.Fatal(err)
					}
					reads(t, remotes[0], "sendto")
				}
				if err := errors.Join(unix.Connect(connected, sockaddr.Of(host)), unix.Send(connected, []byte("connected"), 0)); err != nil {
					t.Fatal(err)
				}
				reads(t, remotes[0], "connected")
				if sa, err := unix.Getpeername(connected); err != nil || nameOf(sa) != host.String() {
					t.Errorf("the peer is %s, %v", nameOf(sa), err)
				}
				n, err := translate.NewNAT64(prefix)
				if err != nil {
					t.Fatal(err)
				}
				for _, text := range []string{
					"169.254.0.1", "169.253.0.1", "240.0.0.1", "255.255.255.255", "224.0.0.1", "0.0.0.1", "10.0.0.1", "11.0.0.1", "100.64.0.1", "100.128.0.1",
					"172.16.0.1", "172.32.0.1", "192.0.0.1", "192.0.1.1", "192.0.2.1", "192.168.0.1", "198.51.100.1", "203.0.113.1", "203.0.114.1",
				} {
					to := netip.MustParseAddr(text)
					_, known := n.Embed(to)
					s := of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
					if err := unix.Sendto(s, []byte("?"), 0, sockaddr.Of(netip.AddrPortFrom(to, host.Port()))); known != (err == nil) {
						t.Errorf("%s: %v, and it is behind the NAT64: %v", text, err, known)
					}
				}
				if err := unix.Sendto(client, []byte("?"), 0, sockaddr.Of(netip.AddrPortFrom(host.Addr(), host.Port()+1))); !errors.Is(err, unix.ENETUNREACH) {
					t.Errorf("another port: %v, want ENETUNREACH", err)
				}
			})
		})
	}
}

// A socket that is connected to a host whose virtual address has become another one's sends to neither.
func TestBehindNAT64IsAnother(t *testing.T) {
	prefix := netip.MustParsePrefix("64:ff9b::/96")
	hosts := []netip.Addr{netip.MustParseAddr("192.88.33.201"), netip.MustParseAddr("192.88.33.202")}
	behind(t, prefix, hosts, []string{"[" + prefix.String() + "]:5353=six"}, func(c *contained, remotes []int) {
		s := of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		if err := errors.Join(unix.Connect(s, sockaddr.Of(netip.AddrPortFrom(hosts[0], 5353))), unix.Send(s, []byte("first"), 0)); err != nil {
			t.Fatal(err)
		}
		reads(t, remotes[0], "first")
		d := c.datagrams.Load()
		first, second := netip.MustParseAddr("64:ff9b::192.88.33.201"), netip.MustParseAddr("64:ff9b::192.88.33.202")
		virtual, known := d.Virtual(first)
		if !known {
			t.Fatal("the first host has no virtual address")
		}
		if err := d.Put(virtual, VirtualHost{Addr: second, Source: netip.MustParseAddr("2001:db8::1"), Device: loopbackDevice}); err != nil {
			t.Fatal(err)
		}
		if err := unix.Send(s, []byte("to another"), 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("to another: %v, want EPERM", err)
		}
		if err := errors.Join(unix.Connect(s, sockaddr.Of(netip.AddrPortFrom(hosts[1], 5353))), unix.Send(s, []byte("second"), 0)); err != nil {
			t.Fatal(err)
		}
		reads(t, remotes[1], "second")
	})
}

// Two CPUs may choose the same virtual address for two hosts. The host that the table does not have behind it gets
// another one, and what is sent to that host never reaches the other.
func TestBehindNAT64ChosenTwice(t *testing.T) {
	prefix := netip.MustParsePrefix("64:ff9b::/96")
	hosts := []netip.Addr{netip.MustParseAddr("192.88.33.201"), netip.MustParseAddr("192.88.33.202")}
	behind(t, prefix, hosts, []string{"[" + prefix.String() + "]:5353=six"}, func(c *contained, remotes []int) {
		s, to := of(t, c, unix.AF_INET, unix.SOCK_DGRAM), netip.AddrPortFrom(hosts[0], 5353)
		if err := unix.Sendto(s, []byte("first"), 0, sockaddr.Of(to)); err != nil {
			t.Fatal(err)
		}
		reads(t, remotes[0], "first")
		d := c.datagrams.Load()
		first, second := netip.MustParseAddr("64:ff9b::192.88.33.201"), netip.MustParseAddr("64:ff9b::192.88.33.202")
		virtual, known := d.Virtual(first)
		if !known {
			t.Fatal("the first host has no virtual address")
		}
		choosesToo(t, d, virtual, second)
		if virtual, known := d.Virtual(first); known {
			t.Errorf("the first host has %s, which is the second one's", virtual)
		}
		if err := unix.Sendto(s, []byte("again"), 0, sockaddr.Of(to)); err != nil {
			t.Fatal(err)
		}
		reads(t, remotes[0], "again")
	})
}

// choosesToo has another host behind a virtual address, as when a CPU has chosen it at the same time.
func choosesToo(t *testing.T, d *Datagrams, virtual, host netip.Addr) {
	t.Helper()
	var row bpf.PolicyVirtualHost
	err := d.e.tables.hosts.Lookup(virtualKey(virtual), &row)
	if row.Addr = wordsOf(host); err == nil {
		err = d.e.tables.hosts.Put(virtualKey(virtual), row)
	}
	if err != nil {
		t.Fatal(err)
	}
}
