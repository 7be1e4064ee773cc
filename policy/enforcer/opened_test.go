package enforcer

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/policytest"
)

// outside is the endpoint of the tests' rules for IPv6. The host chooses its address.
var outside = &endpoint.Endpoint{Name: "outside", Type: endpoint.IPv6, Addr: netip.IPv6Unspecified()}

// namedRules reads egress and name rules that lead to outside.
func namedRules(t *testing.T, egress, names []string) (out []policy.Egress, list []policy.NameRule) {
	t.Helper()
	out = policytest.RulesOf(t, egress, map[string]*endpoint.Endpoint{outside.Name: outside})
	for _, s := range names {
		r, err := policy.ParseNameRule(s)
		if err != nil {
			t.Fatal(err)
		}
		r.Endpoint = outside
		list = append(list, r)
	}
	return out, list
}

// setRules puts rules in force in a container.
func (c *contained) setRules(t *testing.T, here uint64, egress, names []string) (opening func(rules ...int) []policy.Opening) {
	t.Helper()
	out, list := namedRules(t, egress, names)
	next, err := c.table.Next(nil, out, list...)
	if err == nil {
		err = c.Update(next, func(*endpoint.Endpoint) uint64 { return here })
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(rules ...int) []policy.Opening {
		var some []policy.NameRule
		for _, i := range rules {
			some = append(some, list[i])
		}
		return policy.Openings(some)
	}
}

// judged returns how the programs judge a connect and a datagram to an address: "reached" or "refused".
func (c *contained) judged(t *testing.T, typ int, to string) string {
	t.Helper()
	at := sockaddr.Of(netip.MustParseAddrPort(to))
	errs := []error{unix.Connect(c.socketOf(t, unix.AF_INET6, typ), at)}
	if typ == unix.SOCK_DGRAM {
		errs = append(errs, unix.Sendto(c.socketOf(t, unix.AF_INET6, typ), []byte("?"), 0, at))
	}
	verdicts := map[string]bool{}
	for _, err := range errs {
		switch {
		case errors.Is(err, unix.EPERM):
			verdicts["refused"] = true
		case errors.Is(err, unix.ENETUNREACH): // there is no route
			verdicts["reached"] = true
		default:
			t.Errorf("%s: %v", to, err)
		}
	}
	return fmt.Sprint(slices.Sorted(maps.Keys(verdicts)))
}

// A container reaches the ports that are opened at an address, from when SetOpened returns until they
// are closed, and nothing else. No other container does.
func TestSetOpened(t *testing.T) {
	containers(t, func(here uint64, list []*contained) {
		c, other := list[0], list[1]
		names := []string{"a.example:443/tcp", "b.example:5353/udp", "c.example:80"}
		opening := c.setRules(t, here, nil, names)
		other.setRules(t, here, nil, names)
		check := func(at string, tcp, udp string) {
			t.Helper()
			for _, port := range []string{"443", "80", "5353", "22"} {
				to := "[" + at + "]:" + port
				for typ, open := range map[int]string{unix.SOCK_STREAM: tcp, unix.SOCK_DGRAM: udp} {
					want := "[refused]"
					if slices.Contains(strings.Fields(open), port) {
						want = "[reached]"
					}
					if got := c.judged(t, typ, to); got != want {
						t.Errorf("type %d to %s: %s, want %s", typ, to, got, want)
					}
					if got := other.judged(t, typ, to); got != "[refused]" {
						t.Errorf("another container, type %d to %s: %s", typ, to, got)
					}
				}
			}
		}
		const at, next = "2001:db8::7", "2001:db8::6"
		addr := netip.MustParseAddr(at)
		set := func(rules ...int) {
			t.Helper()
			if err := c.SetOpened(addr, opening(rules...)); err != nil {
				t.Fatal(err)
			}
			check(next, "", "")
		}
		check(at, "", "")
		set(0)
		check(at, "443", "")
		if ep := c.OpenedBy(policy.TCP, netip.AddrPortFrom(addr, 443)); ep != outside {
			t.Errorf("it is opened by %v", ep)
		}
		for _, p := range []policy.Protocol{policy.TCP, policy.UDP} {
			if c.OpenedBy(p, netip.AddrPortFrom(addr, 22)) != nil || c.OpenedBy(p, netip.MustParseAddrPort("["+next+"]:443")) != nil || other.OpenedBy(p, netip.AddrPortFrom(addr, 443)) != nil {
				t.Error("more is opened than that")
			}
		}
		if c.OpenedBy(policy.UDP, netip.AddrPortFrom(addr, 443)) != nil {
			t.Error("it is opened for another protocol")
		}
		set(0, 1, 2)
		check(at, "443 80", "5353 80")
		set(2)
		check(at, "80", "80")
		c.setRules(t, here, []string{"[" + at + "]:22=outside"}, names)
		check(at, "80 22", "80 22")
		set()
		check(at, "22", "22")
		set(1)
		check(at, "22", "5353 22")
		c.setRules(t, here, nil, names)
		check(at, "", "5353")
		set()
		check(at, "", "")
	}, nil, nil)
}

// No name opens a special address, or one of IPv4.
func TestSetOpenedSpecial(t *testing.T) {
	containers(t, func(here uint64, list []*contained) {
		c := list[0]
		opening := c.setRules(t, here, nil, []string{"*"})
		before, _ := dump(t, c.Enforcement)
		for _, at := range []string{"::", "::1", "fe80::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:198.51.100.2", "198.51.100.2", "127.0.0.1", "2001:db8::1%eth0"} {
			if err := c.SetOpened(netip.MustParseAddr(at), opening(0)); err == nil {
				t.Errorf("%s is opened", at)
			}
		}
		if after, _ := dump(t, c.Enforcement); !cmp.Equal(before, after) {
			t.Errorf("the maps have changed:\n%s", cmp.Diff(before, after))
		}
		if c.reaches(t) {
			t.Error("an IPv4 address is reached")
		}
	}, nil)
}

// After any changes of rules and of what is opened, the maps say what they say where both were so from
// the start.
func TestOpenedEqualsFresh(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 0))
	egress := []string{"2001:db8::/32=outside", "[2001:db8::3]:22=outside", "[2001:db8:1::/48]:53/udp=outside", "[2001:db8:1::2]=outside", "[::/0]:25=outside"}
	names := []string{"a.example:443", "b.example:80/tcp", "c.example:80/udp", "d.example"}
	netnsOf := func(*endpoint.Endpoint) uint64 { return 1 }
	empty, err := policy.NewTable(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	some := func(list []string) (kept []string) {
		for _, s := range list {
			if random.IntN(2) > 0 {
				kept = append(kept, s)
			}
		}
		return kept
	}
	enforceMaps(t, empty, netnsOf, func(e *Enforcement) {
		tb := empty
		for step := range 60 {
			if random.IntN(3) == 0 {
				out, list := namedRules(t, some(egress), some(names))
				next, err := tb.Next(nil, out, list...)
				if err == nil {
					err = e.Update(next, netnsOf)
				}
				if err != nil {
					t.Fatal(err)
				}
				tb = next
			} else {
				_, list := namedRules(t, nil, some(names))
				at := netip.MustParseAddr(fmt.Sprintf("2001:db8:%d::%d", random.IntN(2), random.IntN(4)+1))
				if err := e.SetOpened(at, policy.Openings(list)); err != nil {
					t.Fatal(err)
				}
			}
			got, _ := dump(t, e)
			var want map[string]string
			enforceMaps(t, empty, netnsOf, func(fresh *Enforcement) {
				fresh.opened.at = e.Opened()
				if err := fresh.write(tb, netnsOf); err != nil {
					t.Fatal(err)
				}
				want, _ = dump(t, fresh)
			})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("step %d: fresh maps (-) and changed ones (+):\n%s", step, diff)
			}
		}
	})
}

