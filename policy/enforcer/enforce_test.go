package enforcer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/policytest"
)

// withGroup runs fn with a new cgroup, whose name ends in what is given.
func withGroup(t *testing.T, name string, fn func(group *cgroup.Group, dir *os.File)) {
	t.Helper()
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	group, err := cgroup.Create(own, fmt.Sprintf("tsugiki-test-%s-%d", name, os.Getpid()))
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
	fn(group, dir)
}

// enforce attaches a table to a new cgroup and runs fn on a thread that makes
// its sockets there, in a namespace that has only a loopback.
func enforce(t *testing.T, tb *policy.Table, fn func(e *Enforcement)) {
	t.Helper()
	withGroup(t, "policy", func(group *cgroup.Group, dir *os.File) {
		ns, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		e, err := Enforce(dir, tb, func(*endpoint.Endpoint) uint64 { return ns.Cookie() })
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		err = ns.Do(func() error {
			testkit.HoldSignals(t) // the thread ends with the test
			return inGroup(group, func() { fn(e) })
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// inGroup moves the calling thread's process into a cgroup for the time of fn: a
// socket belongs to the cgroup that its maker is in.
func inGroup(group *cgroup.Group, fn func()) error {
	runtime.LockOSThread()
	own, err := cgroup.Own()
	if err != nil {
		return err
	}
	move := func(to string) error {
		return os.WriteFile(to+"/cgroup.procs", fmt.Appendf(nil, "%d", os.Getpid()), 0)
	}
	if err := move(group.Path()); err != nil {
		return err
	}
	fn()
	return move(own)
}

// tryConnectBy connects a new socket of a type, without waiting, and tells whether policy refused it.
// A UDP socket sends nothing. Without a route the kernel says so after policy has passed.
func tryConnectBy(typ int, to netip.AddrPort, mapped bool) (refused bool, err error) {
	family := unix.AF_INET6
	var sa unix.Sockaddr = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	if to.Addr().Is4() && !mapped {
		family = unix.AF_INET
		sa = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	s, err := unix.Socket(family, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(s)
	err = unix.Connect(s, sa)
	return errors.Is(err, unix.EPERM), nil
}

// The kernel programs refuse exactly what the table has no endpoint for.
func TestKernelAgreesWithTable(t *testing.T) {
	ruleSets := [][]string{
		nil,
		{"0.0.0.0/0=any"},
		{"0.0.0.0/0=any", "::/0=six", "127.0.0.1:53=any"},
		{"10.0.0.0/8=any", "10.1.0.0/16:80-90=any", "10.1.2.0/24:1-1000=any", "2001:db8::/32=six", "[2001:db8:1::/48]:443=six"},
		{"::/0=six"},
		{"[::/64]:80=six", "[::1/128]:80=six"},
		{"0.0.0.0/0=any", "224.0.0.0/4=any", "255.255.255.255=any"},
		// More endpoints than are at hand.
		{"10.0.0.0/16=a", "10.1.0.0/16=b", "10.2.0.0/24=any", "10.2.1.0/24=web", "2001:db8::/32=six"},
		{"10.0.0.0/8/tcp=any", "10.0.0.0/8:53/udp=any", "10.1.0.0/16:80-90/udp=any", "10.1.0.0/16:85=a", "2001:db8::/32/udp=six", "[2001:db8:1::/48]:443/tcp=six"},
		{"169.254.169.254:80=any", "[fe80::/64]:80=six", "224.0.0.0/24=any"},
	}
	for i, rules := range ruleSets {
		tb, err := policytest.Table(t, nil, rules)
		if err != nil {
			t.Fatal(err)
		}
		// The endpoints' addresses are not this namespace's to bind.
		for _, ep := range tb.Numbered() {
			ep.Addr = netip.IPv4Unspecified()
			if ep.Type == endpoint.IPv6 {
				ep.Addr = netip.IPv6Unspecified()
			}
		}
		enforce(t, tb, func(*Enforcement) {
			for _, to := range policytest.AddressesNear(tb, rand.New(rand.NewPCG(1, uint64(i)))) {
				for _, mapped := range []bool{false, true} {
					for protocol, typ := range map[policy.Protocol]int{policy.TCP: unix.SOCK_STREAM, policy.UDP: unix.SOCK_DGRAM} {
						refused, err := tryConnectBy(typ, to, mapped)
						if err != nil {
							t.Fatal(err)
						}
						if want := tb.Egress(protocol, to) == nil; refused != want {
							t.Errorf("rules %v: %s%s (mapped: %v): refused is %v, the table says %v", rules, to, protocol, mapped, refused, want)
						}
					}
				}
			}
		})
	}
}

func TestKernelBindsOnlyWhatIsAllowed(t *testing.T) {
	tb, err := policytest.Table(t, []string{"0.0.0.0:80=any"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	enforce(t, tb, func(e *Enforcement) {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(s)
		bind := func(port int) error {
			return unix.Bind(s, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
		}
		if err := bind(8080); !errors.Is(err, unix.EPERM) {
			t.Errorf("bind that was not allowed: %v", err)
		}
		b := policy.Binding{Host: netip.MustParseAddrPort("127.0.0.1:8080"), View: netip.MustParseAddrPort("10.88.0.11:80"), Ingress: true}
		if err := e.AllowBind(s, b); err != nil {
			t.Fatal(err)
		}
		if err := bind(8081); !errors.Is(err, unix.EPERM) {
			t.Errorf("bind of another port than was allowed: %v", err)
		}
		if err := bind(8080); err != nil {
			t.Errorf("bind that was allowed: %v", err)
		}
		if !e.BoundByIngress(s) {
			t.Error("the binding is not known as an ingress rule's")
		}
		sa, err := unix.Getsockname(s)
		if in4, ok := sa.(*unix.SockaddrInet4); err != nil || !ok || in4.Port != 80 || in4.Addr != [4]byte{10, 88, 0, 11} {
			t.Errorf("getsockname says %+v, %v; want what the program bound", sa, err)
		}
		for level, name := range map[int]int{unix.SOL_SOCKET: unix.SO_MARK, unix.SOL_IP: unix.IP_TRANSPARENT} {
			if err := unix.SetsockoptInt(s, level, name, 1); !errors.Is(err, unix.EPERM) {
				t.Errorf("setsockopt %d/%d: %v", level, name, err)
			}
		}
		if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1); err != nil {
			t.Errorf("setsockopt SO_KEEPALIVE: %v", err)
		}
		if d, err := e.Denied(); err != nil || d.Bind != 2 || d.SetOption != 2 {
			t.Errorf("Denied: %+v, %v", d, err)
		}
	})
}
