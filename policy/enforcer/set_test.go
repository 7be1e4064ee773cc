package enforcer

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/policytest"
)

// contained is one of several containers in one namespace.
type contained struct {
	*Enforcement
	group *cgroup.Group
	dir   *os.File
	table *policy.Table
}

// socket makes one of its host sockets.
func (c *contained) socket(t *testing.T, typ int) (s int) {
	t.Helper()
	return c.socketOf(t, unix.AF_INET, typ)
}

func (c *contained) socketOf(t *testing.T, family, typ int) (s int) {
	t.Helper()
	if err := inGroup(c.group, func() { s = socketOf(t, family, typ) }); err != nil {
		t.Fatal(err)
	}
	return s
}

// listen has one of its host sockets listen at a server's address.
func (c *contained) listen(t *testing.T, at policy.Binding) {
	t.Helper()
	server := c.socketOf(t, familyOf(at.Host), unix.SOCK_STREAM)
	if err := errors.Join(c.AllowBind(server, at), unix.Bind(server, sockaddr.Of(at.Host)), unix.Listen(server, 8)); err != nil {
		t.Fatal(err)
	}
}

// containers runs fn, in a namespace without a route, with a container for each list of
// egress rules.
func containers(t *testing.T, fn func(here uint64, list []*contained), rules ...[]string) {
	t.Helper()
	testkit.CheckLeaks(t)
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	var list []*contained
	defer func() {
		for _, c := range list {
			c.End()
			if err := errors.Join(c.Close(), c.dir.Close(), c.group.Remove()); err != nil {
				t.Error(err)
			}
		}
	}()
	for i, r := range rules {
		tb, err := policytest.Table(t, []string{"0.0.0.0:80=any"}, r)
		if err != nil {
			t.Fatal(err)
		}
		group, err := cgroup.Create(own, fmt.Sprintf("tsugiki-test-set-%d-%d", os.Getpid(), i))
		if err != nil {
			t.Fatal(err)
		}
		dir, err := group.Open()
		if err != nil {
			t.Fatal(err)
		}
		e, err := Enforce(dir, tb, func(*endpoint.Endpoint) uint64 { return ns.Cookie() })
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, &contained{e, group, dir, tb})
	}
	if err := ns.Do(func() error {
		testkit.HoldSignals(t) // the thread ends with the test
		fn(ns.Cookie(), list)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

var somewhere = sockaddr.Of(netip.MustParseAddrPort("198.51.100.2:80"))

// reaches tells whether the rules let a new socket of a container's go there.
func (c *contained) reaches(t *testing.T) bool {
	t.Helper()
	err := unix.Connect(c.socket(t, unix.SOCK_STREAM), somewhere)
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("connect: %v, want EPERM, or ENETUNREACH, for there is no route", err)
	}
	return !errors.Is(err, unix.EPERM)
}

// Containers share programs, and nothing else.
func TestContainersAreApart(t *testing.T) {
	bpfFileSystem(t)
	containers(t, func(here uint64, list []*contained) {
		a, b := list[0], list[1]
		if a.set != b.set || a.id == b.id {
			t.Fatalf("sets %p and %p, numbers %d and %d", a.set, b.set, a.id, b.id)
		}
		if !a.reaches(t) || b.reaches(t) {
			t.Error("one's rules are in force for the other")
		}
		da, erra := a.Denied()
		db, errb := b.Denied()
		if da != (policy.Denied{}) || db != (policy.Denied{Connect: 1}) || erra != nil || errb != nil {
			t.Errorf("denied: %+v and %+v; %v, %v", da, db, erra, errb)
		}
		served := policy.Binding{Host: netip.MustParseAddrPort("127.0.0.1:8080"), View: netip.MustParseAddrPort("0.0.0.0:80"), Ingress: true}
		if err := a.Serve(unix.IPPROTO_TCP, served, here); err != nil {
			t.Fatal(err)
		}
		if s, err := b.Services(); len(s) != 0 || err != nil {
			t.Errorf("the other serves %+v, %v", s, err)
		}
	}, []string{"0.0.0.0/0=any"}, nil)
}

// What one container's supervisor notes about a socket that another has passed on is
// nothing to that one's programs, and the other way round.
func TestPassedSockets(t *testing.T) {
	containers(t, func(here uint64, list []*contained) {
		a, b := list[0], list[1]
		binding := policy.Binding{Host: netip.MustParseAddrPort("127.0.0.1:8080"), View: netip.MustParseAddrPort("0.0.0.0:80"), Ingress: true}
		for _, typ := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			s := a.socket(t, typ)
			if err := b.AllowBind(s, binding); err != nil {
				t.Fatal(err)
			}
			if err := unix.Bind(s, sockaddr.Of(binding.Host)); !errors.Is(err, unix.EPERM) {
				t.Errorf("type %d: bind by the other's leave: %v, want EPERM", typ, err)
			}
			if a.Bound(s) || !b.Bound(s) {
				t.Errorf("type %d: the binding is not the other's", typ)
			}
			if err := a.ForgetBind(s); err != nil || !b.Bound(s) {
				t.Errorf("type %d: the other's binding was forgotten, %v", typ, err)
			}
			if err := a.AllowBind(s, binding); !errors.Is(err, unix.EPERM) {
				t.Errorf("type %d: a binding in the other's place: %v, want EPERM", typ, err)
			}
		}
		s := a.socket(t, unix.SOCK_STREAM)
		if err := errors.Join(a.SetAFGraft(s, afgraft.State{Name: "ep"}), a.SetAFGraftOptions(s, []afgraft.Option{{Name: 1}})); err != nil {
			t.Fatal(err)
		}
		if _, is, err := b.AFGraft(s); is || err != nil {
			t.Errorf("a socket of the other's is an AF_GRAFT one: %v, %v", is, err)
		}
		if options, err := b.AFGraftOptions(s); len(options) != 0 || err != nil {
			t.Errorf("it has the other's options: %v, %v", options, err)
		}
		// Numbers of names are each container's own.
		n := a.socket(t, unix.SOCK_DGRAM)
		bindByName(t, a.Enforcement, n, netip.MustParseAddrPort("127.0.0.1:0"), here)
		if err := unix.Sendto(n, []byte("x"), 0, somewhere); errors.Is(err, unix.EPERM) {
			t.Error("a socket that was bound by name is refused")
		}
		if _, err := b.Name(namedEndpoint, isThere); err != nil {
			t.Fatal(err)
		}
		if err := b.Withdraw(namedEndpoint); err != nil {
			t.Fatal(err)
		}
		if err := unix.Sendto(n, []byte("x"), 0, somewhere); errors.Is(err, unix.EPERM) {
			t.Error("it is refused, as the other has withdrawn its own endpoint")
		}
	}, nil, nil)
}

