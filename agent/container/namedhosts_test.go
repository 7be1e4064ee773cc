package container

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/enforcer"
	"github.com/tsugiki/tsugiki/translate"
)

// fakeKernel has what was opened, and fails if it is told to.
type fakeKernel struct {
	open  map[netip.Addr][]policy.Opening
	calls int
	fails error
}

func (f *fakeKernel) SetOpened(addr netip.Addr, openings []policy.Opening) error {
	f.calls++
	if f.fails != nil {
		delete(f.open, addr)
		return f.fails
	}
	if f.open == nil {
		f.open = map[netip.Addr][]policy.Opening{}
	}
	f.open[addr] = openings
	if len(openings) == 0 {
		delete(f.open, addr)
	}
	return nil
}

func (f *fakeKernel) Opened() map[netip.Addr][]policy.Opening { return maps.Clone(f.open) }

// says returns what is open, as "ADDR PORTS/PROTOCOL ..." in the order of addresses.
func (f *fakeKernel) says() string {
	var list []string
	for addr, openings := range f.open {
		text := addr.String()
		for _, o := range openings {
			text += fmt.Sprintf(" %s%s", o.Ports, o.Protocol)
		}
		list = append(list, text)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

var namesEndpoint = &endpoint.Endpoint{Name: "names", Type: endpoint.IPv6, Addr: netip.IPv6Unspecified()}

func nameRules(t *testing.T, texts ...string) (list []policy.NameRule) {
	t.Helper()
	for _, s := range texts {
		r, err := policy.ParseNameRule(s)
		if err != nil {
			t.Fatal(err)
		}
		r.Endpoint = namesEndpoint
		list = append(list, r)
	}
	return list
}

// namedTest runs a test on a clock of its own.
func namedTest(t *testing.T, kernel *fakeKernel, texts []string, fn func(t *testing.T, n *namedHosts, log *bytes.Buffer)) {
	t.Helper()
	list := nameRules(t, texts...)
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		n := newNamedHosts(list, kernel, slog.New(slog.NewTextHandler(&log, nil)), slog.New(slog.DiscardHandler))
		fn(t, n, &log)
		n.close()
		n.open("a.example.", netip.MustParseAddr("2001:db8::ffff"), 0)
		if kernel.open[netip.MustParseAddr("2001:db8::ffff")] != nil {
			t.Error("a container that has ended opens an address")
		}
	})
}

// An address is open until the TTL and the grace of its last answer are over, for each rule on its own.
func TestNamedHostsExpire(t *testing.T) {
	k := &fakeKernel{}
	namedTest(t, k, []string{"a.example:80", "**.example:443", "b.example:80"}, func(t *testing.T, n *namedHosts, log *bytes.Buffer) {
		one, two := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		begun := time.Now()
		at := func(since time.Duration, want string) {
			t.Helper()
			time.Sleep(time.Until(begun.Add(since)))
			synctest.Wait()
			if got := k.says(); got != want {
				t.Errorf("after %s %q is open, want %q", since, got, want)
			}
		}
		n.open("other.net.", one, time.Hour)
		at(0, "")
		n.open("A.example.", one, 30*time.Second) // until 1m30s
		n.open("c.example.", two, 0)              // until 1m
		at(0, "2001:db8::1 80 443, 2001:db8::2 443")
		at(30*time.Second, "2001:db8::1 80 443, 2001:db8::2 443")
		n.open("d.example.", one, 3*time.Minute) // until 4m30s, only 443
		at(time.Minute-1, "2001:db8::1 80 443, 2001:db8::2 443")
		at(time.Minute, "2001:db8::1 80 443")
		at(90*time.Second-1, "2001:db8::1 80 443")
		at(90*time.Second, "2001:db8::1 443")
		n.open("a.example.", one, 0)                    // does not shorten 443
		n.open("c.example.", two, 100*translate.MaxTTL) // is as MaxTTL
		n.open("b.example.", two, -time.Hour)           // is as 0
		at(150*time.Second-1, "2001:db8::1 80 443, 2001:db8::2 80 443")
		at(150*time.Second, "2001:db8::1 443, 2001:db8::2 443")
		at(270*time.Second, "2001:db8::2 443")
		at(90*time.Second+translate.MaxTTL+translate.Grace-1, "2001:db8::2 443")
		at(90*time.Second+translate.MaxTTL+translate.Grace, "")
		calls := k.calls
		at(100*time.Hour, "")
		if k.calls != calls || len(n.hosts) != 0 || n.used[0]+n.used[1]+n.used[2] != 0 || n.next != nil {
			t.Errorf("%d calls of nobody's, %+v is left", k.calls-calls, n.hosts)
		}
		if log.Len() > 0 {
			t.Errorf("it logs\n%s", log)
		}
	})
}

