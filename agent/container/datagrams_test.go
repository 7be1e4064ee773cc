package container

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/enforcer"
	"github.com/tsugiki/tsugiki/policy/policytest"
	"github.com/tsugiki/tsugiki/translate"
)

// enforced has what keeps the rules of a test's container in force, in a new network namespace.
type enforced struct {
	*enforcer.Enforcement
	ns         *netns.NS
	own, group string // paths of the test's cgroup, and of the one whose sockets the rules are for

	end func() error
}

// enforce puts a table in force until end is called.
func enforce(t *testing.T, table *policy.Table) enforced {
	t.Helper()
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	group, err := cgroup.Create(own, fmt.Sprintf("tsugiki-test-enforced-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := group.Open()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	e, err := enforcer.Enforce(dir, table, func(*endpoint.Endpoint) uint64 { return ns.Cookie() })
	if err != nil {
		t.Fatal(err)
	}
	return enforced{e, ns, own, group.Path(), func() error {
		e.End()
		return errors.Join(e.Close(), dir.Close(), group.Remove(), ns.Close())
	}}
}

// inKernel has the kernel's table of hosts of a container.
func inKernel(t *testing.T) *datagrams {
	t.Helper()
	needRoot(t)
	rules, err := policytest.Table(t, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := enforce(t, rules)
	d := &datagrams{ns: e.ns, log: slog.New(slog.DiscardHandler)}
	d.Datagrams, err = e.TranslateDatagrams(translate.DefaultPrefix)
	t.Cleanup(func() {
		if err := errors.Join(d.close(), e.end()); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// An address that is reclaimed while the kernel is told of all mappings stays the new host's.
func TestReclaimedMeanwhile(t *testing.T) {
	d, now := inKernel(t), time.Duration(0)
	table, err := translate.New(translate.Options{
		Prefix: netip.MustParsePrefix("198.18.0.0/30"), Mapped: d.put, Clock: func() time.Duration { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	d.table = table
	mapped := func(v6 netip.Addr) netip.Addr {
		t.Helper()
		v4, err := table.Map(v6, 0)
		if err != nil {
			t.Fatal(err)
		}
		return v4
	}
	first, second, third := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("2001:db8::3")
	v4, other := mapped(first), mapped(second)
	list := table.Mappings()
	now += time.Hour
	if again := mapped(third); again != v4 {
		t.Fatalf("%s is reclaimed, want %s", again, v4)
	}
	d.putAll(list)
	for v4, want := range map[netip.Addr]netip.Addr{v4: third, other: second} {
		if v6, known := d.host(v4); !known || v6 != want {
			t.Errorf("behind %s is %s, %v; want %s", v4, v6, known, want)
		}
		if virtual, known := d.virtual(want); !known || virtual != v4 {
			t.Errorf("%s is %s, %v; want %s", want, virtual, known, v4)
		}
	}
	if virtual, known := d.virtual(first); known {
		t.Errorf("%s is %s again", first, virtual)
	}
}

// The NAT64 is read and told to the kernel by one at a time: the last one to read is the last one to tell.
func TestLeadNAT64OneAtATime(t *testing.T) {
	d := inKernel(t)
	var inside atomic.Int32
	d.nat64 = func() (none translate.NAT64) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d read at a time", n)
		}
		for range 100 {
			runtime.Gosched()
		}
		inside.Add(-1)
		return none
	}
	var all sync.WaitGroup
	for range 16 {
		all.Go(d.leadNAT64)
	}
	all.Wait()
}
