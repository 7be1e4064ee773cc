package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// TestChargeGrafted looks for what the agent's own helpers do for a grafted container:
// its sockets are made, its calls answered and its datagrams carried outside of it. One
// beside it, which sends nothing, is charged for no datagrams.
func TestChargeGrafted(t *testing.T) {
	t.Parallel()
	n := newNode(t, engineCase{engine: "docker", none: true}, "[charge]", "discovery = false")
	for i, name := range []string{"web", "idle"} {
		c := n.container(name, "0.0.0.0/0", servedPort+i)
		c.Annotations["tsugiki.dev/mode"] = "seccomp"
		n.run(t, c)
	}
	n.checkServed(t, "web", servedPort)
	line := dnsmasq(t, 53)
	serve(t, command(t, n.h, line[0], line[1:]...), port{n.h, "udp4", 53})
	// It sends by a socket that is not connected: by the relay, to the container's own
	// loopback, where nobody listens.
	n.exec(t, "web", "syslogd", "-R", "127.0.0.1:5140")
	idle := n.shown(t, "idle")
	testkit.Eventually(t, func() error {
		n.exec(t, "web", "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do wget -q -O - http://127.0.0.1/ >/dev/null; nslookup "+
			serverName+" "+hostAddr4+" >/dev/null; logger hello; done; true")
		c := n.shown(t, "web")
		for _, source := range []string{"gate", "intercept", "relay"} {
			if borrowedFrom(c, source) <= borrowedFrom(idle, source) {
				return fmt.Errorf("no more was spent by %s than for the idle one: %+v", source, c)
			}
		}
		t.Logf("%+v", c.Borrowed)
		return nil
	})
	if c := n.shown(t, "idle"); borrowedFrom(c, "relay") != 0 {
		t.Errorf("the idle one is charged for the other's datagrams: %+v", c)
	}
	n.remove(t, "web")
	n.remove(t, "idle")
}

// shown is a container's account, as the command shows it.
func (n *node) shown(t *testing.T, name string) *api.Charged {
	t.Helper()
	r := try(t, command(t, n.h, tsugiki, "charge", "show", "-j", "--agent", n.socket(), name))
	var all api.Charges
	if err := errors.Join(r.err, json.Unmarshal([]byte(r.stdout), &all)); err != nil {
		t.Fatalf("%v: %s", err, r.stderr)
	}
	return &all.Containers[0]
}
