package enforcer

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The constants of bpf/options.h and bpf/mapped.h.
const (
	optionTranslated = 0x7474
	askSupervisor    = unix.EPROTONOSUPPORT
)

// The gate and the preloaded library know this errno.
func TestErrnoThatAsks(t *testing.T) {
	testkit.CheckC(t, "../c/translated.h", map[string]any{"TRANSLATED_ASK_SUPERVISOR": int(askSupervisor)})
}

// makeTranslated makes a socket a translated one, as the gate does.
func makeTranslated(sock int) error {
	return unix.SetsockoptInt(sock, unix.IPPROTO_IPV6, optionTranslated, 1)
}

// A socket that the gate has made a translated one connects to mapped virtual addresses by the rules
// for the host behind them, and sees that address as its peer. Whatever else it connects to is the
// supervisor's to decide. An IPv6 socket reaches no virtual address.
func TestMappedConnect(t *testing.T) {
	if !setsErrno() {
		t.Skip("skip: needs Linux 6.0: bpf_set_retval in connect hooks; sockets are translated so since 6.6")
	}
	translating(t, func(c *contained, d *Datagrams) {
		testkit.AddToLoopback(t, "2001:db8::1/128")
		testkit.AddToLoopback(t, "2001:db8::6/128")
		at := netip.MustParseAddrPort("[2001:db8::6]:5353")
		listener := of(t, nil, unix.AF_INET6, unix.SOCK_STREAM)
		remote := VirtualHost{Addr: at.Addr(), Source: at.Addr(), Device: loopbackDevice}
		virtual, answering, chosen := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.19.0.1"), netip.MustParseAddr("198.19.0.2")
		err := errors.Join(unix.Bind(listener, sockaddr.Of(at)), unix.Listen(listener, 10), d.Put(virtual, remote),
			c.tables.hosts.Put(virtualKey(answering), bpf.PolicyVirtualHost{Addr: wordsOf(at.Addr()), Source: wordsOf(at.Addr()), Device: loopbackDevice, Peer: 1}),
			c.tables.hosts.Put(virtualKey(chosen), bpf.PolicyVirtualHost{Addr: wordsOf(at.Addr()), Source: wordsOf(at.Addr()), Device: loopbackDevice, Heard: 1}))
		if err != nil {
			t.Fatal(err)
		}
		early := of(t, c, unix.AF_INET6, unix.SOCK_STREAM)
		if err := makeTranslated(early); !errors.Is(err, unix.ENOPROTOOPT) {
			t.Errorf("a socket becomes translated before IPv4 is: %v", err)
		}
		if err := d.Begin(); err != nil {
			t.Fatal(err)
		}
		mapped := func(addr netip.Addr, port uint16) unix.Sockaddr {
			return sockaddr.Of(netip.AddrPortFrom(netip.AddrFrom16(addr.As16()), port))
		}
		spoken := of(t, c, unix.AF_INET6, unix.SOCK_STREAM)
		for to, want := range []error{unix.ECONNREFUSED, askSupervisor} {
			err := makeTranslated(spoken)
			if err == nil {
				err = unix.Connect(spoken, mapped([]netip.Addr{netip.MustParseAddr("127.0.0.1"), virtual}[to], 5353))
			}
			if !errors.Is(err, want) {
				t.Errorf("connect %d: %v, want %v", to, err, want)
			}
		}
		for name, tt := range map[string]struct {
			to    unix.Sockaddr
			plain bool
			want  error
		}{
			"virtual":             {to: mapped(virtual, 5353)},
			"no rule":             {to: mapped(virtual, 5354), want: unix.ENETUNREACH},
			"nobody":              {to: mapped(virtual.Next(), 5353), want: askSupervisor},
			"only answers":        {to: mapped(answering, 5353), want: askSupervisor},
			"the kernel's choice": {to: mapped(chosen, 5353), want: askSupervisor},
			"no virtual one":      {to: mapped(netip.MustParseAddr("192.0.2.1"), 5353), want: askSupervisor},
			"the alias":           {to: mapped(netip.MustParseAddr("127.18.0.1"), 5353), want: unix.ECONNREFUSED},
			"the host":            {to: sockaddr.Of(at)},
			"not translated":      {to: mapped(virtual, 5353), plain: true, want: unix.ENETUNREACH},
			"IPv6, no mark":       {to: sockaddr.Of(at), plain: true},
			"nobody, no mark":     {to: mapped(virtual.Next(), 5353), plain: true, want: unix.ENETUNREACH},
			"another, no mark":    {to: mapped(netip.MustParseAddr("192.0.2.1"), 5353), plain: true, want: unix.ENETUNREACH},
			"a family of IPv4s":   {to: sockaddr.Of(netip.AddrPortFrom(virtual, 5353)), want: unix.EINVAL},
		} {
			sock := of(t, c, unix.AF_INET6, unix.SOCK_STREAM)
			if !tt.plain {
				if err := makeTranslated(sock); err != nil {
					t.Fatal(err)
				}
			}
			before, err := c.Denied()
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Connect(sock, tt.to); !errors.Is(err, tt.want) {
				t.Errorf("%s: %v, want %v", name, err, tt.want)
			}
			after, err := c.Denied()
			if denied := after.Connect - before.Connect; err != nil || denied > 0 != errors.Is(tt.want, unix.ENETUNREACH) {
				t.Errorf("%s: %d connects are counted as denied, %v", name, denied, err)
			}
		}
		sock := of(t, c, unix.AF_INET6, unix.SOCK_STREAM)
		if err := errors.Join(makeTranslated(sock), unix.Connect(sock, mapped(virtual, 5353))); err != nil {
			t.Fatal(err)
		}
		domain, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil || domain != unix.AF_INET {
			t.Errorf("its domain is %d, %v", domain, err)
		}
		if err := makeTranslated(sock); !errors.Is(err, unix.ENOPROTOOPT) {
			t.Errorf("a connected socket becomes translated: %v", err)
		}
		peerIs := func(want string) {
			t.Helper()
			if _, peer := names2(t, sock); peer != want {
				t.Errorf("its peer is %s, want %s", peer, want)
			}
		}
		peerIs("[::ffff:198.18.0.1]:5353")
		remote.Addr = remote.Addr.Next()
		if err := d.Put(virtual, remote); err != nil {
			t.Fatal(err)
		}
		peerIs(at.String()) // the virtual address is another host's
		remote.Addr = at.Addr()
		if err := d.Put(virtual.Next(), remote); err != nil {
			t.Fatal(err)
		}
		peerIs("[::ffff:198.18.0.2]:5353")
	})
}
