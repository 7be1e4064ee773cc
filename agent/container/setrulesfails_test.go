package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// Endpoints that programs may name.
const (
	namedA = "named type ipv4 addr 127.0.0.1 port 20190 nameable"
	namedB = "named type ipv4 addr 127.0.0.2 port 20190 nameable"
	asWell = "aswell type ipv4 addr 127.0.0.1 port 20191 nameable"
)

// Whichever save fails, a container has all of the rules that are wanted, or those before; also where endpoints move
// that programs may name.
func TestSetRulesWhichever(t *testing.T) {
	const in = "0.0.0.0:80=web"
	c, o := made(t, ruled([]string{webA, namedA, asWell}, []string{in}))
	want := parsed(t, ruled([]string{webB, namedB, "aswell type ipv4 addr 127.0.0.2 port 20191 nameable"}, []string{in}))
	before, table := c.ListEndpoints(), c.table
	o.fails = unix.ENOSPC
	for succeed := 0; ; succeed++ {
		o.succeed, o.saved = succeed, nil
		_, err := c.SetRules(&want)
		if err == nil {
			if succeed == 0 {
				t.Error("no save has failed")
			}
			break
		}
		if diff := cmp.Diff(before, c.ListEndpoints()); diff != "" || c.table != table || !errors.Is(err, o.fails) {
			t.Fatalf("after %d saves: %v, the table is the same: %v; endpoints (-before +after):\n%s", succeed, err, c.table == table, diff)
		}
	}
	if got := c.endpointNamed("named").String(); got != namedB || len(o.saved) != 1 {
		t.Errorf("the endpoint is %s, and %d states were saved", got, len(o.saved))
	}
}

// A socket that was bound by the name of an endpoint has that endpoint alone, whenever the process is killed that gives
// the endpoint another address, or takes it away and brings it back.
func TestMovedName(t *testing.T) {
	c, o := made(t, ruled([]string{namedA}, nil))
	state, was := c.state, c.endpointNamed("named")
	is := func(c *Container, ep *endpoint.Endpoint) func() bool {
		return func() bool { return c.endpointNamed("named") == ep }
	}
	bound, err := c.enforced.Name(was, is(c, was))
	if err != nil {
		t.Fatal(err)
	}
	o.fails = errors.New("killed")
	moved := parsed(t, ruled([]string{namedB}, nil))
	if _, err := c.SetRules(&moved); !errors.Is(err, o.fails) || len(c.state.Moved) != 0 {
		t.Fatalf("%v, and the state says moved: %v", err, c.state.Moved)
	}
	killed := o.saved[0]
	numberFor := func(s State) uint32 {
		t.Helper()
		text, err := json.Marshal(s)
		if err == nil {
			s = State{}
			err = json.Unmarshal(text, &s)
		}
		if err != nil {
			t.Fatal(err)
		}
		next := New(c.spec, o)
		next.state, next.keepers = s, cgroup.At(filepath.Join(s.Cgroup, keepersGroup))
		if err := next.restore(); err != nil {
			t.Fatal(err)
		}
		named := next.endpointNamed("named")
		number, err := next.enforced.Name(named, is(next, named))
		if err := errors.Join(err, next.enforced.Close()); err != nil {
			t.Fatal(err)
		}
		return number
	}
	if number := numberFor(state); number != bound {
		t.Errorf("nothing has changed, and the endpoint has the number %d; sockets that were bound to it have %d", number, bound)
	}
	fresh := numberFor(killed)
	if fresh <= bound {
		t.Errorf("another endpoint has the number %d; sockets that were bound to the former one have %d", fresh, bound)
	}
	// Who is about to bind the former one by its name gets no number after that which the record has.
	o.fails = nil
	if _, err := c.SetRules(&moved); err != nil {
		t.Fatal(err)
	}
	if late, err := c.enforced.Name(was, is(c, was)); err != nil || late != 0 {
		t.Errorf("a socket gets the number %d of an endpoint that has gone, %v; the record has %v", late, err, c.state.Moved)
	}
	// Sockets that have been bound since have the new one, as long as it stays.
	if number := numberFor(killed); number != fresh {
		t.Errorf("the new endpoint had the number %d, and has %d", fresh, number)
	}
}

