package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// TestChargeGrafted looks for what the agent's own helpers do for a grafted container:
// its sockets are made, its calls answered and its datagrams carried outside of it.
func TestChargeGrafted(t *testing.T) {
	n := newNode(t, engineCase{engine: "docker", none: true}, "[charge]", "discovery = false")
	c := n.container("web", "0.0.0.0/0", servedPort)
	c.Annotations["tsugiki.dev/mode"] = "seccomp"
	n.run(t, c)
	n.checkServed(t, "web", servedPort)
	line := dnsmasq(t, 53)
	serve(t, command(t, n.h, line[0], line[1:]...), port{n.h, "udp4", 53})
	group := "/" + n.ask(t, "inspect", "-f", "{{.Id}}", "web")
	testkit.Eventually(t, chargePatience, func() error {
		n.exec(t, "web", "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do wget -q -O - http://127.0.0.1/ >/dev/null; nslookup "+
			serverName+" "+hostAddr4+" >/dev/null; nslookup "+serverName+" 127.0.0.1 >/dev/null; done; true")
		for _, c := range n.asked().charges(t).Containers {
			if !strings.HasSuffix(c.Group, group) {
				continue
			}
			if c.Container != "web" {
				t.Errorf("the account is of %s", c.Container)
			}
			for _, source := range []string{"gate", "intercept"} {
				if borrowedFrom(&c, source) <= 0 {
					return fmt.Errorf("nothing was spent by %s: %+v", source, c)
				}
			}
			t.Logf("%+v", c.Borrowed)
			return nil
		}
		return fmt.Errorf("there is no account of %s: %+v", group, n.asked().charges(t))
	})
	n.remove(t, "web")
}
