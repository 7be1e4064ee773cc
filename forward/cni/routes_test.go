package cni

import (
	"errors"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// A container's second interface leaves the first one its routes, and its result does not name
// them. CHECK agrees with both.
func TestTwoInterfaces(t *testing.T) {
	r := newRig(t)
	for name, more := range map[string]object{"bridge": {}, "routed": {"routed": true}} {
		first := r.network("first-"+name, r.plugin(more))
		ipam := r.ipam()
		ipam["ranges"] = [][]object{{{"subnet": "203.0.113.0/24"}}, {{"subnet": "2001:db8:78::/64"}}}
		ipam["routes"] = []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "203.0.113.0/24"}}
		last := object{"ipam": ipam, "bridge": "tsugiki1"}
		if name == "routed" {
			last = object{"ipam": ipam, "routed": true}
		}
		second := r.network("second-"+name, r.plugin(last))
		a := first.newPod("one")
		b := &pod{ns: a.ns, conf: &libcni.RuntimeConf{ContainerID: "one", NetNS: a.conf.NetNS, IfName: "eth1"}}
		for i, each := range []struct {
			n      *network
			p      *pod
			routes map[string]int // in the result
		}{{first, a, map[string]int{"bridge": 2, "routed": 2}}, {second, b, map[string]int{"bridge": 1, "routed": 0}}} {
			result, err := each.n.add(each.p)
			must(t, err)
			if len(result.Routes) != each.routes[name] {
				t.Errorf("%s: routes of eth%d: %v", name, i, result.Routes)
			}
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			must(t, a.ns.Do(func() error { return defaultBy("eth0", family) }))
		}
		for i, err := range []error{first.check(a), second.check(b)} {
			if err != nil {
				t.Errorf("%s: check eth%d: %v", name, i, err)
			}
		}
		must(t, errors.Join(second.del(b), first.del(a)))
		r.nothing(first)
		r.nothing(second)
	}
}

// defaultBy checks that the namespace's only default route of a family is by a link.
func defaultBy(name string, family int) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	list, err := netns.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_DST)
	})
	if err == nil && (len(list) != 1 || list[0].LinkIndex != link.Attrs().Index) {
		err = fmt.Errorf("default routes %v, want one by link %d", list, link.Attrs().Index)
	}
	return err
}