// A disk that is full keeps no rule in force that is not granted any more. What could not be written down is written
// down the next time.
func TestTakenAwayUnsaved(t *testing.T) {
	rules := ruled([]string{webA, out}, []string{"0.0.0.0:80=web"}, "10.0.0.0/8=out")
	less := ruled([]string{out}, nil, "10.0.0.0/8=out")
	c, o := made(t, rules)
	all, fewer, more := parsed(t, rules), parsed(t, less), parsed(t, ruled([]string{out}, nil, "10.0.0.0/8=out", "11.0.0.0/8=out"))
	o.fails = unix.ENOSPC
	if _, err := c.SetRules(&fewer); !errors.Is(err, unix.ENOSPC) || errors.Is(err, ErrUnsaved) || len(c.Rules().Ingress) != 1 {
		t.Errorf("without a grant: %v, %+v", err, c.Rules())
	}
	c.spec.Granted = true
	if _, err := c.SetRules(&more); !errors.Is(err, unix.ENOSPC) || errors.Is(err, ErrUnsaved) || len(c.Rules().Egress) != 1 {
		t.Errorf("another rule: %v, %+v", err, c.Rules())
	}
	o.reserved = nil
	changed, err := c.SetRules(&fewer)
	if diff := cmp.Diff(Changed{Withdrawn: []string{"-i 0.0.0.0:80=web"}}, changed); !errors.Is(err, ErrUnsaved) || !errors.Is(err, unix.ENOSPC) || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if len(c.Rules().Ingress) != 0 || len(c.table.IngressRules()) != 0 || len(o.reserved[len(o.reserved)-1]) != 0 {
		t.Errorf("the rule is in force: %+v, ports %v", c.Rules(), o.reserved)
	}
	o.fails, o.saved = nil, nil
	for range 2 { // the second time, nothing is left to be saved
		if changed, err := c.SetRules(&fewer); err != nil || cmp.Diff(Changed{}, changed) != "" {
			t.Errorf("%+v, %v", changed, err)
		}
	}
	if len(o.saved) != 1 || !slices.Equal(o.saved[0].Gone, []int{1}) {
		t.Errorf("saved: %+v", o.saved)
	}
	if _, err := c.SetRules(&all); err != nil {
		t.Error(err)
	}
}

// What fails once the rules are in force comes with the change, and is done with the next one.
func TestChangedBut(t *testing.T) {
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	away := "away type ipv4 addr 0.0.0.0 port dynamic netns " + fmt.Sprintf("/proc/self/fd/%d", ns.File().Fd())
	c, o := made(t, ruled([]string{out, away}, nil, "10.0.0.0/8=out", "11.0.0.0/8=away"))
	less := parsed(t, ruled([]string{out}, nil, "10.0.0.0/8=out"))
	if err := c.host[c.endpointNamed("away").Netns].ns.Close(); err != nil { // so that it cannot be closed once more
		t.Fatal(err)
	}
	changed, err := c.SetRules(&less)
	var done InForceError
	if diff := cmp.Diff(Changed{Withdrawn: []string{"-e 11.0.0.0/8=away"}}, changed); !errors.As(err, &done) || errors.Is(err, ErrUnsaved) || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if len(c.table.EgressRules()) != 1 || len(o.saved) != 1 {
		t.Errorf("in force: %v; saved %d times", c.table.EgressRules(), len(o.saved))
	}

	gone, tried := c.endpointNamed("out"), []*endpoint.Endpoint(nil)
	fails := errors.New("the kernel does not")
	from := func(ep *endpoint.Endpoint) error {
		tried = append(tried, ep)
		return fails
	}
	if err := c.withdraw([]*endpoint.Endpoint{gone}, from); !errors.Is(err, fails) || !slices.Equal(c.unwithdrawn, []*endpoint.Endpoint{gone}) {
		t.Errorf("%v; %v are left", err, c.unwithdrawn)
	}
	if changed, err := c.SetRules(&less); err != nil || cmp.Diff(Changed{}, changed) != "" || len(c.unwithdrawn) > 0 {
		t.Errorf("the same rules: %+v, %v; %v are left", changed, err, c.unwithdrawn)
	}
	fails = nil
	if err := c.withdraw(nil, from); err != nil || len(tried) != 1 {
		t.Errorf("%v; %v were withdrawn again", err, tried)
	}
}

// Resolvers are replaced, taken away and given back, and whoever takes the container over has those in force.
func TestRestoredResolvers(t *testing.T) {
	of := func(dns ...string) api.Rules {
		r := api.Rules{Endpoints: []string{"six type ipv6 addr :: port dynamic"}, Egress: []string{"2001:db8::/32=six"}}
		if len(dns) > 0 {
			r.Translate = &api.Translate{DNS: dns}
		}
		return r
	}
	c, _ := checked(t, of("198.51.100.53:53"), true)
	for _, dns := range [][]string{{"198.51.100.54:53", "[fe80::1%eth0]:53"}, {}, {"198.51.100.53:53"}} {
		want := parsed(t, of(dns...))
		if err := c.CheckRules(&want); err != nil {
			t.Fatal(err)
		}
		n, err := c.wanted(&want)
		if err != nil {
			t.Fatal(err)
		}
		c.given.Store(n.given)
		g, text, err := reread(t, c, n.given)
		if err != nil || !g.equals(n.given) || !slices.EqualFunc(g.resolvers, dns, func(r netip.AddrPort, text string) bool { return r.String() == text }) {
			t.Errorf("%v: %+v is restored as %+v, %v, of %s", dns, n.given.resolvers, g, err, text)
		}
		if shown := c.Rules().Translate; (shown != nil) != (len(dns) > 0) || shown != nil && !slices.Equal(shown.DNS, dns) {
			t.Errorf("%v: shown as %+v", dns, shown)
		}
		same, err := c.ReadRules(api.Rules{Egress: of().Egress, Endpoints: of().Endpoints})
		if err != nil || (same.Translation != nil) != (len(dns) > 0) {
			t.Errorf("%v: rules without a translation are read as %+v, %v", dns, same.Translation, err)
		}
	}
	if _, err := restored(&State{Resolvers: []string{"x"}}, &c.spec); err == nil {
		t.Error("a resolver that is none is restored")
	}
}
