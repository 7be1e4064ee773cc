package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// ip runs lines of ip(8) in a namespace.
func ip(t *testing.T, ns *testkit.Namespace, lines ...string) {
	t.Helper()
	for _, line := range lines {
		succeed(t, command(t, ns, "ip", strings.Fields(line)...))
	}
}

// moveAddrs takes the addresses of a link, and gives them to another.
func moveAddrs(t *testing.T, ns *testkit.Namespace, from, to string, addrs ...string) {
	t.Helper()
	ip(t, ns, "-6 addr flush dev "+from, "-6 neigh flush dev "+from, "link set "+to+" up")
	for _, addr := range addrs {
		ip(t, ns, fmt.Sprintf("addr add %s/64 dev %s nodad", addr, to))
	}
}

// UDP is translated where the host has its addresses on a link above another, also if it gets that
// link while the container runs: for clients and for servers.
func TestTranslatedDatagramsByUpperLinks(t *testing.T) {
	t.Parallel()
	const upper = "upper"
	bridge := []string{"link add name upper type bridge", "link set srv master upper"}
	for name, tt := range map[string]struct {
		needs        string
		host, remote []string
	}{
		"bridge":               {host: bridge},
		"bridge's own address": {host: slices.Concat(bridge, []string{"link set upper address 02:00:00:00:00:07"})},
		"macvlan":              {needs: "macvlan", host: []string{"link add link srv name upper type macvlan mode bridge"}},
		"VLAN": {
			needs: "vlan id 5", host: []string{"link add link srv name upper type vlan id 5"},
			remote: []string{"link add link h name upper type vlan id 5"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newIPv6World(t)
			if tt.needs != "" {
				probe := "link add link srv name probe type " + tt.needs
				if r := try(t, command(t, w.h, "ip", strings.Fields(probe)...)); exitStatus(r.err) != 0 {
					t.Skipf("skip: needs links of type %s in the kernel", tt.needs)
				}
				ip(t, w.h, "link del probe")
			}
			o := observe(t, w.srv)
			at := netip.AddrPortFrom(netip.MustParseAddr(sourceAddr6), 8000)
			serve(t, w.translated(t, "-i", fmt.Sprintf("0.0.0.0:8000=%s", at), "--", static(t, "serve"), "udp4://0.0.0.0:8000"), port{w.h, "udp6", 8000})
			askUDP(t, dialUDP(t, w.srv, at), "?")

			ip(t, w.h, tt.host...)
			ip(t, w.srv, tt.remote...)
			moveAddrs(t, w.h, "srv", upper, hostAddr6, sourceAddr6)
			if tt.remote != nil {
				moveAddrs(t, w.srv, "h", upper, remoteAddr6)
			}
			askUDP(t, dialUDP(t, w.h, netip.AddrPortFrom(netip.MustParseAddr(remoteAddr6), observerPort)), "?")
			askUDP(t, dialUDP(t, w.srv, at), "?")
			o.take()
			url := fmt.Sprintf("udp4://%s:%d", serverName, observerPort)
			if got := succeed(t, w.translated(t, "--ipv6", sourceAddr6, "--", static(t, "fetch"), url)); got != sourceAddr6+"\n" {
				t.Errorf("it prints %q", got)
			}
			if len(o.take()) == 0 {
				t.Error("nobody has asked the server")
			}
		})
	}
}
