package cni

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
)

// The host reaches pods, and pods the host.
func TestHost(t *testing.T) {
	r := newRig(t)
	for name, more := range map[string]object{"bridge": {}, "routed": {"routed": true}} {
		n := r.network("host-"+name, r.plugin(more))
		p := n.pods(1)[0]
		r.do(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			addr, err := netlink.ParseAddr("203.0.113.1/32")
			if err == nil {
				err = netlink.AddrReplace(lo, addr)
			}
			return err
		})
		host := &pod{ns: r.host}
		r.echo(host, &pod{ns: p.ns, addrs: p.addrs[:1]})
		must(t, n.del(p))
		r.nothing(n)
	}
}

// has is an error with a code whose message has each of some words.
func has(t *testing.T, err error, code uint, words ...string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("error %v, want code %d", err, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(e.Msg, w) {
			t.Errorf("%q does not have %q", e.Msg, w)
		}
	}
}

// Wrong configurations are refused before anything is made.
func TestWrongConfiguration(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		more  object
		code  uint
		words []string
	}{
		"mode":             {object{"mode": "dpdk"}, types.ErrInvalidNetworkConfig, []string{"dpdk", "write bridge, ovs, dpu or loopback"}},
		"mtu":              {object{"mtu": 100}, types.ErrInvalidNetworkConfig, []string{"576..65535"}},
		"type":             {object{"mtu": "large"}, types.ErrDecodingFailure, []string{"mtu"}},
		"pairs":            {object{"pairs": "some"}, types.ErrInvalidNetworkConfig, []string{"write listed or all"}},
		"bridge":           {object{"bridge": "a/b"}, types.ErrInvalidNetworkConfig, []string{"no name of a link"}},
		"long bridge":      {object{"bridge": "a-bridge-with-a-name"}, types.ErrInvalidNetworkConfig, []string{"15"}},
		"option":           {object{"mode": "ovs", "bridge": "--all"}, types.ErrInvalidNetworkConfig, []string{"no name of a link"}},
		"routed":           {object{"routed": true, "bridge": "br0"}, types.ErrInvalidNetworkConfig, []string{"leave out bridge"}},
		"ovsdb":            {object{"mode": "ovs", "ovsdb": "tcp:203.0.113.1"}, types.ErrInvalidNetworkConfig, []string{"unix:/PATH"}},
		"ovs chained":      {object{"mode": "ovs", "ipam": object{}}, types.ErrInvalidNetworkConfig, []string{"ipam is missing", "in mode ovs"}},
		"relative":         {object{"mode": "ovs", "ovsdb": "unix:db.sock"}, types.ErrInvalidNetworkConfig, []string{"unix:/PATH"}},
		"ipam path":        {object{"ipam": object{"type": "../sh"}}, types.ErrInvalidNetworkConfig, []string{"name"}},
		"ipam missing":     {object{"ipam": object{"type": "nobody"}}, codeAddresses, []string{"nobody", "install"}},
		"no ipam":          {object{"ipam": object{}}, types.ErrInvalidNetworkConfig, []string{"ipam is missing"}},
		"no switch":        {object{"mode": "ovs", "ovsdb": "unix:/nowhere"}, codeNetwork, []string{"ovsdb-server", "start openvswitch-switch"}},
		"no subnet":        {object{"ipam": object{"type": "host-local"}}, codeAddresses, []string{"host-local"}},
		"loopback, bridge": {object{"mode": "loopback", "ipam": object{}, "bridge": "br0"}, types.ErrInvalidNetworkConfig, []string{"mode loopback makes no link"}},
		"loopback, ipam":   {object{"mode": "loopback"}, types.ErrInvalidNetworkConfig, []string{"leave out bridge, routed, mtu, ipam"}},
		"multicast MAC": {
			object{"runtimeConfig": object{"mac": "01:00:00:00:00:01"}},
			types.ErrInvalidNetworkConfig,
			[]string{"01:00:00:00:00:01"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := r.network("wrong", r.plugin(c.more))
			_, err := n.add(n.newPod("one"))
			has(t, err, c.code, c.words...)
			r.nothing(n)
		})
	}
}

// A clash is refused with what to do, and takes nothing from who was there first.
func TestClashes(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, m mode) {
		if m.chained { // the other plugin sees to it
			return
		}
		n := r.network("clash", m.plugins(r, object{"capabilities": object{"mac": true}})...)
		a := n.newPod("a")
		a.conf.CapabilityArgs = map[string]any{"mac": "02:00:00:00:00:99"}
		result, err := n.add(a)
		must(t, err)
		if got := result.Interfaces[1].Mac; got != "02:00:00:00:00:99" {
			t.Errorf("MAC address %s", got)
		}
		_, err = n.add(a)
		has(t, err, codeClash, "call DEL first")

		twin := n.newPod("twin")
		twin.conf.CapabilityArgs = a.conf.CapabilityArgs
		_, err = n.add(twin)
		has(t, err, codeClash, "02:00:00:00:00:99", "another address")

		named := n.newPod("named")
		must(t, named.ns.Do(func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "eth0"
			return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
		}))
		_, err = n.add(named)
		has(t, err, codeClash, "an interface eth0")

		own := n.newPod("own")
		own.conf.NetNS = nsPath(r.host)
		_, err = n.add(own)
		has(t, err, types.ErrInvalidNetNS, "the host's network namespace")

		gone := n.newPod("gone")
		gone.conf.NetNS = "/run/netns/nobody"
		_, err = n.add(gone)
		has(t, err, types.ErrInvalidNetNS, "nobody")

		must(t, n.check(a))
		must(t, n.del(a))
		r.nothing(n)
	})
}

