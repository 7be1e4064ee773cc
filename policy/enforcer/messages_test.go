package enforcer

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
)

// messaging has a container that may ask [2001:db8::6]:5353, and of which the datagrams of port 80 are
// rewritten. A UDP server of it is published at [2001:db8::1]:8080.
func messaging(t *testing.T, fn func(c *contained, d *Datagrams, server int, next func() Message)) {
	t.Helper()
	containers(t, func(_ uint64, list []*contained) {
		c := list[0]
		for _, own := range []string{"2001:db8::1/128", "2001:db8::6/128"} {
			testkit.AddToLoopback(t, own)
		}
		if err := c.UseLoopback(7); err != nil {
			t.Fatal(err)
		}
		d, err := c.TranslateDatagrams(testPool, 80)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		proxy, server := of(t, c, unix.AF_INET, unix.SOCK_DGRAM), of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		c.private(t, proxy, unix.IPPROTO_UDP, netip.MustParseAddrPort("0.0.0.0:53"), 20000)
		if _, err := c.PrivatePort(unix.IPPROTO_UDP, 80, 0, 20001, nil); err != nil {
			t.Fatal(err)
		}
		b := policy.Binding{Host: netip.MustParseAddrPort("0.0.0.0:20001"), View: netip.MustParseAddrPort("0.0.0.0:80"), Private: true, Published: publishedAt}
		attached(t, errors.Join(c.AllowBind(server, b), unix.Bind(server, sockaddr.Of(b.Host)), c.Publish(20001, publishedAt), d.Begin(), d.Attach(loopbackDevice, -1)))
		ctx, end := context.WithCancel(t.Context())
		found, done := make(chan Message, 8), make(chan error, 1)
		go func() {
			done <- d.Messages(ctx, func(m Message) {
				m.Payload = bytes.Clone(m.Payload)
				found <- m
			})
		}()
		fn(c, d, server, func() Message {
			t.Helper()
			select {
			case m := <-found:
				return m
			case <-time.After(testkit.Patience):
				t.Fatal("no message")
				return Message{}
			}
		})
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}, []string{"[2001:db8::6]:5353=six"})
}

var (
	publishedAt = netip.MustParseAddrPort("[2001:db8::1]:8080")
	remoteAt    = netip.MustParseAddrPort("[2001:db8::6]:5353")
)

// Datagrams of a port are given to the process, in both directions. Nobody hears them.
func TestMessages(t *testing.T) {
	messaging(t, func(c *contained, d *Datagrams, server int, next func() Message) {
		remote := of(t, nil, unix.AF_INET6, unix.SOCK_DGRAM)
		large := bytes.Repeat([]byte("large"), MessageMax/4)
		err := errors.Join(unix.Bind(remote, sockaddr.Of(remoteAt)), unix.Sendto(remote, []byte("ask"), 0, sockaddr.Of(publishedAt)),
			unix.Sendto(remote, large, 0, sockaddr.Of(publishedAt)))
		if err != nil {
			t.Fatal(err)
		}
		want := func(outwards bool, payload string, length int) (virtual netip.Addr) {
			t.Helper()
			m := next()
			if m.Outwards != outwards || m.Fragment || m.Host != remoteAt || m.Here != publishedAt || m.Port != 20001 || m.TTL != 64 ||
				string(m.Payload) != payload || m.Length != length || !testPool.Contains(m.Virtual) || m.Alias.As4()[0] != 127 {
				t.Errorf("%+v", m)
			}
			return m.Virtual
		}
		virtual := want(false, "ask", 3)
		want(false, string(large[:MessageMax]), len(large))
		if err := d.Put(virtual, VirtualHost{Addr: remoteAt.Addr(), Source: publishedAt.Addr(), Device: loopbackDevice}); err != nil {
			t.Fatal(err)
		}
		if err := unix.Sendto(server, []byte("answer"), 0, sockaddr.Of(netip.AddrPortFrom(virtual, remoteAt.Port()))); err != nil {
			t.Fatal(err)
		}
		want(true, "answer", 6)
		// An empty datagram, and those of other ports, go on by themselves.
		other := of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		if err := unix.Sendto(other, []byte("other"), 0, sockaddr.Of(netip.AddrPortFrom(virtual, remoteAt.Port()))); err != nil {
			t.Fatal(err)
		}
		reads(t, remote, "other")
		if err := unix.Sendto(server, nil, 0, sockaddr.Of(netip.AddrPortFrom(virtual, remoteAt.Port()))); err != nil {
			t.Fatal(err)
		}
		heard(t, remote, "", publishedAt)
		if lost, err := d.MessagesLost(); err != nil || lost != 0 {
			t.Errorf("%d are lost, %v", lost, err)
		}
		if public, known := c.PublicPort(publishedAt.Addr(), 80), c.KnownPort(publishedAt.Addr(), 8080); public != 8080 || known != 80 {
			t.Errorf("port 80 is %d, and port 8080 %d", public, known)
		}
		if public, known := c.PublicPort(remoteAt.Addr(), 80), c.KnownPort(remoteAt.Addr(), 20001); public != 20001 || known != 80 {
			t.Errorf("elsewhere, port 80 is %d, and port 20001 %d", public, known)
		}
		if public, known := c.PublicPort(publishedAt.Addr(), 81), c.KnownPort(publishedAt.Addr(), 81); public != 81 || known != 81 {
			t.Errorf("port 81 is %d and %d", public, known)
		}
	})
}

