package cni

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// fabric is the network between DPUs: a bridge in a namespace, which is their gateway, too.
type fabric struct {
	t  *testing.T
	ns *netns.NS
}

// Addresses of the gateway, which also are the outside.
var (
	outside  = netip.MustParseAddr("192.0.2.254")
	outside6 = netip.MustParseAddr("2001:db8:2::254")
)

func newFabric(t *testing.T) *fabric {
	t.Helper()
	f := &fabric{t, newNS(t)}
	must(t, f.ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br0"
		br := &netlink.Bridge{LinkAttrs: attrs}
		err := netlink.LinkAdd(br)
		for _, text := range []string{outside.String() + "/24", outside6.String() + "/64"} {
			addr, parseErr := netlink.ParseAddr(text)
			addr.Flags = unix.IFA_F_NODAD
			err = errors.Join(err, parseErr, netlink.AddrAdd(br, addr))
		}
		return errors.Join(err, netlink.LinkSetUp(br), checksumOff("br0"))
	}))
	return f
}

// node is a host with a DPU, both emulated by namespaces.
type node struct {
	*rig
	*vswitch            // of the DPU
	card     *rig       // the DPU: a rig with its namespace
	number   int        // of the node, and in its addresses
	subnets  [2]string  // of its pods: IPv4, IPv6
	vfs      int        // of its card
	six      bool       // its uplink has IPv6
	agent    *process   // tsugiki dpu-agent
	control  *process   // tsugiki offload
	more     [][]string // arguments for the agent
	config   string     // the controller's file
	endpoint string
	secret   string // folder of credentials
}

// vfs is the number of VFs of a node's card, if a test does not say.
const vfs = 4

// newNode makes a node whose number is from 1 to 9.
func (f *fabric) newNode(number int) *node {
	f.t.Helper()
	n := f.bareNode(number)
	n.startAgent()
	n.startControl("")
	return n
}

// bareNode has a switch that nobody looks after.
func (f *fabric) bareNode(number int) *node {
	f.t.Helper()
	n := newRig(f.t).withCard(number)
	must(f.t, f.ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = fmt.Sprintf("to%d", number)
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "p0", PeerNamespace: netlink.NsFd(int(n.card.host.File().Fd()))}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		br, err := netlink.LinkByName("br0")
		return errors.Join(err, netlink.LinkSetMaster(veth, br), netlink.LinkSetUp(veth), checksumOff(attrs.Name))
	}))
	return n
}

// withCard gives a host a DPU whose switch runs, and whose uplink is missing.
func (r *rig) withCard(number int) *node {
	r.t.Helper()
	card := &rig{t: r.t, host: newNS(r.t), pid: r.pid, path: r.path, data: r.data}
	s := card.vswitch()
	return &node{
		rig: r, vswitch: s, card: card, number: number, subnets: subnetsOf(number), vfs: vfs,
		config: filepath.Join(r.data, "offload.toml"), endpoint: "unix:" + s.dir + "/host",
	}
}

func subnetsOf(node int) [2]string {
	return [2]string{fmt.Sprintf("10.77.%d.0/24", node), fmt.Sprintf("2001:db8:77:%d::/64", node)}
}

// offloaded gives a host a DPU that has no neighbors. Pods have addresses of rig.ipam.
func (r *rig) offloaded() {
	r.t.Helper()
	n := r.withCard(1)
	n.subnets, n.vfs = [2]string{"198.51.100.0/24", "2001:db8:77::/64"}, testkit.Times(manyFew, manySoak)+1
	n.card.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "p0"
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "nowhere"})
	})
	n.startAgent()
	n.startControl("")
	n.waitReady()
	r.dpu = n
}

// keys are the plugin's.
func (n *node) keys() object {
	return object{"endpoint": n.endpoint, "credentials": n.secret, "card": cardEmulated}
}

// process is a daemon that a test can end.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	said syncBuffer
	done chan struct{}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start runs tsugiki on a rig's host until the test ends.
