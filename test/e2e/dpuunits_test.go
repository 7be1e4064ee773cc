package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// dpuFiles are those that an administrator writes, by their names in /etc/tsugiki.
var dpuFiles = map[string]string{
	"dpu-agent.env": "ARGS=--listen unix:/run/dpu --datapath netdev --uplink up0 --address 192.0.2.1/24 --emulate-vfs 1 --host-netns /proc/1/ns/net",
	"offload.toml":  "[dpu]\nendpoint = \"unix:/run/dpu\"\n[[node]]\ntunnel = \"192.0.2.1\"\nsubnets = [\"10.88.1.0/24\"]",
}

// The units of a node with a DPU start where they are configured, and do their work as confined as they
// are. Host and DPU are one machine here.
func TestDPUUnits(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "ovs-ofctl")
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	w := &walk{Machine: engines.NewMachine(t, top.Host), t: t}
	are := func(want string) {
		t.Helper()
		out, _ := w.Try("systemctl", "is-active", "tsugiki-dpu-agent", "tsugiki-offload") // it fails if one is not active
		if out != strings.Repeat(want+"\n", 2) {
			t.Errorf("the units are %q, want %s", out, want)
		}
	}
	w.do("dpkg", "--no-triggers", "-i", debOf(t, top.Host, t.TempDir(), "0.1"))
	w.do("systemctl", "start", "tsugiki-dpu-agent", "tsugiki-offload")
	are("inactive") // there is no configuration
	startVswitchd(t, w.do)
	w.do("ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1")
	for name, text := range dpuFiles {
		w.do("sh", "-c", "printf '%s\\n' \"$1\" >/etc/tsugiki/"+name, "sh", text)
	}
	w.do("systemctl", "start", "tsugiki-dpu-agent", "tsugiki-offload")
	are("active")
	testkit.Eventually(t, func() error {
		out, _ := w.Try("tsugiki", "doctor", "-v") // its status is about tsugiki run
		for line := range strings.Lines(out) {
			if strings.Contains(line, "controller of the DPU") && strings.Contains(line, "0 ports of pods") {
				return nil
			}
		}
		return fmt.Errorf("doctor says:\n%s", out)
	})
	testkit.Eventually(t, func() error { // the controller's first flows
		out, err := w.Try("ovs-ofctl", "-O", "OpenFlow15", "dump-flows", "br-int")
		if err == nil && !strings.Contains(out, "table=") {
			err = fmt.Errorf("the flows are %q", out)
		}
		return err
	})
	w.do("systemctl", "reload", "tsugiki-offload")
	w.do("dpkg", "--no-triggers", "--remove", "tsugiki")
	are("inactive")
}