// Two CPUs may choose the same virtual address for two hosts that ask a server. The host that the table does not have
// behind it gets another one.
func TestPeersChosenTwice(t *testing.T) {
	messaging(t, func(_ *contained, d *Datagrams, _ int, next func() Message) {
		remote := of(t, nil, unix.AF_INET6, unix.SOCK_DGRAM)
		asks := func() netip.Addr {
			t.Helper()
			if err := unix.Sendto(remote, []byte("ask"), 0, sockaddr.Of(publishedAt)); err != nil {
				t.Fatal(err)
			}
			return next().Virtual
		}
		if err := unix.Bind(remote, sockaddr.Of(remoteAt)); err != nil {
			t.Fatal(err)
		}
		first := asks()
		choosesToo(t, d, first, netip.MustParseAddr("2001:db8::7"))
		if second := asks(); second == first || asks() != second {
			t.Errorf("the host is %s again, which is another one's", second)
		}
	})
}

// The receiver of a message hears the hosts to which a rule leads, and any at a port that a rule has published.
func TestHears(t *testing.T) {
	messaging(t, func(c *contained, d *Datagrams, _ int, _ func() Message) {
		here, err := netns.Current()
		if err != nil {
			t.Fatal(err)
		}
		defer here.Close()
		elsewhere := netip.AddrPortFrom(publishedAt.Addr(), 20002)
		check := func(when string, is, host netip.AddrPort, port uint16, want bool) {
			t.Helper()
			if got := d.Hears(Message{Host: host, Here: is, Port: port}); got != want {
				t.Errorf("%s: port %d at %s hears %s: %v, want %v", when, port, is, host, got, want)
			}
		}
		stranger := netip.MustParseAddrPort("[2001:db8::7]:5353")
		check("published", publishedAt, stranger, 20001, true)
		check("published for another", publishedAt, stranger, 20002, false)
		check("not published", elsewhere, stranger, 20002, false)
		check("by a rule", elsewhere, remoteAt, 20002, true)
		check("another port", elsewhere, netip.AddrPortFrom(remoteAt.Addr(), 5354), 20002, false)
		opening := c.setRules(t, here.Cookie(), nil, []string{"www.example.com:5353"})
		check("without the rule", elsewhere, remoteAt, 20002, false)
		if err := c.SetOpened(stranger.Addr(), opening(0)); err != nil {
			t.Fatal(err)
		}
		check("opened by its name", elsewhere, stranger, 20002, true)
	})
}

// Datagrams for which the process is too slow are lost, and counted.
func TestMessagesAreLost(t *testing.T) {
	messaging(t, func(_ *contained, d *Datagrams, _ int, next func() Message) {
		remote := of(t, nil, unix.AF_INET6, unix.SOCK_DGRAM)
		if err := unix.Bind(remote, sockaddr.Of(remoteAt)); err != nil {
			t.Fatal(err)
		}
		large := make([]byte, MessageMax)
		const sent = 100 // there is room for 31, and 8 are read
		for range sent {
			if err := unix.Sendto(remote, large, 0, sockaddr.Of(publishedAt)); err != nil {
				t.Fatal(err)
			}
		}
		lost, err := d.MessagesLost()
		if err != nil || lost == 0 || lost >= sent {
			t.Errorf("%d of %d are lost, %v", lost, sent, err)
		}
		for range sent - lost {
			next()
		}
	})
}

// A socket hears a host that is expected at its port, before it has sent to the host; and no other, and
// not once the time is over.
func TestExpectedHosts(t *testing.T) {
	messaging(t, func(c *contained, d *Datagrams, _ int, _ func() Message) {
		remote, media, other := of(t, nil, unix.AF_INET6, unix.SOCK_DGRAM), of(t, c, unix.AF_INET, unix.SOCK_DGRAM), of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		c.private(t, media, unix.IPPROTO_UDP, netip.MustParseAddrPort("0.0.0.0:7000"), 20002)
		c.private(t, other, unix.IPPROTO_UDP, netip.MustParseAddrPort("0.0.0.0:7002"), 20003)
		virtual := netip.MustParseAddrPort("198.18.0.1:5353")
		err := errors.Join(unix.Bind(remote, sockaddr.Of(remoteAt)),
			d.Put(virtual.Addr(), VirtualHost{Addr: remoteAt.Addr(), Source: publishedAt.Addr(), Device: loopbackDevice}))
		if err != nil {
			t.Fatal(err)
		}
		send := func(text string, port uint16) {
			t.Helper()
			if err := unix.Sendto(remote, []byte(text), 0, sockaddr.Of(netip.AddrPortFrom(publishedAt.Addr(), port))); err != nil {
				t.Fatal(err)
			}
		}
		send("early", 20002)
		if err := errors.Join(d.Expect(remoteAt.Addr(), 7000, -time.Second), d.Expect(netip.MustParseAddr("2001:db8::7"), 7000, time.Hour)); err != nil {
			t.Fatal(err)
		}
		send("late", 20002)
		if err := d.Expect(remoteAt.Addr(), 7000, time.Hour); err != nil {
			t.Fatal(err)
		}
		send("expected", 20002)
		heard(t, media, "expected", virtual)
		send("known", 20002)
		heard(t, media, "known", virtual)
		send("of another", 20003)
		if err := d.Expect(remoteAt.Addr(), 7002, time.Hour); err != nil {
			t.Fatal(err)
		}
		send("sentinel", 20003)
		heard(t, other, "sentinel", virtual)
	})
}