// A subnet that is full says so, and what to do.
func TestFullSubnet(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, m mode) {
		if m.chained { // the other plugin says so
			return
		}
		one := merged(r.ipam(), object{"ranges": [][]object{{{"subnet": "198.51.100.0/24", "rangeStart": "198.51.100.9", "rangeEnd": "198.51.100.9"}}}})
		n := r.network("full", m.plugins(r, object{"ipam": one})...)
		p := n.pods(1)[0]
		_, err := n.add(n.newPod("late"))
		has(t, err, codeAddresses, "no IP addresses available", "larger range")
		must(t, n.check(p))
		must(t, n.del(p))
		r.nothing(n)
	})
}

// A network that cannot take a pod says why, and keeps nothing of it.
func TestUnusable(t *testing.T) {
	r := newRig(t)
	n := r.network("no-bridge", r.plugin(object{"bridge": "lo"}))
	_, err := n.add(n.newPod("one"))
	has(t, err, codeNetwork, "no bridge", "another bridge")
	r.nothing(n)

	late := r.ipam()
	late["routes"] = []object{{"dst": "203.0.113.0/24", "gw": "192.0.2.1"}} // nothing leads to this gateway
	n = r.network("late", r.plugin(object{"ipam": late}))
	_, err = n.add(n.newPod("one"))
	has(t, err, codeKernel, "203.0.113.0/24")
	r.nothing(n)
}

// STATUS says whether ADD would work.
func TestStatus(t *testing.T) {
	r := newRig(t)
	status := func(more object) error {
		n := r.network("status", r.plugin(more))
		return n.cni.GetStatusNetworkList(context.Background(), n.list)
	}
	must(t, status(object{}))
	must(t, status(object{"routed": true}))
	has(t, status(object{"bridge": "lo"}), codeNoService, "no bridge")
	has(t, status(object{"ipam": object{"type": "nobody"}}), codeNoService, "nobody")
	has(t, status(object{"mode": "ovs", "ovsdb": "unix:/nowhere"}), codeNoService, "ovsdb-server")
}

// Malformed input gets an error of CNI's, and no other output.
func TestMalformedInput(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		stdin string
		env   []string
		code  uint
	}{
		"nothing":     {"", nil, types.ErrDecodingFailure},
		"no JSON":     {"{", nil, types.ErrDecodingFailure},
		"a list":      {"[]", nil, types.ErrDecodingFailure},
		"no name":     {`{"cniVersion": "1.0.0"}`, nil, types.ErrInvalidNetworkConfig},
		"odd name":    {`{"cniVersion": "1.0.0", "name": "a b"}`, nil, types.ErrInvalidNetworkConfig},
		"version":     {`{"cniVersion": "9.0.0", "name": "a"}`, nil, types.ErrIncompatibleCNIVersion},
		"nulls":       {`{"cniVersion": "1.0.0", "name": "a", "mode": null, "isGateway": null, "ipam": null, "prevResult": null}`, nil, types.ErrInvalidNetworkConfig},
		"prevResult":  {`{"cniVersion": "1.0.0", "name": "a", "prevResult": {"ips": [{"address": "x"}]}}`, nil, types.ErrDecodingFailure},
		"container":   {`{"cniVersion": "1.0.0", "name": "a"}`, []string{"CNI_CONTAINERID=../x"}, types.ErrInvalidEnvironmentVariables},
		"interface":   {`{"cniVersion": "1.0.0", "name": "a"}`, []string{"CNI_IFNAME=a/b"}, types.ErrInvalidEnvironmentVariables},
		"no command":  {`{"cniVersion": "1.0.0", "name": "a"}`, []string{"CNI_COMMAND=STOP"}, types.ErrInvalidEnvironmentVariables},
		"not a netns": {`{"cniVersion": "1.0.0", "name": "a", "ipam": {"type": "host-local"}}`, []string{"CNI_NETNS=/dev/null"}, types.ErrInvalidNetNS},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := r.command(context.Background(), r.path[0]+"/tsugiki-cni")
			cmd.Stdin = strings.NewReader(c.stdin)
			cmd.Env = append([]string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_NETNS=/proc/self/ns/net", "CNI_IFNAME=eth0", "CNI_PATH=" + r.path[1]}, c.env...)
			out, err := cmd.Output()
			e := &types.Error{}
			if err == nil || json.Unmarshal(out, e) != nil {
				t.Fatalf("%v: %s", err, out)
			}
			has(t, e, c.code)
		})
	}
}

// The examples are configurations that the plugin accepts.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.conflist")
	if err != nil || len(files) != 6 {
		t.Fatalf("examples: %v, %v", files, err)
	}
	for _, file := range files {
		list, err := libcni.NetworkConfFromFile(file)
		must(t, err)
		own := list.Plugins[len(list.Plugins)-1]
		c, err := parse(&skel.CmdArgs{StdinData: own.Bytes})
		if err == nil && c.Mode == modeLoopback && own.Network.Type == "tsugiki-cni" && !c.programs() {
			continue
		}
		if err != nil || own.Network.Type != "tsugiki-cni" || !c.DirectForward || !c.AntiSpoof || c.chained != (len(list.Plugins) > 1) {
			t.Errorf("%s: %+v, %v", file, c, err)
		}
	}
}
