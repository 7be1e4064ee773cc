package testkit

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// A capture shows the packets of its kind, and no others.
func TestCapture(t *testing.T) {
	t.Parallel()
	top, own := Build(t, Options{}), netip.MustParseAddr("198.18.0.1")
	lo, lo4, lo6 := NewLoopback(t, own), netip.MustParseAddr("127.18.0.1"), netip.IPv6Loopback()
	for _, tt := range []struct {
		packets Packets
		ns      *netns.NS
		others  []netip.Addr
		shown   netip.Addr // last: later packets may be answers to it
	}{
		{IPv4OnLinks, top.Host.ns, []netip.Addr{RemoteAddr6, lo4, lo6, HostAddr4}, RemoteAddr4},
		{StrayIPv4, lo, []netip.Addr{lo4, lo6}, own},
		{IPv6, lo, []netip.Addr{lo4}, lo6},
	} {
		path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), tt.ns.File().Fd())
		c := StartCapture(t, path, tt.packets)
		for _, to := range tt.others {
			sendTo(t, tt.ns, to)
		}
		c.Nothing(t)
		c = StartCapture(t, path, tt.packets)
		sendTo(t, tt.ns, tt.shown)
		found := &counter{TB: t}
		c.Nothing(found)
		if found.errors == 0 {
			t.Errorf("%s: a packet to %s is not shown", tt.packets.what, tt.shown)
		}
	}
}

func sendTo(t *testing.T, ns *netns.NS, to netip.Addr) {
	t.Helper()
	err := ns.Do(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(to, 9).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("packet"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// counter counts the errors of a test, which they do not fail.
type counter struct {
	TB
	errors int
}

func (c *counter) Errorf(string, ...any) { c.errors++ }