func (r *rig) start(args ...string) *process {
	r.t.Helper()
	p := &process{t: r.t, cmd: r.command(context.Background(), filepath.Join(r.path[0], "tsugiki"), args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	must(r.t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	r.t.Cleanup(func() {
		p.kill(unix.SIGTERM)
		if r.t.Failed() {
			r.t.Logf("%v:\n%s", args, p.said.String())
		}
	})
	return p
}

// kill ends the process. nsenter has executed it: the number is its own.
func (p *process) kill(s unix.Signal) {
	_ = p.cmd.Process.Signal(s)
	<-p.done
}

// addr is an address of the uplink's network.
func (n *node) addr(last int) string {
	if n.six {
		return fmt.Sprintf("2001:db8:2::%d", last)
	}
	return fmt.Sprintf("192.0.2.%d", last)
}

func (n *node) startAgent() {
	n.rig.t.Helper()
	length, gateway := "/24", outside
	if n.six {
		length, gateway = "/64", outside6
	}
	args := []string{
		"dpu-agent", "--listen", n.endpoint, "--ovs-run-dir", n.dir, "--datapath", "netdev", "--uplink", "p0",
		"--address", n.addr(n.number) + length, "--gateway", gateway.String(), "--masquerade", n.addr(100 + n.number),
		"--emulate-vfs", fmt.Sprint(n.vfs), "--host-netns", nsPath(n.rig.host),
	}
	n.agent = n.card.start(slices.Concat(append([][]string{args}, n.more...)...)...)
}

// startControl starts the controller with a policy, or has it read another one.
func (n *node) startControl(policy string) {
	n.rig.t.Helper()
	text := fmt.Sprintf("[dpu]\nendpoint = %q\ncredentials = %q\n", n.endpoint, n.secret)
	for i := 1; i <= 2; i++ {
		subnets := subnetsOf(i)
		if i == n.number {
			subnets = n.subnets
		}
		text += fmt.Sprintf("[[node]]\ntunnel = %q\nsubnets = [%q, %q]\n", n.addr(i), subnets[0], subnets[1])
	}
	must(n.rig.t, os.WriteFile(n.config, []byte(text+policy), 0o600))
	if n.control == nil {
		n.control = n.rig.start("offload", "--config", n.config, "--log-level", "debug")
		return
	}
	must(n.rig.t, n.control.cmd.Process.Signal(unix.SIGHUP))
}

// network makes the node's network.
func (n *node) network(more object) *network {
	n.rig.t.Helper()
	n.waitReady()
	return n.unready(more)
}

// unready is the network, whether the switch works or not.
func (n *node) unready(more object) *network {
	n.rig.t.Helper()
	p := object{
		"type": "tsugiki-cni", "mode": "dpu", "pairs": "all",
		"dpu": n.keys(),
		"ipam": object{
			"type": "host-local", "dataDir": filepath.Join(n.data, "leases"),
			"ranges": [][]object{{{"subnet": n.subnets[0]}}, {{"subnet": n.subnets[1]}}},
			"routes": []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
		},
	}
	for k, v := range more {
		p[k] = v
	}
	return n.rig.network(fmt.Sprintf("node%d", n.number), p)
}

// acquaint has two pods know each other's MAC addresses for good: without the switch they could not
// ask (docs/LIMITS.md).
func acquaint(t *testing.T, a, b *pod) {
	t.Helper()
	for _, each := range [][2]*pod{{a, b}, {b, a}} {
		for _, addr := range each[1].addrs {
			knows(t, each[0], addr, macOf(t, each[1]))
		}
	}
}

// waitReady waits until the switch works and is controlled.
func (n *node) waitReady() {
	n.rig.t.Helper()
	testkit.Eventually(n.rig.t, n.reachable)
}

// reachable says what is wrong with the switch.
func (n *node) reachable() error {
	o, err := newDPU(&config{DPU: dpuKeys{Endpoint: n.endpoint, Credentials: n.secret, Card: cardEmulated}})
	if err != nil {
		return err
	}
	return n.rig.host.Do(o.reachable)
}

// generation waits for another generation than the last one.
func (n *node) generation(last string) (now string) {
	n.rig.t.Helper()
	host, err := dpu.NewHost(n.endpoint, n.secret)
	must(n.rig.t, err)
	testkit.Eventually(n.rig.t, func() error {
		h, err := host.Healthy(context.Background())
		if err != nil {
			return err
		}
		if now = h.Generation; now == last {
			return errors.New("it is still generation " + now)
		}
		return nil
	})
	return now
}

// vswitchd starts ovs-vswitchd again.
func (n *node) vswitchd() { n.daemon("ovs-vswitchd", "unix:"+n.dir+"/db.sock") }

// killDaemon kills one of the switch's two.
func (n *node) killDaemon(program string) {
	n.rig.t.Helper()
	pid := n.signal(program, unix.SIGKILL)
	testkit.Eventually(n.rig.t, func() error {
		if unix.Kill(pid, 0) == nil {
			return errors.New(program + " has not ended")
		}
		return nil
	})
	must(n.rig.t, os.Remove(filepath.Join(n.dir, program+".pid")))
}

// empty checks that nothing of pods is left: no port, no VF that is taken, no flow of a pod.
func (n *node) empty(net *network) {
	n.rig.t.Helper()
	testkit.Eventually(n.rig.t, n.noPorts)
	n.rig.do(func() error {
		links, err := netns.Dump(netlink.LinkList)
		for _, l := range links {
			if l.Attrs().Alias != "" {
				err = errors.Join(err, fmt.Errorf("link %s has the alias %s", l.Attrs().Name, l.Attrs().Alias))
			}
		}
		return err
	})
	n.rowsAndLeases(net)
}

// noPorts says which pods' ports are left.
func (n *node) noPorts() error {
	n.rig.t.Helper()
	if ports := n.vsctl("list-ports", "br-int"); strings.Contains(ports, "rep") {
		return errors.New("ports are left: " + ports)
	}
	return nil
}

// management is the link between a host and its DPU that is no data's: 203.0.113.1 and 203.0.113.2.
func management(t *testing.T, n *node) {
	t.Helper()
	address := func(name, text string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(text)
		return errors.Join(err, netlink.AddrAdd(link, addr), netlink.LinkSetUp(link))
	}
	n.rig.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "mgmt"
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "mgmt", PeerNamespace: netlink.NsFd(int(n.card.host.File().Fd()))}
		return errors.Join(netlink.LinkAdd(veth), address("mgmt", "203.0.113.1/24"))
	})
	n.card.do(func() error { return address("mgmt", "203.0.113.2/24") })
}