// An answer that opens nothing new is no call of the kernel's.
func TestNamedHostsAgain(t *testing.T) {
	k := &fakeKernel{}
	namedTest(t, k, []string{"a.example"}, func(t *testing.T, n *namedHosts, _ *bytes.Buffer) {
		for range 100 {
			n.open("a.example.", netip.MustParseAddr("2001:db8::1"), time.Minute)
			time.Sleep(time.Second)
		}
		if k.calls != 1 {
			t.Errorf("%d calls", k.calls)
		}
	})
}

// A rule whose names are answered with more and more addresses leaves room for those of other rules, and
// no address gives way to another one. That there is no room is said once a minute.
func TestNamedHostsFull(t *testing.T) {
	k := &fakeKernel{}
	namedTest(t, k, []string{"*.evil.example", "*.evil2.example", "db.example"}, func(t *testing.T, n *namedHosts, log *bytes.Buffer) {
		addr := netip.MustParseAddr("2001:db8::1")
		flood := func(name string) (first netip.Addr) {
			first = addr
			for range 3 * policy.OpenedMax {
				n.open(name, addr, time.Hour)
				addr = addr.Next()
			}
			return first
		}
		first := flood("a.evil.example.")
		if len(k.open) != policy.OpenedMax/2 || k.open[first] == nil || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "level=ERROR") ||
			!strings.Contains(log.String(), "rule=*.evil.example") || n.full != 3*policy.OpenedMax-policy.OpenedMax/2 {
			t.Errorf("%d are open of %d, %d had no room; it logs\n%s", len(k.open), policy.OpenedMax, n.full, log)
		}
		second := flood("b.evil2.example.")
		third := addr
		n.open("db.example.", third, 0)
		for _, a := range []netip.Addr{first, second, third} {
			if k.open[a] == nil {
				t.Errorf("%s is not open", a)
			}
		}
		if n := strings.Count(log.String(), "\n"); len(k.open) != policy.OpenedMax*3/4+1 || n != 1 {
			t.Errorf("%d are open, %d lines are logged", len(k.open), n)
		}
		time.Sleep(sayPause)
		flood("c.evil.example.")
		if n := strings.Count(log.String(), "\n"); n != 2 {
			t.Errorf("%d lines are logged", n)
		}
		time.Sleep(time.Hour + translate.Grace)
		synctest.Wait()
		if len(k.open) != 0 {
			t.Errorf("%d are still open", len(k.open))
		}
		if flood("a.evil.example."); len(k.open) != policy.OpenedMax/2 {
			t.Errorf("%d are open", len(k.open))
		}
	})
}

// What the kernel refuses is closed, takes no room, and is tried again with the next answer.
func TestNamedHostsRefused(t *testing.T) {
	k := &fakeKernel{fails: unix.ENOMEM}
	namedTest(t, k, []string{"a.example:80", "*.example:443"}, func(t *testing.T, n *namedHosts, log *bytes.Buffer) {
		one := netip.MustParseAddr("2001:db8::1")
		n.open("a.example.", one, time.Hour)
		if k.says() != "" || n.used[0]+n.used[1] != 0 || strings.Count(log.String(), "level=ERROR") != 1 {
			t.Errorf("%s is open, of the rules %v; it logs\n%s", k.says(), n.used, log)
		}
		time.Sleep(5 * sweepPause)
		synctest.Wait()
		if k.calls < 3 {
			t.Errorf("%d calls, and it may still be open", k.calls)
		}
		k.fails = nil
		n.open("a.example.", one, time.Hour)
		if got := k.says(); got != "2001:db8::1 80 443" {
			t.Errorf("%q is open", got)
		}
		k.fails = unix.ENOMEM
		time.Sleep(time.Hour + translate.Grace)
		synctest.Wait()
		k.fails = nil
		time.Sleep(2 * sweepPause)
		synctest.Wait()
		if len(n.hosts) != 0 || n.used[0]+n.used[1] != 0 || k.says() != "" {
			t.Errorf("%v are left, of the rules %v", n.hosts, n.used)
		}
	})
}

