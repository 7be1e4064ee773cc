package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/cgroup"
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

// What one process has put in force another takes over: the rules, what is bound,
// what is served, what was counted; and it can change all of it.
func TestAdopt(t *testing.T) {
	eps := map[string]*endpoint.Endpoint{"a": fresh(t, "a", 1), "b": fresh(t, "b", 2), namedEndpoint.Name: namedEndpoint}
	tb, err := NewTable(nil, rulesOf(t, updateRules, eps))
	if err != nil {
		t.Fatal(err)
	}
	enforce(t, tb, func(e *Enforcement) {
		here := namespaceHere(t)
		to := sockaddrOf(netip.MustParseAddrPort("198.51.100.2:80"))
		refused := sockaddrOf(netip.MustParseAddrPort("203.0.113.1:80"))
		s := socketOf(t, unix.AF_INET, unix.SOCK_STREAM)
		bindByName(t, e, s, netip.MustParseAddrPort("0.0.0.0:0"), here)
		if err := unix.Connect(socketOf(t, unix.AF_INET, unix.SOCK_STREAM), refused); !errors.Is(err, unix.EPERM) {
			t.Fatalf("connect where no rule leads: %v, want EPERM", err)
		}
		served := Binding{Host: netip.MustParseAddrPort("127.0.1.1:8080"), View: netip.MustParseAddrPort("0.0.0.0:80")}
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

		restored, err := Restore(nil, rulesOf(t, updateRules, eps), tb.Numbered())
		if err != nil {
			t.Fatal(err)
		}
		next, err := Adopt(testGroup(t), restored, func(name string) *endpoint.Endpoint { return eps[name] })
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		if got, _ := dump(t, next); !cmp.Equal(want, got) {
			t.Error(cmp.Diff(want, got))
		}
		if got, err := next.Denied(); got != denied || denied.Connect != 1 || err != nil {
			t.Errorf("denied: %+v, %v; was %+v", got, err, denied)
		}
		services, err := next.Services()
		if !slices.Equal(services, []Service{{unix.IPPROTO_TCP, 80, true, here}}) || err != nil {
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
		fewer, err := restored.Next(nil, rulesOf(t, updateRules[:1], eps))
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

// A cgroup without our programs is not taken for a container's.
func TestAdoptRefuses(t *testing.T) {
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	group, err := cgroup.Create(own, fmt.Sprintf("tsugiki-test-adopt-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	}()
	dir, err := group.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := Adopt(dir, empty(t), nil); !errors.Is(err, ErrNotAdopted) {
		t.Errorf("adopt: %v, want %v", err, ErrNotAdopted)
	}
}
