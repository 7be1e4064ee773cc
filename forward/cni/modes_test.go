package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A mode is a way in which the plugin attaches pods. Every test of eachMode runs for each.
type mode struct {
	name string
	// plugins starts what the mode needs on the host, and returns the network's list. more is for
	// the configuration of tsugiki-cni.
	plugins func(r *rig, more object) []object
	// drift has changes that CHECK must find, besides those of all modes.
	drift []drift
	// chained says that another plugin makes the link and calls the IPAM plugin.
	chained bool
	// byAddress says that packets are delivered by their IP address, whatever MAC address they have.
	byAddress bool
}

var modes = []mode{
	{name: "bridge", plugins: alone(object{}), drift: bridgeDrift},
	{name: "routed", plugins: alone(object{"routed": true}), drift: routedDrift},
	{name: "ovs", plugins: onSwitch, drift: switchDrift},
	{name: "chained-bridge", plugins: behind("bridge"), chained: true},
	{name: "chained-ptp", plugins: behind("ptp"), chained: true},
	{name: "dpu", plugins: onCard, drift: cardDrift, byAddress: true},
}

// alone has the plugin make the link.
func alone(conf object) func(*rig, object) []object {
	return func(r *rig, more object) []object { return []object{r.plugin(merged(conf, more))} }
}

// behind has a standard plugin make the link.
func behind(kind string) func(*rig, object) []object {
	return func(r *rig, more object) []object {
		first := object{"type": kind, "ipam": r.ipam(), "isGateway": true}
		if ipam, ok := more["ipam"]; ok {
			first["ipam"] = ipam
		}
		own := merged(object{"type": "tsugiki-cni", "pairs": "all"}, more)
		delete(own, "ipam")
		return []object{first, own}
	}
}

func onSwitch(r *rig, more object) []object {
	if r.vs == nil {
		r.vswitch()
	}
	return []object{r.plugin(merged(object{"mode": "ovs", "ovsdb": r.vs.database()}, more))}
}

func onCard(r *rig, more object) []object {
	if r.dpu == nil {
		r.offloaded()
	}
	return []object{r.plugin(merged(object{"mode": "dpu", "dpu": r.dpu.keys()}, more))}
}

// merged has the keys of both.
func merged(conf, more object) object {
	all := object{}
	for _, each := range []object{conf, more} {
		for k, v := range each {
			all[k] = v
		}
	}
	return all
}

// eachMode runs a test in each mode, on a host of its own.
func eachMode(t *testing.T, test func(t *testing.T, r *rig, m mode)) {
	t.Helper()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { test(t, newRig(t), m) })
	}
}

// Pods reach each other, directly; CHECK agrees; DEL leaves nothing, also again.
func TestModes(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, m mode) {
		n := r.network("modes", m.plugins(r, nil)...)
		pods := n.pods(2)
		a, b := pods[0], pods[1]
		r.echo(a, b)
		r.echo(b, a)
		for _, p := range pods {
			if c := r.counts(n, p); c["direct"] < 2 || c["bad-addr"]+c["bad-mac"] > 0 {
				t.Errorf("counts %v", c)
			}
			if err := n.check(p); err != nil {
				t.Errorf("check: %v", err)
			}
		}
		b.close() // with the pod's end the host's goes, before DEL
		for _, p := range []*pod{a, b, a, b} {
			if err := n.del(p); err != nil {
				t.Errorf("del: %v", err)
			}
		}
		r.nothing(n)
	})
}

// Results have the version that the configuration asks for, and later commands take them.
func TestVersions(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, m mode) {
		info, err := libcni.NewCNIConfig(r.path, &executor{r: r}).GetVersionInfo(context.Background(), "tsugiki-cni")
		must(t, err)
		if diff := cmp.Diff([]string{"0.4.0", "1.0.0", "1.1.0"}, info.SupportedVersions()); diff != "" {
			t.Errorf("versions:\n%s", diff)
		}
		plugins := m.plugins(r, nil)
		for _, v := range info.SupportedVersions() {
			n := r.networkOf(v, "v", plugins...)
			p := n.newPod("one")
			got, err := n.cni.AddNetworkList(context.Background(), n.list, p.conf)
			must(t, err)
			if got.Version() != v {
				t.Errorf("asked for %s, got %s", v, got.Version())
			}
			must(t, errors.Join(n.check(p), n.del(p)))
			must(t, n.cni.GetStatusNetworkList(context.Background(), n.list)) // libcni asks since version 1.1.0
			r.nothing(n)
		}
	})
}

// GC removes the attachments that the runtime does not name, of its own network only.
func TestGC(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, m mode) {
		n := r.network("kept", m.plugins(r, nil)...)
		other := r.network("other", r.plugin(object{"routed": true, "ipam": r.otherIPAM()}))
		pods, foreign := n.pods(3), other.pods(1)[0]
		stale := pods[1]
		n.forget(pods[1], pods[2])
		pods[2].close()
		err := n.cni.GCNetworkList(context.Background(), n.list, &libcni.GCArgs{
			ValidAttachments: []types.GCAttachment{{ContainerID: pods[0].conf.ContainerID, IfName: "eth0"}},
		})
		must(t, err)
		r.do(func() error {
			left := map[forward.Owner]bool{}
			links, err := netns.Dump(netlink.LinkList)
			for _, link := range links {
				if o, ok := ownerOf(link); ok {
					left[o] = true
				}
			}
			want := map[forward.Owner]bool{{Network: "kept", Container: pods[0].conf.ContainerID, Interface: "eth0"}: true, {Network: "other", Container: foreign.conf.ContainerID, Interface: "eth0"}: true}
			if diff := cmp.Diff(want, left); diff != "" {
				t.Errorf("attachments:\n%s", diff)
			}
			return err
		})
		if _, err := os.Stat(fmt.Sprintf("%s/leases/kept/%s", r.data, stale.addrs[0])); !m.chained && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the address of the stale attachment: %v", err)
		}
		must(t, errors.Join(n.check(pods[0]), other.check(foreign)))
		must(t, errors.Join(n.del(pods[0]), n.del(pods[1]), n.del(pods[2]), other.del(foreign)))
		r.nothing(n)
		r.nothing(other)
	})
}

// Numbers of pods that come and go at once: in make test, and in the soak.
const manyFew, manySoak = 8, 200

// Pods that come and go at once leave nothing.
func TestManyAtOnce(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, m mode) {
		n := r.network("many", m.plugins(r, nil)...)
		first := n.pods(1)[0]
		pods := make([]*pod, testkit.Times(manyFew, manySoak))
		for i := range pods {
			pods[i] = n.newPod(fmt.Sprintf("many-%d", i))
		}
		all := func(call func(*pod) error) {
			t.Helper()
			errs := make([]error, len(pods))
			var wait sync.WaitGroup
			for i, p := range pods {
				wait.Add(1)
				go func() {
					defer wait.Done()
					errs[i] = call(p)
				}()
			}
			wait.Wait()
			must(t, errors.Join(errs...))
		}
		for range testkit.Times(1, 3) {
			began := time.Now()
			all(func(p *pod) error { _, err := n.add(p); return err })
			added := time.Since(began)
			r.echo(first, pods[len(pods)-1])
			began = time.Now()
			all(n.del)
			t.Logf("%d pods at once: ADD %v, DEL %v", len(pods), added, time.Since(began))
		}
		must(t, n.del(first))
		r.nothing(n)
	})
}
