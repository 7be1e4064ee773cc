package netns

import (
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The source is what the kernel chooses for the widest routes into a prefix.
func TestSourcesFor(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	ip := func(lines string) {
		t.Helper()
		for line := range strings.Lines(lines) {
			c := exec.Command("ip", strings.Fields(line)...)
			err := ns.Do(func() error {
				out, err := c.CombinedOutput()
				if err != nil {
					t.Errorf("%s: %s", c, out)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(to string, want ...string) {
		t.Helper()
		list, err := ns.SourcesFor(netip.MustParsePrefix(to))
		var got []string
		for _, a := range list {
			got = append(got, a.String())
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("to %s: from %v (%v), want %v", to, got, err, want)
		}
	}
	want("0.0.0.0/0")
	want("::/0")
	ip(`link set lo up
link add name one type veth peer name one-peer
link add name two type veth peer name two-peer
addr add 198.51.100.1/24 dev one
addr add 198.51.100.9/24 dev one
addr add 2001:db8:1::1/64 dev one nodad
addr add 172.17.0.1/16 dev two
link set one-peer up
link set two-peer up
link set one up
link set two up`)
	want("0.0.0.0/0", "172.17.0.1", "198.51.100.1")
	want("198.51.100.0/24", "198.51.100.1")
	want("198.51.100.7/32", "198.51.100.1")
	want("172.17.5.0/24", "172.17.0.1")
	want("10.0.0.0/8")
	want("2001:db8::/32", "2001:db8:1::1")
	ip(`route add default via 198.51.100.2
-6 route add default via 2001:db8:1::2
route add blackhole 10.0.0.0/8`)
	want("0.0.0.0/0", "198.51.100.1")
	want("::/0", "2001:db8:1::1")
	want("172.17.0.0/16", "172.17.0.1")
	want("10.1.0.0/16")
	ip(`route change default via 198.51.100.2 src 198.51.100.9`)
	want("0.0.0.0/0", "198.51.100.9")
	want("192.0.2.0/24", "198.51.100.9")
	ip(`route change 198.51.100.0/24 dev one src 198.51.100.9`)
	want("198.51.100.0/24", "198.51.100.9")
	want("198.51.100.1/32", "198.51.100.1")
	ip(`route change 198.51.100.0/24 dev one src 198.51.100.1`)
	want("198.51.100.0/24", "198.51.100.1")
}
