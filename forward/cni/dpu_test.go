package cni

import (
	"errors"
	"net/netip"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Each traffic class passes: to a pod of the node, directly; to a pod of another node, by VXLAN; to
// the outside, masqueraded.
func TestDPU(t *testing.T) {
	f := newFabric(t)
	two := f.newNode(2)
	one := f.newNode(1) // the last one's table is the one that the test reads
	net2, net1 := two.network(nil), one.network(nil)
	remote := net2.pods(1)[0]
	local := net1.pods(2)
	a, b := local[0], local[1]
	one.echo(a, b)
	one.echo(b, a)
	if c := one.counts(net1, a); c["direct"] < 2 {
		t.Errorf("counts %v", c)
	}
	one.echo(a, remote)
	one.echo(remote, a)
	out := &pod{ns: f.ns, addrs: []netip.Addr{outside}}
	one.echo(a, out)
	two.echo(remote, out)
	must(t, errors.Join(net1.check(a), net1.check(b), net2.check(remote)))

	doctor := func(want string) {
		t.Helper()
		cmd := one.rig.command(t.Context(), one.path[0]+"/tsugiki", "doctor", "-v", "--offload-config", one.config)
		out, _ := cmd.CombinedOutput() // its status is about tsugiki run
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("doctor says no %s:\n%s", want, out)
		}
	}
	doctor("present +optional +DPU +generation")
	doctor("present +optional +controller of the DPU +2 ports of pods, of which 0")
	doctor("present +optional +representors of the DPU +4 VFs")

	acquaint(t, a, b)

	// A restart of the switch: local packets go on without it, remote ones after the replay.
	last := one.generation("")
	one.killDaemon("ovs-vswitchd")
	testkit.Eventually(t, func() error {
		if one.reachable() == nil {
			return errors.New("the DPU is healthy without ovs-vswitchd")
		}
		return nil
	})
	doctor("missing +optional +DPU .*ovs-vswitchd")
	one.echo(a, b)
	one.vswitchd()
	one.generation(last)
	one.echo(a, remote)
	one.echo(a, out)

	for _, p := range local {
		must(t, net1.del(p))
		must(t, net1.del(p))
	}
	must(t, net2.del(remote))
	one.empty(net1)
	one.control.kill(unix.SIGTERM)
	one.agent.kill(unix.SIGTERM)
}
