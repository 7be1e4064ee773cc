package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// podsMode is a way in which tsugiki-cni attaches pods of an engine. Each engine runs each mode.
type podsMode struct {
	name   string
	config string // of tsugiki-cni, besides type, pairs and ipam
	// start starts in the rig what the mode needs.
	start func(t *testing.T, rig *engines.Rig)
}

var podsModes = []podsMode{
	{name: "bridge", config: `"mode": "bridge"`},
	{name: "ovs", config: `"mode": "ovs"`, start: startSwitch},
	{name: "dpu", config: `"mode": "dpu", "dpu": {"endpoint": "` + dpuEndpoint + `", "card": "emulated"}`, start: startDPU},
}

const podsSubnet = "10.89.0."

// podsNetwork is the list of plugins that an engine is given. A version of 1.0.0 is what both of
// Debian's engines know.
func podsNetwork(m podsMode) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{
		"type": "tsugiki-cni", %s, "pairs": "all",
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "%s0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}
	}]}`, m.config, podsSubnet)
}

// inRigOf runs a program in a rig, and returns what it printed.
func inRigOf(t *testing.T, rig *engines.Rig, name string, args ...string) string {
	t.Helper()
	return succeed(t, rig.Command(timeout(t), name, args...))
}

// startSwitch starts Open vSwitch with a bridge, whose datapath is in user space.
func startSwitch(t *testing.T, rig *engines.Rig) {
	t.Helper()
	startVswitchd(t, func(name string, args ...string) string { return inRigOf(t, rig, name, args...) })
	inRigOf(t, rig, "ovs-vsctl", "--timeout=60", "add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev")
}

// startVswitchd starts Open vSwitch where its users have it, in the rig or the machine in which do runs
// commands. The daemons end with that.
func startVswitchd(t *testing.T, do func(name string, args ...string) string) {
	t.Helper()
	for _, p := range []string{"ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl"} {
		testkit.Program(t, p)
	}
	for _, line := range []string{
		"mkdir -p /run/openvswitch",
		"ovsdb-tool create /run/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema",
		"ovsdb-server /run/openvswitch/conf.db --remote=punix:/run/openvswitch/db.sock --detach --no-chdir --pidfile --log-file=/run/openvswitch/db.log",
		"ovs-vsctl --no-wait init",
		"ovs-vswitchd --detach --no-chdir --pidfile --log-file=/run/openvswitch/vswitchd.log",
	} {
		words := strings.Fields(line)
		do(words[0], words[1:]...)
	}
}

// forwardPods are what the command shows of the rig's pods.
func forwardPods(t *testing.T, rig *engines.Rig) []forwardShown {
	t.Helper()
	var shown struct{ Pods []forwardShown }
	out := inRigOf(t, rig, tsugiki, "forward", "show", "-j")
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return shown.Pods
}

type forwardShown struct {
	Link, Container, Network, Fault string
	Addresses                       []string
	Packets                         map[string]uint64
	Traced                          bool
}

// podsRig is a rig whose engine attaches pods by tsugiki-cni. Tables of pods are in a BPF file system
// of the rig's own.
func podsRig(t *testing.T, host *testkit.Namespace, m podsMode, o engines.Options) *engines.Rig {
	t.Helper()
	o.Network, o.Plugins = podsNetwork(m), []string{filepath.Join(filepath.Dir(tsugiki), "tsugiki-cni")}
	rig := engines.NewRig(t, host, o)
	inRigOf(t, rig, "mount", "-t", "bpf", "bpf", "/sys/fs/bpf")
	if m.start != nil {
		m.start(t, rig)
	}
	return rig
}

// Pods of containerd's CRI and containers of podman reach each other directly, and nothing is left of
// them.
func TestForwardEngines(t *testing.T) {
	image := needImage(t)
	for _, engine := range []string{"cri", "podman"} {
		for _, m := range podsModes {
			t.Run(engine+"-"+m.name, func(t *testing.T) {
				t.Parallel()
				top := testkit.Build(t, testkit.Options{NoRemote: true})
				rig := podsRig(t, top.Host, m, engines.Options{Image: image})
				e := rig.Start(t, engine)
				checkPods(t, rig, e)
			})
		}
	}
}

func checkPods(t *testing.T, rig *engines.Rig, e engines.Engine) {
	t.Helper()
	before := vethsOf(t, rig)
	names := []string{"server", "client"}
	for _, name := range names {
		c := engines.Container{Name: name, Args: engines.Nginx}
		if e.Name() == "podman" {
			c.Flags = []string{"--network", "pods"}
		}
		if err := e.Run(c); err != nil {
			t.Fatal(err)
		}
	}
	ip, err := e.IP("server")
	if err != nil || !strings.HasPrefix(ip, podsSubnet) {
		t.Fatalf("the server's address is %q, %v", ip, err)
	}
	testkit.Eventually(t, func() error {
		out, err := e.Exec("client", "wget", "-q", "-O", "-", "http://"+ip+"/")
		if err == nil && out != "hello\n" {
			err = fmt.Errorf("got %q", out)
		}
		return err
	})
	pods := forwardPods(t, rig)
	if len(pods) != len(names) {
		t.Errorf("pods %+v", pods)
	}
	for _, p := range pods {
		if p.Packets["direct"] == 0 || p.Network != "pods" || p.Fault != "" {
			t.Errorf("pod %+v", p)
		}
	}
	for _, name := range names {
		if err := e.Remove(name); err != nil {
			t.Error(err)
		}
	}
	if pods := forwardPods(t, rig); len(pods) > 0 {
		t.Errorf("pods are left: %+v", pods)
	}
	if diff := cmp.Diff(before, vethsOf(t, rig)); diff != "" {
		t.Errorf("links:\n%s", diff)
	}
}

type vethShown struct{ Name, Owner string }

// vethsOf are the links of type veth of a rig, with their aliases. Mode dpu has VFs, without pods,
// too.
func vethsOf(t *testing.T, rig *engines.Rig) (list []vethShown) {
	t.Helper()
	var shown []struct{ Ifname, Ifalias string }
	out := inRigOf(t, rig, "ip", "-j", "link", "show", "type", "veth")
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, link := range shown {
		if link.Ifname != "" { // without links there is one that is empty
			list = append(list, vethShown{link.Ifname, link.Ifalias})
		}
	}
	return list
}