// A container that is no more takes what was allowed with it, and nobody else's.
func TestEnd(t *testing.T) {
	all := []string{"0.0.0.0/0=any"}
	containers(t, func(_ uint64, list []*contained) {
		a, b := list[0], list[1]
		s := a.socket(t, unix.SOCK_DGRAM)
		a.End()
		testkit.Eventually(t, func() error {
			if err := unix.Sendto(s, []byte("x"), 0, somewhere); !errors.Is(err, unix.EPERM) {
				return fmt.Errorf("a socket that is left sends: %w", err)
			}
			return nil
		})
		if !b.reaches(t) {
			t.Error("another container is refused what its rules allow")
		}
	}, all, all)
}

// almostUsedUp is the current set, with numbers for one container, in a BPF file system of the
// test's own: other processes take numbers too.
func almostUsedUp(t *testing.T) (*set, *os.File) {
	t.Helper()
	mount := bpfFileSystem(t)
	sets.mu.Lock()
	defer sets.mu.Unlock()
	if sets.current != nil {
		t.Fatal("another test has left a container")
	}
	if err := haveCurrent(); err != nil {
		t.Fatal(err)
	}
	*sets.current.last = containersMax - 2
	return sets.current, mount
}

// Where numbers are used up, other programs are loaded; the former stay in force.
func TestSetIsUsedUp(t *testing.T) {
	almost, _ := almostUsedUp(t)
	all := []string{"0.0.0.0/0=any"}
	containers(t, func(_ uint64, list []*contained) {
		if list[0].set != almost || list[1].set == almost || list[1].set != list[2].set {
			t.Errorf("sets %p, %p and %p, the first being %p", list[0].set, list[1].set, list[2].set, almost)
		}
		for i, want := range []bool{true, false, true} {
			if list[i].reaches(t) != want {
				t.Errorf("container %d: reaches what it shall: %v", i, !want)
			}
		}
	}, all, nil, all)
}

