package container

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/translate"
	"github.com/tsugiki/tsugiki/translate/dns"
)

// newTranslation is a translation whose proxy asks a function. The function returns the IPv6 addresses
// of a name.
func newTranslation(t *testing.T, resolve func(name string) []string) *translation {
	t.Helper()
	prefix, _ := halves(translate.DefaultPrefix)
	table, err := translate.New(translate.Options{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	tr := &translation{Table: table, pool: table.Prefix(), known: make(chan struct{})}
	tr.proxy, err = dns.New(dns.Options{
		Table: table, Upstreams: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")}, NAT64: tr.prefix, NAT64Known: tr.known,
		Dial: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				defer there.Close()
				c := mdns.Conn{Conn: there}
				q, err := c.ReadMsg()
				if err != nil {
					return // closed
				}
				m := new(mdns.Msg).SetReply(q)
				for _, addr := range resolve(q.Question[0].Name) {
					m.Answer = append(m.Answer, &mdns.AAAA{
						Hdr:  mdns.RR_Header{Name: q.Question[0].Name, Rrtype: mdns.TypeAAAA, Class: mdns.ClassINET, Ttl: 3600},
						AAAA: net.ParseIP(addr),
					})
				}
				_ = c.WriteMsg(m) // the proxy may be gone
			}()
			return here, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// An IPv4 address is reached by the NAT64 also before that was found: who connects waits for it, but
// not for ever.
func TestLiteralWaitsForNAT64(t *testing.T) {
	literal, behind := netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8:64::203.0.113.9")
	for _, answered := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			tr := newTranslation(t, func(string) []string {
				<-release
				return []string{"2001:db8:64::192.0.0.170", "2001:db8:64::192.0.0.171"}
			})
			ctx, end := context.WithCancel(t.Context())
			tr.work.Go(func() { tr.discover(ctx) })
			defer tr.work.Wait()
			defer end()

			type result struct {
				v6    netip.Addr
				known bool
			}
			got, begun := make(chan result, 1), time.Now()
			go func() {
				v6, known := tr.V6(literal)
				got <- result{v6, known}
			}()
			synctest.Wait()
			want, took := result{}, dns.DefaultTimeout
			if answered {
				close(release)
				want, took = result{behind, true}, 0
			} else {
				defer close(release)
			}
			if r := <-got; r != want || time.Since(begun) != took {
				t.Errorf("answered %v: %v after %s, want %v after %s", answered, r, time.Since(begun), want, took)
			}
			if _, known := tr.V6(tr.Prefix().Addr().Next()); known || time.Since(begun) != took {
				t.Error("an address of the pool waits, or is known")
			}
		})
	}
}

// While there is no resolver, nobody looks for the NAT64, or waits for it. Other resolvers are asked at once.
func TestDiscoverFollowsResolvers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		tr := newTranslation(t, func(string) []string {
			asked++
			return []string{fmt.Sprintf("2001:db8:%x::192.0.0.170", asked), fmt.Sprintf("2001:db8:%x::192.0.0.171", asked)}
		})
		tr.proxy.SetUpstreams(nil)
		ctx, end := context.WithCancel(t.Context())
		tr.work.Go(func() { tr.discover(ctx) })
		defer tr.work.Wait()
		defer end()
		check := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			prefix := ""
			if n := tr.prefix(); n.IsValid() {
				prefix = n.Prefix().String()
			}
			now := ""
			if want > 0 {
				now = fmt.Sprintf("2001:db8:%x::/96", want)
			}
			if asked != want || prefix != now {
				t.Errorf("%s: asked %d times, want %d; the NAT64 is %q, want %q", what, asked, want, prefix, now)
			}
		}
		check("no resolver", 0)
		began := time.Now()
		if _, known := tr.V6(netip.MustParseAddr("203.0.113.9")); known || time.Since(began) > 0 {
			t.Errorf("without resolvers, a NAT64 is known: %v, after %s", known, time.Since(began))
		}
		tr.proxy.SetUpstreams([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")})
		check("a resolver", 1)
		tr.proxy.SetUpstreams([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.54:53")})
		check("another one", 2)
		tr.proxy.SetUpstreams(nil)
		time.Sleep(48 * time.Hour)
		check("none any more", 2)
	})
}

// A host behind the NAT64 has its IPv4 address, unless a name was answered with a virtual one, or the
// IPv4 address is a virtual one.
func TestMapBehindNAT64(t *testing.T) {
	tr := newTranslation(t, nil)
	n, err := translate.NewNAT64(netip.MustParsePrefix("2001:db8:64::/96"))
	if err != nil {
		t.Fatal(err)
	}
	tr.nat64.Store(&n)
	named := netip.MustParseAddr("2001:db8:64::203.0.113.8")
	v4, err := tr.Table.Map(named, 0)
	if err != nil {
		t.Fatal(err)
	}
	for v6, want := range map[string]netip.Addr{
		named.String():             v4,
		"2001:db8:64::203.0.113.9": netip.MustParseAddr("203.0.113.9"),
	} {
		if got, err := tr.Map(netip.MustParseAddr(v6), 0); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", v6, got, err, want)
		}
	}
	for _, v6 := range []string{"2001:db8:64::198.18.7.7", "2001:db8:64::198.19.7.7", "2001:db8::1"} {
		got, err := tr.Map(netip.MustParseAddr(v6), 0)
		if back, known := tr.Table.V6(got); err != nil || !known || back != netip.MustParseAddr(v6) {
			t.Errorf("%s is %s, %v, which is %s", v6, got, err, back)
		}
	}
}

// The host's addresses are those that were read last. If none were, nobody knows.
func TestHostAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, other, failure := netip.MustParseAddr("2001:db8::aaaa"), netip.MustParseAddr("2001:db8::1"), unix.EMFILE
		var list []netip.Addr
		var fails error
		h := hostAddresses{read: func() ([]netip.Addr, error) { return list, fails }}
		check := func(addr netip.Addr, want bool, fails error) {
			t.Helper()
			if has, err := h.has(addr); has != want || !errors.Is(err, fails) {
				t.Errorf("%s: %v, %v; want %v, %v", addr, has, err, want, fails)
			}
		}
		fails = failure
		check(own, false, failure)
		check(other, false, failure)
		list, fails = []netip.Addr{own}, nil
		check(own, true, nil)
		list, fails = nil, failure
		time.Sleep(2 * hostAddressesAge)
		check(own, true, nil)
		check(other, false, nil)
		list, fails = []netip.Addr{other}, nil
		check(own, false, nil)
		check(other, true, nil)
	})
}