// A container opens no more addresses than are its own. Then the rules can still be changed, and
// another container still opens addresses.
func TestOpenedMost(t *testing.T) {
	netnsOf := func(*endpoint.Endpoint) uint64 { return 1 }
	var prefixes []string
	for i := range 500 {
		prefixes = append(prefixes, fmt.Sprintf("[2001:db8:7:%x::/64]:1=outside", i))
	}
	out, list := namedRules(t, prefixes, []string{"*"})
	tb, err := policy.NewTable(nil, out, list...)
	if err != nil {
		t.Fatal(err)
	}
	at := func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%x", i)) }
	all := policy.Openings(list)
	enforceMaps(t, tb, netnsOf, func(e *Enforcement) {
		for i := range policy.OpenedMax {
			if err := e.SetOpened(at(i), all); err != nil {
				t.Fatal(err)
			}
		}
		before, _ := dump(t, e)
		if err := e.SetOpened(at(policy.OpenedMax), all); !errors.Is(err, errNoRoom) {
			t.Errorf("one more: %v, want errNoRoom", err)
		}
		if after, _ := dump(t, e); !cmp.Equal(before, after) {
			t.Error("the maps have changed")
		}
		enforceMaps(t, tb, netnsOf, func(other *Enforcement) {
			if err := other.SetOpened(at(policy.OpenedMax), all); err != nil {
				t.Errorf("another container: %v", err)
			}
		})
		for i := range prefixes {
			prefixes[i] = fmt.Sprintf("[2001:db8:8:%x::/64]:1=outside", i)
		}
		out, list := namedRules(t, prefixes, []string{"*"})
		next, err := tb.Next(nil, out, list...)
		if err == nil {
			err = e.Update(next, netnsOf)
		}
		if err != nil {
			t.Error(err)
		}
		if err := errors.Join(e.SetOpened(at(0), nil), e.SetOpened(at(policy.OpenedMax), all)); err != nil {
			t.Errorf("one for another: %v", err)
		}
	})
}

