package enforcer

import (
	"bytes"
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/policytest"
)

func empty(t *testing.T) *policy.Table {
	t.Helper()
	tb, err := policytest.Table(t, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tb
}

func socketOf(t *testing.T, family, typ int) int {
	t.Helper()
	s, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s) })
	return s
}

// What belongs to an AF_GRAFT socket is there for every descriptor of it, and
// for no other socket.
func TestGraft(t *testing.T) {
	enforce(t, empty(t), func(e *Enforcement) {
		s, other := socketOf(t, unix.AF_INET6, unix.SOCK_STREAM), socketOf(t, unix.AF_UNIX, unix.SOCK_DGRAM)
		if _, is, err := e.AFGraft(s); is || err != nil {
			t.Errorf("a new socket: %v, %v", is, err)
		}
		want := afgraft.State{Name: "123456789012345", Delayed: true, NameTransparent: true}
		for _, g := range []afgraft.State{{}, {Name: "ep"}, want} {
			if err := e.SetAFGraft(s, g); err != nil {
				t.Fatal(err)
			}
			dup, err := unix.Dup(s)
			if err != nil {
				t.Fatal(err)
			}
			if got, is, err := e.AFGraft(dup); got != g || !is || err != nil {
				t.Errorf("AFGraft: %+v, %v, %v; want %+v", got, is, err, g)
			}
			unix.Close(dup)
		}
		file, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(file)
		if _, is, err := e.AFGraft(file); is || err != nil {
			t.Errorf("no socket: %v, %v", is, err)
		}
		if _, is, err := e.AFGraft(other); is || err != nil {
			t.Errorf("another socket: %v, %v", is, err)
		}
	})
}

// It outlives us: the attached programs keep the maps.
func TestGraftOutlivesItsMaker(t *testing.T) {
	var id ebpf.MapID
	s := -1
	enforce(t, empty(t), func(e *Enforcement) {
		s = socketOf(t, unix.AF_INET, unix.SOCK_STREAM)
		if err := e.SetAFGraft(s, afgraft.State{Name: "ep"}); err != nil {
			t.Fatal(err)
		}
		info, err := e.set.GraftBySocket.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ = info.ID()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatalf("the map is gone: %v", err)
		}
		defer m.Close()
		again := &Enforcement{id: e.id, set: &set{PolicyMaps: bpf.PolicyMaps{GraftBySocket: m}}}
		if g, is, err := again.AFGraft(s); !is || g.Name != "ep" || err != nil {
			t.Errorf("AFGraft: %+v, %v, %v", g, is, err)
		}
	})
}

func TestGraftOptions(t *testing.T) {
	enforce(t, empty(t), func(e *Enforcement) {
		s := socketOf(t, unix.AF_INET, unix.SOCK_STREAM)
		if options, err := e.AFGraftOptions(s); len(options) != 0 || err != nil {
			t.Errorf("a new socket: %v, %v", options, err)
		}
		var want []afgraft.Option
		for i := range 16 {
			want = append(want, afgraft.Option{Level: 1, Name: -i, Value: bytes.Repeat([]byte{7}, 8*(i+1)), Done: i%2 == 0, Result: -i})
		}
		if err := e.SetAFGraftOptions(s, want); err != nil {
			t.Fatal(err)
		}
		for _, more := range [][]afgraft.Option{
			append(want[:16:16], afgraft.Option{}),
			{{Value: make([]byte, 129)}},
		} {
			if err := e.SetAFGraftOptions(s, more); !errors.Is(err, afgraft.ErrQueueFull) {
				t.Errorf("too much: %v", err)
			}
		}
		if got, err := e.AFGraftOptions(s); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("AFGraftOptions: %v, %v; want %v", got, err, want)
		}
	})
}

// namespaceHere is the SO_NETNS_COOKIE of the calling thread's namespace.
func namespaceHere(t *testing.T) uint64 {
	t.Helper()
	probe := socketOf(t, unix.AF_UNIX, unix.SOCK_DGRAM)
	here, err := unix.GetsockoptUint64(probe, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		t.Fatal(err)
	}
	return here
}

var namedEndpoint = &endpoint.Endpoint{Name: "named"}

