package enforcer

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/policytest"
)

// reachServers are the rules of containers that reach the servers of these tests.
var reachServers = []string{"198.51.100.0/24=any", "2001:db8::/32=six"}

// The containers of a test with sources.
const (
	serving = iota
	friend
	neighbour
)

// withSources runs a test with a container that serves, and two others. The host has the addresses
// 198.51.100.1 to 198.51.100.3 and 2001:db8::1 to 2001:db8::3.
func withSources(t *testing.T, onLoopback bool, fn func(here uint64, list []*contained)) {
	t.Helper()
	containers(t, func(here uint64, list []*contained) {
		for _, addr := range []string{"198.51.100.1/32", "198.51.100.2/32", "198.51.100.3/32", "2001:db8::1/128", "2001:db8::2/128", "2001:db8::3/128"} {
			testkit.AddToLoopback(t, addr)
		}
		for i, c := range list {
			use := c.UseMark
			if onLoopback && i != neighbour { // the two kinds meet each other, too
				use = c.UseLoopback
			}
			if err := use(uint64(7 + i)); err != nil {
				t.Fatal(err)
			}
		}
		err := list[serving].AdmitPods(func(uid string) (uint64, bool) { return 7 + friend, uid == "friend" })
		if err != nil {
			t.Fatal(err)
		}
		fn(here, list)
	}, reachServers, reachServers, reachServers)
}