// An address for which the kernel has no room is not open, and those before it stay open.
func TestSetOpenedFails(t *testing.T) {
	_, list := namedRules(t, nil, []string{"*:80", "*:443"})
	tb, err := policy.NewTable(nil, nil, list...)
	if err != nil {
		t.Fatal(err)
	}
	e := enforcement(smallSet(t, 8), 1, tables{}, tb)
	defer e.Close()
	if err := e.write(tb, func(*endpoint.Endpoint) uint64 { return 1 }); err != nil {
		t.Fatal(err)
	}
	first := netip.MustParseAddr("2001:db8::1")
	opened := map[netip.Addr][]policy.Opening{}
	at := first
	for ; err == nil; at = at.Next() {
		before, _ := dump(t, e)
		if err = e.SetOpened(at, policy.Openings(list)); err == nil {
			opened[at] = policy.Openings(list)
			continue
		}
		if after, _ := dump(t, e); !cmp.Equal(before, after) || !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%v; the maps have changed:\n%s", err, cmp.Diff(before, after))
		}
		if e.OpenedBy(policy.TCP, netip.AddrPortFrom(at, 80)) != nil {
			t.Errorf("%s is opened", at)
		}
	}
	if got := e.Opened(); len(got) == 0 || !reflect.DeepEqual(got, opened) {
		t.Errorf("%v are open, want %v", got, opened)
	}
	if err := errors.Join(e.SetOpened(first, nil), e.SetOpened(at, policy.Openings(list))); err != nil {
		t.Errorf("one for another: %v", err)
	}
}

// A container that has ended opens nothing.
func TestSetOpenedAfterEnd(t *testing.T) {
	_, list := namedRules(t, nil, []string{"*"})
	tb, err := policy.NewTable(nil, nil, list...)
	if err != nil {
		t.Fatal(err)
	}
	enforceMaps(t, tb, func(*endpoint.Endpoint) uint64 { return 1 }, func(e *Enforcement) {
		at := netip.MustParseAddr("2001:db8::7")
		if err := e.SetOpened(at, policy.Openings(list)); err != nil {
			t.Fatal(err)
		}
		e.opened.end()
		if err := errors.Join(e.rows.clear(), e.SetOpened(at, policy.Openings(list)), e.SetOpened(at.Next(), policy.Openings(list))); err != nil {
			t.Error(err)
		}
		if written, err := e.set.readShared(); err != nil || written[e.id] != nil {
			t.Errorf("a container that has ended has rows: %v", err)
		}
	})
}

