package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A switch that is gone or refuses says so, and nothing is left. DEL works without ovs-vswitchd.
func TestOVSFaults(t *testing.T) {
	r := newRig(t)
	s := r.vswitch()
	conf := func(more object) *network {
		all := object{"mode": "ovs", "ovsdb": s.database()}
		for k, v := range more {
			all[k] = v
		}
		return r.network("ovs", r.plugin(all))
	}
	n := conf(object{})
	_, err := conf(object{"bridge": "br-none"}).add(n.newPod("one"))
	has(t, err, codeNetwork, "no bridge br-none", "ovs-vsctl add-br br-none")
	r.nothing(n)

	p := n.pods(1)[0]
	name := namesOf("ovs", p.conf.ContainerID, "eth0")
	s.vsctl("del-port", name.port)
	has(t, n.check(p), codeDrift, "no port "+name.port)
	must(t, n.del(p))
	r.nothing(n)

	p = n.pods(1)[0]
	p.close()
	n.forget(p)
	must(t, n.cni.GCNetworkList(context.Background(), n.list, &libcni.GCArgs{}))
	r.nothing(n)

	p = n.pods(1)[0]
	s.end("ovsdb-server")
	_, err = n.add(n.newPod("late"))
	has(t, err, codeNetwork, "ovsdb-server")
	if err := n.del(p); err == nil {
		t.Error("DEL cannot have removed the port from the database")
	}
	s.startDatabase()
	must(t, n.del(p))
	r.nothing(n)
}

// hurried is a switch that may take a moment for a port, and as long as it wants for all else.
type hurried struct{ *ovs }

func (h hurried) connect(l *podLink, name names, given *current.Result, done *undo) error {
	h.limit = 100 * time.Millisecond
	defer func() { h.limit = switchTime }()
	return h.ovs.connect(l, name, given, done)
}

// ovs-vswitchd that is stopped has ADD fail as one that is to be tried again, and leave nothing.
func TestStoppedVswitchd(t *testing.T) {
	r := newRig(t)
	s := r.vswitch()
	conf := r.plugin(object{"mode": "ovs", "ovsdb": s.database()})
	n := r.network("ovs", conf)
	p := n.newPod("one")
	text, err := json.Marshal(merged(conf, object{"name": "ovs", "cniVersion": "1.1.0"}))
	must(t, err)
	cmd, err := newCommand(&skel.CmdArgs{ContainerID: "one", IfName: "eth0", Netns: p.conf.NetNS, Path: r.path[1], StdinData: text})
	must(t, err)
	cmd.plane = hurried{cmd.plane.(*ovs)}
	s.signal("ovs-vswitchd", unix.SIGSTOP)
	r.do(func() error {
		var done undo
		_, err := cmd.add(&done)
		has(t, coded(err), types.ErrTryAgainLater, "100ms", "ovs-vswitchd")
		return done.run()
	})
	r.nothing(n)
	s.signal("ovs-vswitchd", unix.SIGCONT)
	_, err = n.add(p)
	must(t, err)
	must(t, n.del(p))
	r.nothing(n)
}

// A database to which too many connect is one to be tried again, for each command.
func TestFullDatabase(t *testing.T) {
	o := &ovs{database: "unix:" + testkit.FullListener(t).Addr().String(), bridge: "br-int", limit: time.Millisecond}
	has(t, o.prepare(nil), types.ErrTryAgainLater, "1ms", "ovsdb-server")
	has(t, o.disconnect(namesOf("n", "c", "eth0")), types.ErrTryAgainLater, "1ms", "ovsdb-server")
}

// A bridge that vanishes while ADD waits for its port, or before, is an error that names it, and
// nothing is left.
func TestBridgeVanishes(t *testing.T) {
	r := newRig(t)
	s := r.vswitch()
	n := r.network("ovs", r.plugin(object{"mode": "ovs", "ovsdb": s.database()}))
	p := n.newPod("one")
	s.signal("ovs-vswitchd", unix.SIGSTOP)
	added := make(chan error, 1)
	go func() {
		_, err := n.add(p)
		added <- err
	}()
	name := namesOf("ovs", "one", "eth0")
	testkit.Eventually(t, func() error {
		if found := s.vsctl("--bare", "--columns=name", "find", "port", "name="+name.port); found != name.port {
			return fmt.Errorf("ports %q, want %s", found, name.port)
		}
		return nil
	})
	s.vsctl("--no-wait", "del-br", "br-int")
	s.signal("ovs-vswitchd", unix.SIGCONT)
	has(t, <-added, codeNetwork, "lost the port "+name.port, "br-int")
	r.nothing(n)
	_, err := n.add(p)
	has(t, err, codeNetwork, "no bridge br-int", "add-br")
	must(t, n.del(p))
	r.nothing(n)
}