// The containers of a loopback may be of two sets of programs: numbers run out while a pod starts.
func TestLoopbackOfTwoSets(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"published": TestPublishedOnLoopback, "private TCP": TestPrivatePortOfTCP, "private UDP": TestPrivatePortOfUDP,
	} {
		t.Run(name, func(t *testing.T) {
			almostUsedUp(t)
			test(t)
		})
	}
}

// Those that a process has left are taken over together; what it left in force stays so,
// and new ones get programs of this process's.
func TestAdoptSeveral(t *testing.T) {
	bpfFileSystem(t)
	containers(t, func(here uint64, list []*contained) {
		for _, c := range list[:2] {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for i, c := range list[:2] {
			if c.reaches(t) != (i == 0) {
				t.Errorf("container %d: what was left is not in force", i)
			}
			var err error
			if c.Enforcement, err = Adopt(c.dir, c.table, nil); err != nil {
				t.Fatal(err)
			}
		}
		a, b, c := list[0], list[1], list[2]
		if a.set != b.set || a.id == b.id || a.set == c.set {
			t.Errorf("sets %p, %p and %p, numbers %d and %d", a.set, b.set, c.set, a.id, b.id)
		}
		next, err := policytest.Table(t, []string{"0.0.0.0:80=any"}, []string{"203.0.113.0/24=any"})
		if err != nil {
			t.Fatal(err)
		}
		next, err = b.Enforcement.table.Next(next.IngressRules(), append([]policy.Egress(nil), policy.Egress{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Ports: endpoint.PortRange{Last: 65535}, Endpoint: next.Numbered()[0]}))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Update(next, func(*endpoint.Endpoint) uint64 { return here }); err != nil {
			t.Fatal(err)
		}
		if !a.reaches(t) || !b.reaches(t) || c.reaches(t) {
			t.Error("the rules of one that was taken over do not change alone")
		}
		if d, err := b.Denied(); err != nil || d.Connect != 1 {
			t.Errorf("denied: %+v, %v; was 1", d, err)
		}
		// A UDP server's peers are remembered after the change too.
		if err := a.AllowBind(a.socket(t, unix.SOCK_DGRAM), policy.Binding{Host: netip.MustParseAddrPort("127.0.0.1:53"), Ingress: true}); err != nil || a.tables.peers == nil || b.tables.peers != nil {
			t.Errorf("tables of peers: %v and %v, %v", a.tables.peers, b.tables.peers, err)
		}
	}, []string{"0.0.0.0/0=any"}, nil, nil)
}

// The relay keeps whom it knows.
func TestForgetSenders(t *testing.T) {
	containers(t, func(_ uint64, list []*contained) {
		a, b := list[0], list[1]
		for _, c := range list {
			if err := c.makeTable(sendersTable); err != nil {
				t.Fatal(err)
			}
			for _, port := range []uint16{1000, 2000} {
				if err := c.tables.senders.Put(senderKey(false, port), wordsOf(netip.MustParseAddr("127.0.0.1"))); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := a.ForgetSenders(func(ip6 bool, port uint16) bool { return !ip6 && port == 1000 }); err != nil {
			t.Fatal(err)
		}
		if !a.SentToRelay(false, 1000) || a.SentToRelay(false, 2000) || !b.SentToRelay(false, 2000) {
			t.Error("not those that shall be, and they alone, are forgotten")
		}
	}, nil, nil)
}