// bindByName binds a socket as the engine does for a program that names an
// endpoint.
func bindByName(t *testing.T, e *Enforcement, s int, host netip.AddrPort, netns uint64) {
	t.Helper()
	named, err := e.Name(namedEndpoint, isThere)
	if err != nil {
		t.Fatal(err)
	}
	b := policy.Binding{Host: host, View: host, Ingress: true, Named: named, Netns: netns}
	err = e.AllowBind(s, b)
	if err == nil {
		err = unix.Bind(s, sockaddr.Of(host))
	}
	if err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(s)
	if err != nil {
		t.Fatal(err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		b.Host = netip.AddrPortFrom(host.Addr(), uint16(sa.Port))
	case *unix.SockaddrInet6:
		b.Host = netip.AddrPortFrom(host.Addr(), uint16(sa.Port))
	}
	if err := e.AllowBind(s, b); err != nil {
		t.Fatal(err)
	}
}

// A socket that was bound to an endpoint by its name reaches what is not special,
// and only in that endpoint's namespace.
func TestByName(t *testing.T) {
	enforce(t, empty(t), func(e *Enforcement) {
		here := namespaceHere(t)
		for _, tt := range []struct {
			name     string
			bind, to string
			netns    uint64
			refused  bool
		}{
			{"wildcard", "0.0.0.0:0", "198.51.100.2:80", here, false},
			{"address and port", "127.0.0.1:4000", "198.51.100.2:80", here, false},
			{"IPv6", "[::]:0", "[2001:db8::2]:80", here, false},
			{"loopback", "127.0.0.1:0", "127.0.0.1:80", here, true},
			{"unspecified", "0.0.0.0:0", "0.0.0.0:80", here, true},
			{"link-local", "0.0.0.0:0", "169.254.169.254:80", here, true},
			{"IPv6 loopback", "[::]:0", "[::1]:80", here, true},
			{"mapped loopback", "[::]:0", "[::ffff:127.0.0.1]:80", here, true},
			{"IPv4 by an IPv6 endpoint", "[::]:0", "[::ffff:198.51.100.2]:80", here, true},
			{"another namespace", "0.0.0.0:0", "198.51.100.2:80", here + 1, true},
			{"not by name", "0.0.0.0:0", "198.51.100.2:80", 0, true},
		} {
			host, to := netip.MustParseAddrPort(tt.bind), netip.MustParseAddrPort(tt.to)
			for _, typ := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
				s := socketOf(t, familyOf(host), typ)
				bindByName(t, e, s, host, tt.netns)
				// What passes meets a namespace that has no route.
				err := unix.Connect(s, sockaddr.Of(to))
				if refused := errors.Is(err, unix.EPERM); refused != tt.refused || err == nil {
					t.Errorf("%s, type %d: connect: %v", tt.name, typ, err)
				}
				if typ == unix.SOCK_STREAM {
					continue
				}
				err = unix.Sendto(s, []byte("x"), 0, sockaddr.Of(to))
				if refused := errors.Is(err, unix.EPERM); refused != tt.refused || err == nil {
					t.Errorf("%s: sendto: %v", tt.name, err)
				}
			}
		}
	})
}

func familyOf(a netip.AddrPort) int {
	if a.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// What was bound by a name connects through it only as long as it is there; one
// that is bound to its successor does.
func TestWithdraw(t *testing.T) {
	enforce(t, empty(t), func(e *Enforcement) {
		here := namespaceHere(t)
		to := sockaddr.Of(netip.MustParseAddrPort("198.51.100.2:80"))
		newSocket := func() int {
			s := socketOf(t, unix.AF_INET, unix.SOCK_STREAM)
			bindByName(t, e, s, netip.MustParseAddrPort("0.0.0.0:0"), here)
			return s
		}
		old := newSocket()
		if err := unix.Connect(old, to); !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("connect: %v, want what the namespace says", err)
		}
		for range 2 { // a second time changes nothing
			if err := e.Withdraw(namedEndpoint); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Connect(old, to); !errors.Is(err, unix.EPERM) {
			t.Errorf("connect through an endpoint that is gone: %v, want EPERM", err)
		}
		if err := unix.Connect(newSocket(), to); !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("connect through its successor: %v, want what the namespace says", err)
		}
		if err := unix.Connect(old, to); !errors.Is(err, unix.EPERM) {
			t.Errorf("the old socket connects through the successor: %v, want EPERM", err)
		}
	})
}

// An endpoint that was withdrawn, or that the next process does not know, is no endpoint's to whom a
// number is given after that process took over.
func TestWithdrawnStaysSo(t *testing.T) {
	for name, knows := range map[string]bool{"withdrawn": true, "unknown to the next": false} {
		t.Run(name, func(t *testing.T) {
			enforce(t, empty(t), func(e *Enforcement) {
				here := namespaceHere(t)
				to := sockaddr.Of(netip.MustParseAddrPort("198.51.100.2:80"))
				old := socketOf(t, unix.AF_INET, unix.SOCK_STREAM)
				bindByName(t, e, old, netip.MustParseAddrPort("0.0.0.0:0"), here)
				eps := map[string]*endpoint.Endpoint{}
				if knows {
					eps[namedEndpoint.Name] = namedEndpoint
					if err := e.Withdraw(namedEndpoint); err != nil {
						t.Fatal(err)
					}
				}
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				_, next := takeOver(t, nil, nil, eps)
				defer next.Close()
				for _, gives := range []bool{false, true} {
					if gives {
						if _, err := next.Name(policytest.Fresh(t, "another", 1), isThere); err != nil {
							t.Fatal(err)
						}
					}
					if err := unix.Connect(old, to); !errors.Is(err, unix.EPERM) {
						t.Errorf("connect through the endpoint, with another one after it %v: %v, want EPERM", gives, err)
					}
				}
			})
		})
	}
}

// A special destination that a rule names is reached by that rule alone.
func TestByNameBesideRules(t *testing.T) {
	tb, err := policytest.Table(t, nil, []string{"127.0.0.5:80=any"})
	if err != nil {
		t.Fatal(err)
	}
	for _, ep := range tb.Numbered() {
		ep.Addr = netip.IPv4Unspecified()
	}
	enforce(t, tb, func(e *Enforcement) {
		here := namespaceHere(t)
		for to, want := range map[string]error{
			"127.0.0.5:80": unix.ECONNREFUSED, "127.0.0.5:81": unix.EPERM, "127.0.0.6:80": unix.EPERM,
		} {
			s := socketOf(t, unix.AF_INET, unix.SOCK_STREAM)
			bindByName(t, e, s, netip.MustParseAddrPort("0.0.0.0:0"), here)
			if err := unix.Connect(s, sockaddr.Of(netip.MustParseAddrPort(to))); !errors.Is(err, want) {
				t.Errorf("connect to %s: %v, want %v", to, err, want)
			}
		}
	})
}

// isThere is an endpoint that stays.
func isThere() bool { return true }
