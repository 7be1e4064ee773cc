package enforcer

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/policytest"
)

// testGroup is the cgroup that enforce has made, and that fn runs in.
func testGroup(t *testing.T) *os.File {
	t.Helper()
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(own)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

// takeOver restores the table of rules and adopts what is in force of it.
func takeOver(t *testing.T, rules []policy.Egress, numbered []*endpoint.Endpoint, eps map[string]*endpoint.Endpoint) (*policy.Table, *Enforcement) {
	t.Helper()
	restored, err := policy.Restore(nil, rules, numbered)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Adopt(testGroup(t), restored, func(name string, _ uint32) *endpoint.Endpoint { return eps[name] })
	if err != nil {
		t.Fatal(err)
	}
	return restored, e
}

// What one process has put in force another takes over: the rules, what is bound,
// what is served, what was counted; and it can change all of it.
func TestAdopt(t *testing.T) {
	eps := map[string]*endpoint.Endpoint{"a": policytest.Fresh(t, "a", 1), "b": policytest.Fresh(t, "b", 2), namedEndpoint.Name: namedEndpoint}
	tb, err := policy.NewTable(nil, policytest.RulesOf(t, policytest.UpdateRules, eps))
	if err != nil {
		t.Fatal(err)
	}
	enforce(t, tb, func(e *Enforcement) {
		here := namespaceHere(t)
		to := sockaddr.Of(netip.MustParseAddrPort("198.51.100.2:80"))
		refused := sockaddr.Of(netip.MustParseAddrPort("203.0.113.1:80"))
		s := socketOf(t, unix.AF_INET, unix.SOCK_STREAM)
		bindByName(t, e, s, netip.MustParseAddrPort("0.0.0.0:0"), here)
		if err := unix.Connect(socketOf(t, unix.AF_INET, unix.SOCK_STREAM), refused); !errors.Is(err, unix.EPERM) {
			t.Fatalf("connect where no rule leads: %v, want EPERM", err)
		}
		served := policy.Binding{Host: netip.MustParseAddrPort("127.0.1.1:8080"), View: netip.MustParseAddrPort("0.0.0.0:80")}
		if err := e.Serve(unix.IPPROTO_TCP, served, here); err != nil {
			t.Fatal(err)
		}
		want, _ := dump(t, e)
		denied, err := e.Denied()
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}

		restored, next := takeOver(t, policytest.RulesOf(t, policytest.UpdateRules, eps), tb.Numbered(), eps)
		defer next.Close()
		if got, _ := dump(t, next); !cmp.Equal(want, got) {
			t.Error(cmp.Diff(want, got))
		}
		if got, err := next.Denied(); got != denied || denied.Connect != 1 || err != nil {
			t.Errorf("denied: %+v, %v; was %+v", got, err, denied)
		}
		services, err := next.Services()
		if !slices.Equal(services, []policy.Service{{Protocol: unix.IPPROTO_TCP, Port: 80, Is4: true, Host: netip.MustParseAddrPort("[::ffff:127.0.1.1]:8080"), Netns: here}}) || err != nil {
			t.Errorf("services: %+v, %v", services, err)
		}
		if err := unix.Connect(s, to); !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("connect by a name: %v, want what the namespace says", err)
		}
		if err := next.Withdraw(namedEndpoint); err != nil {
			t.Error(err)
		}
		if err := unix.Connect(s, to); !errors.Is(err, unix.EPERM) {
			t.Errorf("connect through an endpoint that is gone: %v, want EPERM", err)
		}
		if s := socketOf(t, unix.AF_INET, unix.SOCK_STREAM); next.Prove(s) != nil {
			t.Error("sockets are not policed any more")
		}
		fewer, err := restored.Next(nil, policytest.RulesOf(t, policytest.UpdateRules[:1], eps))
		if err != nil {
			t.Fatal(err)
		}
		if err := next.Update(fewer, func(*endpoint.Endpoint) uint64 { return here }); err != nil {
			t.Fatal(err)
		}
		if got, _ := dump(t, next); cmp.Equal(want, got) {
			t.Error("the update changed nothing")
		}
	})
}

// TestAdoptHalfChanged ends a process at each step of a change of the table: whoever takes
// over has the new one in force, and nothing else.
func TestAdoptHalfChanged(t *testing.T) {
	eps := map[string]*endpoint.Endpoint{}
	for i, name := range []string{"a", "b", "c", "d", "e", "f"} {
		eps[name] = policytest.Fresh(t, name, i+1)
	}
	before := policytest.RulesOf(t, []string{"10.1.0.0/16=a", "10.2.0.0/16=b", "10.2.3.0/24=c", "10.3.0.0/16=d", "10.4.0.0/16=e"}, eps)
	after := policytest.RulesOf(t, []string{"10.1.0.0/16=f", "10.2.0.0/16=b", "10.3.0.0/16=e", "10.5.0.0/16=f"}, eps)
	netnsOf := func(*endpoint.Endpoint) uint64 { return 1 }
	old, err := policy.NewTable(nil, before)
	if err != nil {
		t.Fatal(err)
	}
	next, err := old.Next(nil, after)
	if err != nil {
		t.Fatal(err)
	}
	for _, steps := range []struct {
		name string
		do   func(*Enforcement) error
	}{
		{"nothing", func(*Enforcement) error { return nil }},
		{"endpoints", func(e *Enforcement) error {
			return e.writeEndpoints(endpointRows(next, netnsOf))
		}},
		{"prefixes", func(e *Enforcement) error {
			if err := e.write(next, netnsOf); err != nil {
				return err
			}
			// Those that go are there yet, and their endpoints.
			gone := netip.MustParsePrefix("10.2.3.0/24")
			return errors.Join(e.writeEndpoints(endpointRows(old, netnsOf)), e.rows.egress.put(e.prefixKey(gone), egressRow(routeOf(t, old, gone))))
		}},
		{"all", func(e *Enforcement) error { return e.write(next, netnsOf) }},
	} {
		t.Run(steps.name, func(t *testing.T) {
			var want map[string]string
			enforceMaps(t, next, netnsOf, func(e *Enforcement) { want, _ = dump(t, e) })
			enforce(t, old, func(e *Enforcement) {
				if err := errors.Join(steps.do(e), e.Close()); err != nil {
					t.Fatal(err)
				}
				restored, adopted := takeOver(t, after, next.Numbered(), eps)
				defer adopted.Close()
				if err := adopted.Update(restored, netnsOf); err != nil {
					t.Fatal(err)
				}
				got, unnamed := dump(t, adopted)
				if diff := cmp.Diff(want, got); diff != "" || len(unnamed) > 0 {
					t.Errorf("the maps are not the new table's (rows without a name: %v):\n%s", unnamed, diff)
				}
			})
		})
	}
}

// routeOf is the route of a prefix.
func routeOf(t *testing.T, tb *policy.Table, p netip.Prefix) policy.Route {
	t.Helper()
	for _, r := range tb.Routes() {
		if r.Prefix == p {
			return r
		}
	}
	t.Fatalf("no route for %s", p)
	return policy.Route{}
}

// A cgroup without our programs is not taken for a container's.
func TestAdoptRefuses(t *testing.T) {
	withGroup(t, "adopt", func(_ *cgroup.Group, dir *os.File) {
		if _, err := Adopt(dir, empty(t), nil); !errors.Is(err, ErrNotAdopted) {
			t.Errorf("adopt: %v, want %v", err, ErrNotAdopted)
		}
	})
}