// Who takes a container over knows what is opened, and can close it. Rows of a change that was not
// completed are not taken for openings.
func TestAdoptOpened(t *testing.T) {
	out, list := namedRules(t, []string{"[2001:db8::/32]:22=outside"}, []string{"*:443", "a.example:80/tcp"})
	tb, err := policy.NewTable(nil, out, list...)
	if err != nil {
		t.Fatal(err)
	}
	enforce(t, tb, func(e *Enforcement) {
		here := namespaceHere(t)
		netnsOf := func(*endpoint.Endpoint) uint64 { return here }
		want := map[netip.Addr][]policy.Opening{
			netip.MustParseAddr("2001:db8::7"):   policy.Openings(list),
			netip.MustParseAddr("2001:db8:7::1"): policy.Openings(list[:1]),
			netip.MustParseAddr("2001:7::1"):     policy.Openings(list[1:]),
		}
		for at, openings := range want {
			if err := e.SetOpened(at, openings); err != nil {
				t.Fatal(err)
			}
		}
		left := bpf.PolicyEgress{Count: 1}
		left.Range[0] = bpf.PolicyPortRange{First: 1, Last: 2}
		for _, p := range []string{"2001:db8::8/128", "2001:db8::/128", "2001:db8::/33", "198.51.100.9/32"} {
			if err := e.rows.egress.put(e.prefixKey(netip.MustParsePrefix(p)), left); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		restored, err := policy.Restore(nil, out, tb.Numbered(), list...)
		if err != nil {
			t.Fatal(err)
		}
		next, err := Adopt(testGroup(t), restored, func(string, uint32) *endpoint.Endpoint { return nil })
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		if diff := cmp.Diff(want, next.Opened(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if err := next.Update(restored, netnsOf); err != nil {
			t.Fatal(err)
		}
		rows, _ := dump(t, next)
		fresh := map[string]string{}
		enforceMaps(t, tb, netnsOf, func(f *Enforcement) {
			f.opened.at = want
			if err := f.write(tb, netnsOf); err != nil {
				t.Fatal(err)
			}
			fresh, _ = dump(t, f)
		})
		if diff := cmp.Diff(fresh, rows); diff != "" {
			t.Errorf("fresh maps (-) and adopted ones (+):\n%s", diff)
		}
		for at := range want {
			if err := next.SetOpened(at, nil); err != nil {
				t.Error(err)
			}
		}
		if s := socketOf(t, unix.AF_INET6, unix.SOCK_STREAM); !errors.Is(unix.Connect(s, sockaddr.Of(netip.MustParseAddrPort("[2001:db8:7::1]:443"))), unix.EPERM) {
			t.Error("it is still open")
		}
	})
}

// BenchmarkSetOpened opens and closes an address while a thousand are open.
func BenchmarkSetOpened(b *testing.B) {
	r, err := policy.ParseNameRule("*:443")
	if err != nil {
		b.Fatal(err)
	}
	r.Endpoint = outside
	tb, err := policy.NewTable(nil, nil, r)
	if err != nil {
		b.Fatal(err)
	}
	s, number, err := takeNumber()
	if err != nil {
		b.Fatal(err)
	}
	e := enforcement(s, number, tables{}, tb)
	defer e.Close()
	defer e.End()
	all := []policy.Opening{r.Opening()}
	at := netip.MustParseAddr("2001:db8::1")
	for range policy.OpenedMax - 1 {
		if err := e.SetOpened(at, all); err != nil {
			b.Fatal(err)
		}
		at = at.Next()
	}
	for b.Loop() {
		if err := errors.Join(e.SetOpened(at, all), e.SetOpened(at, nil)); err != nil {
			b.Fatal(err)
		}
	}
}
