package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// spy is a plane that looks at the links before the programs are on them and before it is open.
type spy struct {
	plane
	calls []string
}

func (s *spy) connect(l *podLink, name names, given *current.Result, done *undo) error {
	s.calls = append(s.calls, "connect")
	return errors.Join(s.plane.connect(l, name, given, done), down(l.host.Attrs().Index), down(l.wire))
}

func (s *spy) open(l *podLink, name names, given *current.Result) error {
	s.calls = append(s.calls, "open")
	entered := withTable(func(t *forward.Table) error {
		p, err := t.Pod(l.host.Attrs().Index)
		return errors.Join(err, t.Attached(p))
	})
	routes, err := netns.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(l.host, netlink.FAMILY_V4) })
	if len(routes) > 0 {
		err = fmt.Errorf("there are routes %v", routes)
	}
	return errors.Join(entered, err, down(l.wire), s.plane.open(l, name, given))
}

// down says that a link is up; 0 is none.
func down(index int) error {
	if index == 0 {
		return nil
	}
	link, err := netlink.LinkByIndex(index)
	if err == nil && link.Attrs().Flags&net.FlagUp != 0 {
		err = fmt.Errorf("the link %s is up", link.Attrs().Name)
	}
	return err
}

// attachSpied attaches a pod, and checks that nothing passes its links before the programs do.
func (r *rig) attachSpied(more object) {
	r.t.Helper()
	n := r.network("spied", r.plugin(more))
	p := n.newPod("one")
	conf := r.plugin(more)
	conf["name"], conf["cniVersion"] = "spied", "1.1.0"
	text, err := json.Marshal(conf)
	must(r.t, err)
	cmd, err := newCommand(&skel.CmdArgs{ContainerID: "one", IfName: "eth0", Netns: p.conf.NetNS, StdinData: text})
	must(r.t, err)
	s := &spy{plane: cmd.plane}
	cmd.plane = s
	given := &current.Result{IPs: []*current.IPConfig{{Address: net.IPNet{IP: net.IPv4(198, 51, 100, 9).To4(), Mask: net.CIDRMask(24, 32)}}}}
	var done undo
	r.do(func() error {
		l, err := cmd.makeLink(p.ns, cmd.names(), &done)
		if err == nil {
			err = cmd.attach(l, cmd.names(), given, &done)
		}
		return errors.Join(err, done.run())
	})
	if fmt.Sprint(s.calls) != "[connect open]" {
		r.t.Errorf("calls %v", s.calls)
	}
	r.nothing(n)
}

func TestNothingPassesBeforePrograms(t *testing.T) {
	newRig(t).attachSpied(object{"routed": true})
}

func TestNothingPassesBeforeProgramsOVS(t *testing.T) {
	r := newRig(t)
	s := r.vswitch()
	r.attachSpied(object{"mode": "ovs", "ovsdb": s.database()})
}
