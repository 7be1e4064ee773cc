package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// vswitch is Open vSwitch on a rig's host, with the datapath in user space.
type vswitch struct {
	r   *rig
	dir string
}

func (r *rig) vswitch() *vswitch {
	r.t.Helper()
	for _, p := range []string{"ovs-vsctl", "ovsdb-server", "ovsdb-tool", "ovs-vswitchd"} {
		testkit.Program(r.t, p)
	}
	dir, err := os.MkdirTemp("", "ovs") // a short path: its sockets are in it
	must(r.t, err)
	r.t.Cleanup(func() { os.RemoveAll(dir) })
	s := &vswitch{r, dir}
	r.vs = s
	s.run("ovsdb-tool", "create", dir+"/conf.db", "/usr/share/openvswitch/vswitch.ovsschema")
	s.startDatabase()
	s.run("ovs-vsctl", "--db="+s.database(), "--no-wait", "init")
	s.daemon("ovs-vswitchd", s.database())
	s.vsctl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev")
	return s
}

// database is where ovsdb-server serves.
func (s *vswitch) database() string { return "unix:" + s.dir + "/db.sock" }

func (s *vswitch) startDatabase() {
	s.daemon("ovsdb-server", s.dir+"/conf.db", "--remote=p"+s.database())
}

// run runs a program on the host.
func (s *vswitch) run(program string, args ...string) string {
	s.r.t.Helper()
	cmd := s.r.command(context.Background(), program, args...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+s.dir, "OVS_LOGDIR="+s.dir, "OVS_DBDIR="+s.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.r.t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (s *vswitch) vsctl(args ...string) string {
	s.r.t.Helper()
	return s.run("ovs-vsctl", append([]string{"--db=" + s.database(), fmt.Sprintf("--timeout=%.0f", max(1, testkit.Patience.Seconds()))}, args...)...)
}

// daemon starts one of the two, which is ready when the command returns, and ends it with the test.
func (s *vswitch) daemon(program string, args ...string) {
	s.r.t.Helper()
	ctl := filepath.Join(s.dir, program+".ctl")
	s.run(program, append(args, "--detach", "--no-chdir", "--pidfile="+s.dir+"/"+program+".pid", "--unixctl="+ctl, "--log-file="+s.dir+"/"+program+".log")...)
	s.r.t.Cleanup(func() { s.end(program) })
}

func (s *vswitch) runs(program string) bool {
	_, err := os.Stat(filepath.Join(s.dir, program+".pid"))
	return err == nil
}

// end ends a daemon, if it runs, and waits for that.
func (s *vswitch) end(program string) {
	s.r.t.Helper()
	if !s.runs(program) {
		return
	}
	s.run("ovs-appctl", "-t", filepath.Join(s.dir, program+".ctl"), "exit")
	testkit.Eventually(s.r.t, func() error {
		if s.runs(program) {
			return errors.New(program + " has not ended")
		}
		return nil
	})
}

// signal sends a signal to one of the two daemons.
func (s *vswitch) signal(program string, with unix.Signal) (pid int) {
	s.r.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, program+".pid"))
	must(s.r.t, err)
	_, err = fmt.Sscan(string(text), &pid)
	must(s.r.t, errors.Join(err, unix.Kill(pid, with)))
	return pid
}

// Pods on Open vSwitch reach each other directly; what is not direct the switch gets, once; and
// a Service's answers go back through it, which translates them.
func TestOVS(t *testing.T) {
	r := newRig(t)
	s := r.vswitch()
	n := r.network("ovs", r.plugin(object{"mode": "ovs", "ovsdb": s.database()}))
	pods := n.pods(2)
	a, b := pods[0], pods[1]
	r.echo(a, b)
	r.echo(b, a)
	if c := r.counts(n, a); c["direct"] < 4 {
		t.Errorf("counts %v", c)
	}
	must(t, errors.Join(n.check(a), n.check(b)))

	pair := func(v forward.Verdict) {
		r.do(func() error {
			return withTable(func(table *forward.Table) error {
				return table.SetPair(r.device(forward.Owner{Network: "ovs", Container: a.conf.ContainerID, Interface: "eth0"}), r.device(forward.Owner{Network: "ovs", Container: b.conf.ContainerID, Interface: "eth0"}), v)
			})
		})
	}
	pair(forward.Slow)
	r.echo(a, b)
	if c := r.counts(n, a); c["pair"] < 2 {
		t.Errorf("a slow pair: counts %v", c)
	}
	pair(forward.Direct)
	service(t, r, s, n, a, b)

	// Without the switch direct packets go on; only the question for a MAC address goes by it.
	for _, each := range [][2]*pod{{a, b}, {b, a}} {
		for _, addr := range each[1].addrs {
			knows(t, each[0], addr, macOf(t, each[1]))
		}
	}
	s.end("ovs-vswitchd")
	r.echo(a, b)
	for _, p := range append(pods, pods...) {
		must(t, n.del(p))
	}
	r.nothing(n)
}

// service translates datagrams to 203.0.113.80 to b.
func service(t *testing.T, r *rig, s *vswitch, n *network, a, b *pod) {
	t.Helper()
	// The pod takes the gateway to have this address.
	const gateway = "02:00:00:00:00:01"
	knows(t, a, netip.MustParseAddr("198.51.100.1"), net.HardwareAddr{2, 0, 0, 0, 0, 1})
	flows := filepath.Join(s.dir, "flows")
	must(t, os.WriteFile(flows, []byte(strings.Join([]string{
		"table=0,priority=20,ip,nw_dst=203.0.113.80 actions=ct(commit,table=1,nat(dst=" + b.addrs[0].String() + "))",
		"table=0,priority=10,ip actions=ct(table=1,nat)",
		"table=0,priority=0 actions=NORMAL",
		"table=1,priority=20,ip,dl_dst=" + gateway + " actions=mod_dl_dst:" + macOf(t, b).String() + ",NORMAL",
		"table=1,priority=0 actions=NORMAL",
	}, "\n")), 0o600))
	s.run("ovs-ofctl", "-O", "OpenFlow15", "replace-flows", "br-int", flows)
	before := r.counts(n, b)
	vip := &pod{ns: b.ns, addrs: b.addrs[:1]}
	r.echoBy(a, vip, "203.0.113.80")
	if c := r.counts(n, b); c["flow"] <= before["flow"] || c["direct"] != before["direct"] {
		t.Errorf("counts of the server %v, then %v", before, c)
	}
}

// macOf is the MAC address of a pod.
func macOf(t *testing.T, p *pod) (mac net.HardwareAddr) {
	t.Helper()
	must(t, p.ns.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			mac = link.Attrs().HardwareAddr
		}
		return err
	}))
	return mac
}

// knows has a pod know the MAC address of a neighbor for good.
func knows(t *testing.T, p *pod, neighbor netip.Addr, mac net.HardwareAddr) {
	t.Helper()
	must(t, p.ns.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: neighbor.AsSlice(), HardwareAddr: mac})
	}))
}

// The pod's end computes checksums, because nobody else does.
func TestChecksumOff(t *testing.T) {
	ns := newNS(t)
	must(t, ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "a"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "b"}); err != nil {
			return err
		}
		if err := checksumOff("a"); err != nil {
			return err
		}
		if err := checksumOff("nobody"); !errors.Is(err, unix.ENODEV) {
			t.Errorf("a link that is not there: %v", err)
		}
		return nil
	}))
}