// What an earlier process has opened stays open for the grace.
func TestNamedHostsAdopted(t *testing.T) {
	list := nameRules(t, "a.example:80", "b.example:443", "c.example:443")
	k := &fakeKernel{open: map[netip.Addr][]policy.Opening{netip.MustParseAddr("2001:db8::1"): policy.Openings(list), netip.MustParseAddr("2001:db8::2"): policy.Openings(list[:1])}}
	namedTest(t, k, []string{"a.example:80", "b.example:443", "c.example:443"}, func(t *testing.T, n *namedHosts, _ *bytes.Buffer) {
		n.open("b.example.", netip.MustParseAddr("2001:db8::1"), time.Minute)
		time.Sleep(translate.Grace - 1)
		synctest.Wait()
		if got := k.says(); got != "2001:db8::1 80 443, 2001:db8::2 80" {
			t.Errorf("%q is open", got)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := k.says(); got != "2001:db8::1 443" {
			t.Errorf("%q is open", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := k.says(); got != "" {
			t.Errorf("%q is open", got)
		}
	})
}

// The kernel refuses a connect to an address whose time is over, and lets a connection go on.
func TestNamedHostsInKernel(t *testing.T) {
	needRoot(t)
	list := nameRules(t, "a.example")
	table, err := policy.NewTable(nil, nil, list...)
	if err != nil {
		t.Fatal(err)
	}
	inEnforced(t, table, func(ns *netns.NS, e *enforcer.Enforcement, socket func() int) {
		addr := netip.MustParseAddr("2001:db8::7")
		if err := ns.AddToLoopback(addr); err != nil {
			t.Fatal(err)
		}
		server, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(server)
		to := &unix.SockaddrInet6{Port: 7171, Addr: addr.As16()}
		// The kernel has the address a little later.
		testkit.Eventually(t, func() error { return unix.Bind(server, to) })
		if err := unix.Listen(server, 8); err != nil {
			t.Fatal(err)
		}
		// The namespace is this thread's. A test on a clock of its own runs on another.
		before, kept, after, again := socket(), socket(), socket(), socket()
		refused := func(s int, when string) {
			t.Helper()
			if err := unix.Connect(s, to); !errors.Is(err, unix.EPERM) {
				t.Errorf("%s: %v, want EPERM", when, err)
			}
		}
		refused(before, "before it was answered")
		synctest.Test(t, func(t *testing.T) {
			n := newNamedHosts(list, e, slog.New(slog.DiscardHandler), slog.New(slog.DiscardHandler))
			defer n.close()
			n.open("a.example.", addr, time.Minute)
			time.Sleep(time.Minute + translate.Grace - 1)
			synctest.Wait()
			if err := unix.Connect(kept, to); err != nil {
				t.Fatalf("in its time: %v", err)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			refused(after, "after its time")
			// The connection is there all the same.
			there, _, err := unix.Accept4(server, unix.SOCK_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(there)
			if _, err := unix.Write(kept, []byte("still here")); err != nil {
				t.Error(err)
			}
			data := make([]byte, 100)
			if k, err := unix.Read(there, data); err != nil || string(data[:max(k, 0)]) != "still here" {
				t.Errorf("it hears %q, %v", data[:max(k, 0)], err)
			}
			n.open("a.example.", addr, 0)
			if err := unix.Connect(again, to); err != nil {
				t.Errorf("after it was answered again: %v", err)
			}
		})
	})
}

// inEnforced runs fn in a new network namespace in which a table is in force for the sockets of socket.
func inEnforced(t *testing.T, table *policy.Table, fn func(ns *netns.NS, e *enforcer.Enforcement, socket func() int)) {
	t.Helper()
	e := enforce(t, table)
	defer func() {
		if err := e.end(); err != nil {
			t.Error(err)
		}
	}()
	move := func(to string) error {
		return os.WriteFile(to+"/cgroup.procs", fmt.Appendf(nil, "%d", os.Getpid()), 0)
	}
	var sockets []int
	err := e.ns.Do(func() error {
		testkit.HoldSignals(t) // the thread ends with the test
		fn(e.ns, e.Enforcement, func() int {
			err := move(e.group)
			s, socketErr := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err = errors.Join(err, socketErr, move(e.own)); err != nil {
				t.Fatal(err)
			}
			sockets = append(sockets, s)
			return s
		})
		return nil
	})
	for _, s := range sockets {
		err = errors.Join(err, unix.Close(s))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Name rules are listed with their endpoint, and are not in force without it.
func TestNameRulesOfContainer(t *testing.T) {
	needRoot(t)
	given, err := rules.Parse(api.Rules{NameRules: []string{"*.example.com:443", "db.example"}, Translate: &api.Translate{}})
	if err != nil {
		t.Fatal(err)
	}
	c := New(Spec{
		Name: "c", RunDir: t.TempDir(), LoopbackOnly: true, Rules: given,
		Ports: ports.New().Holder("c"), Log: slog.New(slog.DiscardHandler),
	}, &fakeOwner{})
	t.Cleanup(func() {
		if _, err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.Prepare(); err != nil {
		t.Fatal(err)
	}
	list := c.ListEndpoints()
	if len(list) != 1 || list[0].Name != "names" || strings.Join(list[0].Rules, ", ") != "--name-rule *.example.com:443, --name-rule db.example" {
		t.Errorf("%+v are listed", list)
	}
	if shown := c.describe().Egress; !slices.Equal(shown, []string{"*.example.com:443->::", "db.example->::"}) {
		t.Errorf("%q are shown", shown)
	}
	if !c.state.Untrapped || c.table.NameEndpoint() == nil {
		t.Errorf("the kernel programs decide: %v, names lead to %v", c.state.Untrapped, c.table.NameEndpoint())
	}
	set := c.endpoints.Load().Clone()
	if err := set.Remove("names"); err != nil {
		t.Fatal(err)
	}
	if next, err := c.nextTable(c.given.Load(), &set); err != nil || next.NameEndpoint() != nil {
		t.Errorf("without its endpoint: %v, %v", next.NameEndpoint(), err)
	}
}
