package enforcer

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
)

// refused tells whether a socket of a container's may not send to an address.
func refused(s int, to string) bool {
	return errors.Is(unix.Sendto(s, []byte("x"), 0, sockaddr.Of(netip.MustParseAddrPort(to))), unix.EPERM)
}

// gone waits until a container that has ended has no rows in the tables that others use.
func gone(t *testing.T, c *contained) {
	t.Helper()
	testkit.Eventually(t, func() error {
		there, err := c.set.readShared()
		if err == nil && there[c.id] != nil {
			err = fmt.Errorf("container %d has rows yet", c.id)
		}
		return err
	})
}

// Prefixes of containers that overlap are each one's own, in tables that they share; and
// when one ends, its rows go, and no others.
func TestSharedTablesAreApart(t *testing.T) {
	containers(t, func(here uint64, list []*contained) {
		wide, narrow, other := list[0], list[1], list[2]
		sockets := map[*contained]int{}
		for _, c := range list {
			sockets[c] = c.socket(t, unix.SOCK_DGRAM)
			b := policy.Binding{Host: netip.MustParseAddrPort("127.0.0.1:8080"), View: netip.MustParseAddrPort("0.0.0.0:80"), Ingress: true}
			if err := c.Serve(unix.IPPROTO_UDP, b, uint64(c.id)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Name(namedEndpoint, isThere); err != nil {
				t.Fatal(err)
			}
		}
		check := func(when string, c *contained, want map[string]bool) {
			t.Helper()
			for to, want := range want {
				if got := refused(sockets[c], to); got != want {
					t.Errorf("%s: container %d: %s: refused is %v, want %v", when, c.id, to, got, want)
				}
			}
		}
		verdicts := map[*contained]map[string]bool{
			wide:   {"198.51.100.2:80": false, "198.51.100.2:81": false, "198.51.100.3:80": false, "203.0.113.1:443": true},
			narrow: {"198.51.100.2:80": false, "198.51.100.2:81": true, "198.51.100.3:80": true, "203.0.113.1:443": true},
			other:  {"198.51.100.2:80": true, "198.51.100.2:443": false, "203.0.113.1:443": false, "127.0.0.1:443": true},
		}
		for c, want := range verdicts {
			check("together", c, want)
		}
		rows := map[*contained]map[string]string{}
		for _, c := range []*contained{wide, other} {
			rows[c], _ = dump(t, c.Enforcement)
		}
		narrow.End()
		gone(t, narrow)
		for to := range verdicts[narrow] {
			verdicts[narrow][to] = true
		}
		for c, want := range verdicts {
			check("after one has ended", c, want)
		}
		for c, want := range rows {
			if got, _ := dump(t, c.Enforcement); !cmp.Equal(got, want) {
				t.Errorf("rows of container %d: %s", c.id, cmp.Diff(want, got))
			}
		}
		for _, c := range []*contained{wide, other} {
			services, err := c.Services()
			if err != nil || len(services) != 1 || services[0].Netns != uint64(c.id) {
				t.Errorf("services of container %d: %+v, %v", c.id, services, err)
			}
			if n := len(c.rows.names.list()); n != 2 { // one says which number was the last
				t.Errorf("container %d has %d names", c.id, n)
			}
		}
		// Endpoints of one number are each one's own, too.
		elsewhere := map[int]bpf.PolicyEndpoint{0: {Netns: here + 1}}
		if err := other.writeEndpoints(elsewhere); err != nil {
			t.Fatal(err)
		}
		for to := range verdicts[other] {
			verdicts[other][to] = true
		}
		for c, want := range verdicts {
			check("after the other's endpoint has moved", c, want)
		}
	}, []string{"198.51.100.0/24=any"}, []string{"198.51.100.2/32:80=any"}, []string{"0.0.0.0/0:443=any"})
}

// A container that has as many rows as it may have gets no more, and others do.
func TestRoomIsEachOnesOwn(t *testing.T) {
	containers(t, func(here uint64, list []*contained) {
		a, b := list[0], list[1]
		serve := func(c *contained, port uint16) error {
			at := netip.AddrPortFrom(netip.IPv4Unspecified(), port)
			return c.Serve(unix.IPPROTO_TCP, policy.Binding{Host: at, View: at, Ingress: true}, here)
		}
		for port := range servicesMax {
			if err := serve(a, uint16(port)); err != nil {
				t.Fatal(err)
			}
		}
		if err := serve(a, servicesMax); !errors.Is(err, errNoRoom) {
			t.Errorf("one more: %v, want %v", err, errNoRoom)
		}
		if err := errors.Join(serve(a, 1), serve(b, servicesMax)); err != nil {
			t.Errorf("one again, and another container's: %v", err)
		}
	}, nil, nil)
}

// What an earlier process wrote goes with the container too, whatever the table says that
// was in force: it may have been killed while it put another in its place.
func TestEndOfAdopted(t *testing.T) {
	all := []string{"0.0.0.0/0=any"}
	containers(t, func(_ uint64, list []*contained) {
		stray := list[0].prefixKey(netip.MustParsePrefix("203.0.113.0/24"))
		if err := list[0].set.EgressByPrefix.Put(stray, bpf.PolicyEgress{Count: 1, Range: [32]bpf.PolicyPortRange{{Last: 65535}}}); err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range list {
			var err error
			if c.Enforcement, err = Adopt(c.dir, c.table, nil); err != nil {
				t.Fatal(err)
			}
		}
		a, b := list[0], list[1]
		s := a.socket(t, unix.SOCK_DGRAM)
		if refused(s, "203.0.113.1:80") {
			t.Error("the rules are not in force")
		}
		a.End()
		gone(t, a)
		if !refused(s, "203.0.113.1:80") || !b.reaches(t) {
			t.Error("not what the ended one was allowed, and that alone, is refused")
		}
		if rows, _ := dump(t, b.Enforcement); len(rows) != 1 {
			t.Errorf("the other's rows: %v", rows)
		}
	}, all, all)
}