// setIngress replaces the ingress rules, which have the numbers 1, 2 and so on.
func (c *contained) setIngress(t *testing.T, here uint64, rules ...string) {
	t.Helper()
	var list []policy.Ingress
	for i, s := range rules {
		r, err := policy.ParseIngress(s, policytest.Endpoints(t))
		if err != nil {
			t.Fatal(err)
		}
		r.Number = i + 1
		list = append(list, r)
	}
	next, err := c.Enforcement.table.Next(list, c.Enforcement.table.EgressRules())
	if err == nil {
		err = c.Update(next, func(*endpoint.Endpoint) uint64 { return here })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// servers are those of a container at an address, by a rule.
type servers struct {
	tcp, udp int
	at       netip.AddrPort
}

func (c *contained) serve(t *testing.T, at, view string, rule int) servers {
	t.Helper()
	b := policy.Binding{Host: netip.MustParseAddrPort(at), View: netip.MustParseAddrPort(view), Ingress: true, Rule: rule}
	family := familyOf(b.Host)
	s := servers{of(t, c, family, unix.SOCK_STREAM), of(t, c, family, unix.SOCK_DGRAM), b.Host}
	for _, file := range []int{s.tcp, s.udp} {
		if err := errors.Join(c.AllowBind(file, b), unix.Bind(file, sockaddr.Of(b.Host))); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Listen(s.tcp, 64); err != nil {
		t.Fatal(err)
	}
	return s
}

// client is who connects: a container, or the host from an address.
type client struct {
	c    *contained
	from string
}

func (k client) socket(t *testing.T, to netip.AddrPort, typ int) int {
	t.Helper()
	s := of(t, k.c, familyOf(to), typ)
	if k.from != "" {
		if err := unix.Bind(s, sockaddr.Of(netip.AddrPortFrom(netip.MustParseAddr(k.from), 0))); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// reaches tells by which protocols a client reaches the servers. A datagram of the server's own
// container comes after that of the client.
func (s servers) reaches(t *testing.T, k, own client) string {
	t.Helper()
	by := ""
	if connected(t, k.socket(t, s.at, unix.SOCK_STREAM), s.at) {
		by += "tcp"
	}
	for _, sent := range []struct {
		by   client
		text string
	}{{k, "client"}, {own, "own"}} {
		if err := unix.Sendto(sent.by.socket(t, s.at, unix.SOCK_DGRAM), []byte(sent.text), 0, sockaddr.Of(s.at)); err != nil {
			t.Fatal(err)
		}
	}
	for {
		var buf [32]byte
		n, _, err := unix.Recvfrom(s.udp, buf[:], 0)
		if err != nil {
			t.Fatal(err)
		}
		if string(buf[:n]) == "own" {
			return by
		}
		by += "udp"
	}
}

// expect compares who reaches servers.
func (s servers) expect(t *testing.T, when string, own client, clients map[string]client, admitted ...string) {
	t.Helper()
	want := map[string]string{}
	for _, name := range admitted {
		want[name] = "tcpudp"
	}
	for name, k := range clients {
		if got := s.reaches(t, k, own); got != want[name] {
			t.Errorf("%s, %s: %s reaches %q, want %q", s.at, when, name, got, want[name])
		}
	}
}

// A server hears the sources of its rule, and the programs of its own container. Another container
// has the same address as the one that is let in, and is known by its mark.
func TestSources(t *testing.T) {
	for name, onLoopback := range map[string]bool{"own loopback": false, "loopback on the host": true} {
		t.Run(name, func(t *testing.T) {
			withSources(t, onLoopback, func(here uint64, list []*contained) {
				for _, way := range []struct{ at, view, open, closed, source string }{
					{"198.51.100.1:8080", "0.0.0.0:80", "198.51.100.2", "198.51.100.3", "198.51.100.2/31+except:198.51.100.3"},
					{"[2001:db8::1]:8080", "[::]:80", "2001:db8::2", "2001:db8::3", "2001:db8::2/127+except:2001:db8::3"},
				} {
					c := list[serving]
					head := way.view + "+from:"
					c.setIngress(t, here, head+way.source+"+from:pod:friend"+endpointFor(way.view))
					s := c.serve(t, way.at, way.view, 1)
					clients := map[string]client{
						"open": {nil, way.open}, "closed": {nil, way.closed}, "the container itself": {c, ""},
						"friend": {list[friend], ""}, "neighbour": {list[neighbour], ""},
					}
					own := clients["the container itself"]
					s.expect(t, "at first", own, clients, "open", "friend", "the container itself")
					c.setIngress(t, here, head+way.closed+"+from:pod:nobody"+endpointFor(way.view))
					s.expect(t, "changed", own, clients, "closed", "the container itself")
					c.setIngress(t, here, way.view+endpointFor(way.view))
					s.expect(t, "without sources", own, clients, "open", "closed", "friend", "neighbour", "the container itself")
					c.setIngress(t, here)
					s.expect(t, "withdrawn", own, clients, "the container itself")
				}
			})
		})
	}
}

// endpointFor returns the end of a rule for an address that a program binds.
func endpointFor(view string) string {
	if netip.MustParseAddrPort(view).Addr().Is4() {
		return "=any"
	}
	return "=six"
}

// Nobody passes for a container that is let in: a container's packets have its own mark, whatever
// priority its programs set, and address they name.
func TestSourcesForged(t *testing.T) {
	withSources(t, false, func(here uint64, list []*contained) {
		c := list[serving]
		c.setIngress(t, here, "0.0.0.0:80+from:pod:friend=any")
		s := c.serve(t, "198.51.100.1:8080", "0.0.0.0:80", 1)
		own := client{c, ""}
		s.expect(t, "as it is", own, map[string]client{"friend": {list[friend], ""}}, "friend")
		for _, typ := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			forger := client{list[neighbour], ""}.socket(t, s.at, typ)
			if err := unix.SetsockoptInt(forger, unix.SOL_SOCKET, unix.SO_PRIORITY, int(list[friend].Mark())); err != nil {
				t.Fatal(err)
			}
			if typ == unix.SOCK_STREAM {
				if connected(t, forger, s.at) {
					t.Error("a connection with the friend's priority is taken")
				}
				continue
			}
			if err := unix.Sendto(forger, []byte("forged"), 0, sockaddr.Of(s.at)); err != nil {
				t.Fatal(err)
			}
			if err := unix.Sendto(own.socket(t, s.at, typ), []byte("sentinel"), 0, sockaddr.Of(s.at)); err != nil {
				t.Fatal(err)
			}
			reads(t, s.udp, "sentinel")
		}
		// A mark is no address: the discard prefix, or whatever a row for it would look like.
		forged := netip.AddrFrom16([16]byte{15: 7 + friend})
		if rows, _, err := c.sourceRows(c.Enforcement.table); err != nil || rows[c.sourceKey(1, netip.PrefixFrom(forged, 128))] {
			t.Errorf("an address is let in as a mark, %v", err)
		}
	})
}

// A listener with an address of each family has the sources of a rule of each.
func TestSourcesOfBothFamilies(t *testing.T) {
	withSources(t, false, func(here uint64, list []*contained) {
		c := list[serving]
		c.setIngress(t, here, "0.0.0.0:80+from:198.51.100.2=any", "[::]:80+from:2001:db8::3=six")
		if err := c.Steer(here, func(fn func() error) error { return fn() }); errors.Is(err, ErrNotSteered) {
			t.Skipf("needs sk_lookup programs: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		l := of(t, c, unix.AF_INET6, unix.SOCK_STREAM)
		b := policy.Binding{
			Host: netip.MustParseAddrPort("[::ffff:198.51.100.1]:8080"), Second: netip.MustParseAddrPort("[2001:db8::1]:8081"),
			View: netip.MustParseAddrPort("[::]:80"), Ingress: true, Rule: 1, SecondRule: 2,
		}
		if err := errors.Join(c.AllowBind(l, b), unix.Bind(l, sockaddr.Of(b.Host)), unix.Listen(l, 16)); err != nil {
			t.Fatal(err)
		}
		for from, want := range map[string]bool{"198.51.100.2": true, "198.51.100.3": false, "2001:db8::2": false, "2001:db8::3": true} {
			to := netip.MustParseAddrPort("198.51.100.1:8080")
			if netip.MustParseAddr(from).Is6() {
				to = b.Second
			}
			if got := connected(t, client{nil, from}.socket(t, to, unix.SOCK_STREAM), to); got != want {
				t.Errorf("from %s: connected is %v", from, got)
			}
		}
	})
}

// Pods that were let in stay so for the next process, until it knows them itself.
func TestSourcesOfAnEarlierProcess(t *testing.T) {
	withSources(t, false, func(here uint64, list []*contained) {
		c := list[serving]
		c.setIngress(t, here, "0.0.0.0:80+from:pod:friend+from:198.51.100.2=any")
		s := c.serve(t, "198.51.100.1:8080", "0.0.0.0:80", 1)
		clients := map[string]client{"friend": {list[friend], ""}, "neighbour": {list[neighbour], ""}, "open": {nil, "198.51.100.2"}}
		c.takeOver(t, here)
		s.expect(t, "taken over", client{c, ""}, clients, "friend", "open")
		if err := c.AdmitPods(func(string) (uint64, bool) { return 0, false }); err != nil {
			t.Fatal(err)
		}
		s.expect(t, "without the pod", client{c, ""}, clients, "open")
	})
}

// Servers of rules that never had sources take nobody when the rule is withdrawn, those of other rules
// are as they were, and both outlive the process. A rule that comes back opens its servers again.
// Connections go on.
func TestSourcesWithdrawn(t *testing.T) {
	for name, onLoopback := range map[string]bool{"own loopback": false, "loopback on the host": true} {
		t.Run(name, func(t *testing.T) {
			withSources(t, onLoopback, func(here uint64, list []*contained) {
				c := list[serving]
				const kept, gone = "[::]:80=six", "0.0.0.0:80=any"
				c.setIngress(t, here, kept, gone)
				other, s := c.serve(t, "[2001:db8::1]:8080", "[::]:80", 1), c.serve(t, "198.51.100.1:8080", "0.0.0.0:80", 2)
				hosts := map[string]client{"host": {nil, "198.51.100.2"}, "neighbour": {list[neighbour], ""}, "the container itself": {c, ""}}
				others := map[string]client{"host": {nil, "2001:db8::2"}, "neighbour": {list[neighbour], ""}}
				own := client{c, ""}
				all := func(when string) {
					t.Helper()
					s.expect(t, when, own, hosts, "host", "neighbour", "the container itself")
					other.expect(t, when, own, others, "host", "neighbour")
				}
				withdrawn := func(when string) {
					t.Helper()
					s.expect(t, when, own, hosts, "the container itself")
					other.expect(t, when, own, others, "host", "neighbour")
				}
				all("at first")
				lasting := hosts["host"].socket(t, s.at, unix.SOCK_STREAM)
				if !connected(t, lasting, s.at) {
					t.Fatal("the server takes no connection")
				}
				c.LookUpSources()
				c.setIngress(t, here, kept)
				withdrawn("withdrawn")
				c.takeOver(t, here)
				withdrawn("taken over")
				if err := unix.Sendto(lasting, []byte("on"), unix.MSG_NOSIGNAL, nil); err != nil {
					t.Errorf("the connection does not go on: %v", err)
				}
				c.setIngress(t, here, kept, gone)
				all("restored")
				c.setIngress(t, here, kept, "0.0.0.0:80+from:198.51.100.3=any")
				s.expect(t, "with a source", own, hosts, "the container itself")
			})
		})
	}
}

// takeOver puts another process's Enforcement in place of the container's.
func (c *contained) takeOver(t *testing.T, here uint64) {
	t.Helper()
	next, err := Adopt(c.dir, c.Enforcement.table, func(string, uint32) *endpoint.Endpoint { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c.Enforcement = next
	if err := next.Update(next.table, func(*endpoint.Endpoint) uint64 { return here }); err != nil {
		t.Fatal(err)
	}
}

// No IPv6 source lets an IPv4 address in, though the kernel has that as a mapped one.
func TestSourcesOfIPv6(t *testing.T) {
	withSources(t, false, func(here uint64, list []*contained) {
		c := list[serving]
		c.setIngress(t, here, "0.0.0.0:80+from:::/0=any")
		s := c.serve(t, "198.51.100.1:8080", "0.0.0.0:80", 1)
		clients := map[string]client{"open": {nil, "198.51.100.2"}, "closed": {nil, "198.51.100.3"}, "neighbour": {list[neighbour], ""}}
		own := client{c, ""}
		for source, admitted := range map[string][]string{
			"::/0": nil, "::/64": nil, "::/80": nil,
			"::/0+from:198.51.100.2":                           {"open"},
			"::/0+from:0.0.0.0/0":                              {"open", "closed", "neighbour"},
			"::/0+from:0.0.0.0/0+except:198.51.100.2/31":       {"neighbour"},
			"::/0+except:::/64+from:198.51.100.0/24":           {"open", "closed", "neighbour"},
			"::/0+from:198.51.100.2/31+except:198.51.100.3/32": {"open"},
		} {
			c.setIngress(t, here, "0.0.0.0:80+from:"+source+"=any")
			s.expect(t, source, own, clients, admitted...)
		}
		c.setIngress(t, here, "0.0.0.0:80=any")
		s.expect(t, "without sources", own, clients, "open", "closed", "neighbour")
	})
}

// No two network namespaces have a mark, whose bits are fewer than a cookie's, while containers of both
// live.
func TestMarkIsTaken(t *testing.T) {
	withSources(t, false, func(_ uint64, list []*contained) {
		const same = 7 + serving + 1<<40
		before := list[friend].Mark()
		if err := list[friend].UseMark(same); err == nil || list[friend].Mark() != before {
			t.Errorf("%v, the mark is %#x", err, list[friend].Mark())
		}
		if err := list[friend].UseMark(7 + serving); err != nil { // a container of the same pod
			t.Error(err)
		}
		if err := list[serving].Close(); err != nil {
			t.Fatal(err)
		}
		if err := list[neighbour].UseMark(same); err == nil {
			t.Error("the mark is free though another container of the pod lives")
		}
		if err := list[friend].UseMark(same); err != nil {
			t.Error(err)
		}
	})
}

// A rule without a number cannot be enforced.
func TestSourcesWithoutNumber(t *testing.T) {
	withSources(t, false, func(here uint64, list []*contained) {
		r, err := policy.ParseIngress("0.0.0.0:80+from:198.51.100.2=any", policytest.Endpoints(t))
		if err != nil {
			t.Fatal(err)
		}
		next, err := list[serving].Enforcement.table.Next([]policy.Ingress{r}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := list[serving].Update(next, func(*endpoint.Endpoint) uint64 { return here }); err == nil {
			t.Error("it is in force")
		}
	})
}
