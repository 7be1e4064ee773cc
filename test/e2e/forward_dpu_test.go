package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

const (
	dpuEndpoint = "unix:/run/tsugiki-dpu"
	dpuVFs      = "2"
)

// startDPU starts a DPU in a network namespace of its own, whose uplink has no neighbors, and its
// controller. They end with the test.
func startDPU(t *testing.T, rig *engines.Rig) {
	t.Helper()
	inRigOf(t, rig, "ip", "netns", "add", "dpu")
	inRigOf(t, rig, "sh", "-c", "ip netns attach host $$")
	inDPU := []string{"nsenter", "--net=/run/netns/dpu"}
	inRigOf(t, rig, "ip", "-n", "dpu", "link", "add", "p0", "type", "veth", "peer", "name", "nowhere")
	startVswitchd(t, func(name string, args ...string) string {
		words := append(slices.Concat(inDPU, []string{name}), args...)
		return inRigOf(t, rig, words[0], words[1:]...)
	})
	inBackground(t, rig, append(inDPU, tsugiki, "dpu-agent", "--listen", dpuEndpoint, "--datapath", "netdev", "--uplink", "p0",
		"--address", "192.0.2.1/24", "--emulate-vfs", dpuVFs, "--host-netns", "/run/netns/host")...)
	const config = "/run/offload.toml"
	text := fmt.Sprintf("[dpu]\nendpoint = %q\n[[node]]\ntunnel = \"192.0.2.1\"\nsubnets = [\"%s0/24\"]\n", dpuEndpoint, podsSubnet)
	if err := os.WriteFile(rig.Outside(config), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	inBackground(t, rig, tsugiki, "offload", "--config", config)
	works := regexp.MustCompile(`present +optional +controller of the DPU`)
	testkit.Eventually(t, func() error {
		// Its status is about tsugiki run.
		if out, _ := rig.Command(timeout(t), tsugiki, "doctor", "-v", "--offload-config", config).CombinedOutput(); !works.Match(out) {
			return fmt.Errorf("tsugiki doctor:\n%s", out)
		}
		return nil
	})
}

// inBackground runs a program in a rig until the test ends.
func inBackground(t *testing.T, rig *engines.Rig, words ...string) {
	t.Helper()
	said := &syncBuffer{}
	c := rig.Command(context.Background(), words[0], words[1:]...)
	c.Stdout, c.Stderr = said, said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(unix.SIGTERM)
		if err := c.Wait(); err != nil {
			t.Errorf("%v: %v", words, err)
		}
		if t.Failed() {
			t.Logf("%v:\n%s", words, said)
		}
	})
}
