package vm

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/uml"
)

// TestAgentChargesVMM has a guest of the agent, by a vhost-user device, whose VMM is in a cgroup. What moves the
// guest's bytes is on the account of that cgroup.
func TestAgentChargesVMM(t *testing.T) {
	if _, err := exec.LookPath("linux.uml"); err != nil {
		t.Skip("needs User-Mode Linux (Debian package user-mode-linux, x86-64)")
	}
	groups := testkit.NewGroups(t)
	n := newNode(t, nil)
	echoServer(t, n.top.Remote, netip.AddrPortFrom(testkit.RemoteAddr4, echoPort))
	socket := filepath.Join(n.dir, "device")
	guest := api.Guest{Name: "vm", VSock: socket, Rules: &api.Rules{Egress: []string{"0.0.0.0/0=0.0.0.0"}}}
	if err := n.Do(http.MethodPost, "/v1/guests", guest, nil); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`
until [ -e /tmp/end ]; do (echo all; dd if=/dev/zero bs=64k count=64 2>/dev/null) | tsugiki guest run -- nc %s %d | tail -c 1 >/dev/null; echo round; done &
tsugiki guest run -- nc %s 7100
touch /tmp/end; wait
`, testkit.RemoteAddr4, echoPort, testkit.RemoteAddr4)
	l := listenIn(t, n.top.Remote, fmt.Sprintf("%s:7100", testkit.RemoteAddr4))
	enter := `for d in "$1" "$2"; do echo $$ > $d/cgroup.procs; done; shift 2; exec "$@"`
	g := uml.Start(t, n.top.Host, socket, uml.Options{
		Script: script, By: []string{"sh", "-c", enter, "sh", groups.Dir("cpu"), groups.Dir("cpuacct")},
	})
	g.Expect("round")
	testkit.Eventually(t, func() error {
		var all api.Charges
		if err := n.Do(http.MethodGet, "/v1/charge", nil, &all); err != nil {
			return err
		}
		i := slices.IndexFunc(all.Containers, func(c api.Charged) bool { return c.Container == "vm" })
		if i < 0 {
			return fmt.Errorf("no account of vm: %+v", all)
		}
		c := all.Containers[i]
		if c.Group != groups.Dir("cpu") {
			return fmt.Errorf("the account is that of %s", c.Group)
		}
		for _, b := range c.Borrowed {
			if b.Source == "guest" && b.US > 0 {
				return nil
			}
		}
		return fmt.Errorf("nothing was spent for the guest: %+v", c)
	})
	state := n.guest(t, "vm").State
	if state.VMM == 0 || state.Boots != 1 || state.FromGuest < 4<<20 || state.ToGuest < 4<<20 {
		t.Errorf("state %+v", state)
	}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", state.VMM)); err != nil || string(comm) != "linux.uml\n" {
		t.Errorf("the VMM is %q, %v", comm, err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close() // the guest powers off
}
