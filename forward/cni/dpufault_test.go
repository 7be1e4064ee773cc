package cni

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
	"github.com/tsugiki/tsugiki/forward/offload/ports"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Without one of the four programs ADD says which, and leaves nothing. Pods that are there go on, DEL
// works, and what it could not remove is removed when the program is back.
func TestDPUFaults(t *testing.T) {
	f := newFabric(t)
	n := f.newNode(1)
	net := n.network(object{})
	all := net.pods(2)
	a, b := all[0], all[1]
	out := &pod{ns: f.ns, addrs: []netip.Addr{outside}}
	acquaint(t, a, b)
	n.echo(a, b)
	n.echo(b, a)
	n.echo(a, out)
	refuses := func(words ...string) {
		t.Helper()
		_, err := net.add(net.newPod("late"))
		has(t, err, codeNetwork, words...)
		n.echo(a, b)
	}

	n.control.kill(unix.SIGKILL)
	refuses("start tsugiki offload")
	n.echo(a, out)
	n.control = nil
	n.startControl("")
	n.waitReady()

	// The forwarder is away while a pod is deleted.
	n.agent.kill(unix.SIGKILL)
	refuses("tsugiki dpu-agent", n.endpoint)
	n.echo(a, out)
	c := all[1]
	must(t, net.del(c))
	must(t, net.del(c))
	if list := n.vsctl("list-ports", "br-int"); !bytes.Contains([]byte(list), []byte("rep0-1")) {
		t.Errorf("the port is gone already: %s", list)
	}
	n.startAgent()
	n.waitReady()
	testkit.Eventually(t, func() error {
		if list := n.vsctl("list-ports", "br-int"); bytes.Contains([]byte(list), []byte("rep0-1")) {
			return fmt.Errorf("ports %s", list)
		}
		return nil
	})
	_, err := net.add(b)
	must(t, err)
	acquaint(t, a, b)
	n.echo(a, b)
	n.echo(b, a)

	for _, program := range []string{"ovs-vswitchd", "ovsdb-server"} {
		n.signal(program, unix.SIGSTOP)
		n.echo(a, b)
		n.signal(program, unix.SIGCONT)
		n.echo(a, out)
	}
	n.killDaemon("ovs-vswitchd")
	testkit.Eventually(t, func() error {
		err := n.reachable()
		var fault *dpu.FaultError
		if !errors.As(err, &fault) {
			return fmt.Errorf("the DPU says %w", err)
		}
		return nil
	})
	refuses("ovs-vswitchd")
	if err := net.check(a); err == nil {
		t.Error("CHECK finds no fault without ovs-vswitchd")
	}
	n.vswitchd()
	n.waitReady()
	n.echo(a, out)

	n.killDaemon("ovsdb-server")
	refuses("ovsdb-server")
	n.startDatabase() // until then, ovs-vswitchd 3.1 forwards nothing in user space (docs/LIMITS.md)
	n.waitReady()
	n.echo(a, out)
	must(t, errors.Join(net.check(a), net.check(b)))
	for _, p := range all {
		must(t, net.del(p))
	}
	n.empty(net)
}

// rawPackets sees every frame that comes to a pod.
func rawPackets(t *testing.T, p *pod) int {
	t.Helper()
	s := -1
	must(t, p.ns.Do(func() (err error) {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
		if s, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		return unix.Bind(s, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index})
	}))
	t.Cleanup(func() { unix.Close(s) })
	limit := unix.NsecToTimeval(testkit.Patience.Nanoseconds())
	must(t, unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	return s
}

// send sends one datagram.
func (p *pod) send(t *testing.T, to netip.Addr, text string) {
	t.Helper()
	must(t, p.ns.Do(func() error {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 9)))
		if err != nil {
			return err
		}
		_, err = c.Write([]byte(text))
		return errors.Join(err, c.Close())
	}))
}

// A VF's next pod gets nothing that is for the last one, whose flows are in the switch as long as the
// controller does not run; a killed ADD leaves what DEL removes.
func TestDPUReuse(t *testing.T) {
	f := newFabric(t)
	n := f.newNode(1)
	network := n.network(object{})
	all := network.pods(2)
	old, sender := all[0], all[1]
	n.echo(sender, old) // the sender knows the MAC address
	must(t, n.rig.host.Do(func() error {
		return emptyMap("device_by_mac") // from now on all packets go by the switch
	}))
	must(t, n.control.cmd.Process.Signal(unix.SIGSTOP))
	gone := old.addrs[0]
	must(t, network.del(old))

	next := network.newPod("next")
	added := make(chan error, 1)
	go func() {
		_, err := network.add(next)
		added <- err
	}()
	n.waitPort("next")
	eth0 := rawPackets(t, next)
	for range 5 {
		sender.send(t, gone, "for the last pod")
	}
	must(t, n.control.cmd.Process.Signal(unix.SIGCONT))
	must(t, <-added)
	must(t, n.rig.host.Do(func() error { return emptyMap("device_by_mac") }))
	sender.send(t, next.addrs[0], "for this pod")
	buf := make([]byte, 2000)
	for {
		size, _, err := unix.Recvfrom(eth0, buf, 0)
		if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.EINTR) { // ADD sets the link up last; a signal
			continue
		}
		must(t, err)
		if bytes.Contains(buf[:size], []byte("for the last pod")) {
			t.Fatalf("the VF's next pod got % x", buf[:size])
		}
		if bytes.Contains(buf[:size], []byte("for this pod")) {
			break
		}
	}

	// ADD is killed while it waits for flows.
	must(t, n.control.cmd.Process.Signal(unix.SIGSTOP))
	killed := network.newPod("killed")
	ctx, kill := context.WithCancel(context.Background())
	go func() {
		_, err := network.cni.AddNetworkList(ctx, network.list, killed.conf)
		added <- err
	}()
	n.waitPort("killed")
	kill()
	if err := <-added; err == nil {
		t.Error("ADD was killed, and succeeds")
	}
	must(t, n.control.cmd.Process.Signal(unix.SIGCONT))
	for _, p := range []*pod{killed, next, sender} {
		must(t, network.del(p))
	}
	n.empty(network)
}

// waitPort waits until the switch's database has a port of a container.
func (n *node) waitPort(container string) {
	n.rig.t.Helper()
	testkit.Eventually(n.rig.t, func() error {
		conn, err := net.Dial("unix", n.dir+"/db.sock")
		if err != nil {
			return err
		}
		db := ovsdb.NewClient(conn)
		defer db.Close()
		table, err := ports.Get(context.Background(), db)
		if err != nil {
			return err
		}
		for _, p := range table.Ports {
			if p.Container == container && p.Number > 0 {
				return nil
			}
		}
		return fmt.Errorf("no port of container %s", container)
	})
}

// What cannot be attached is refused, with what to do.
func TestDPURefusals(t *testing.T) {
	f := newFabric(t)
	n := f.newNode(1)
	key := func(more object) object {
		keys := object{"endpoint": n.endpoint, "card": "emulated"}
		for k, v := range more {
			keys[k] = v
		}
		return object{"dpu": keys}
	}
	for name, c := range map[string]struct {
		more  object
		words []string
	}{
		"no endpoint":    {key(object{"endpoint": ""}), []string{"unix:/FOLDER nor tls:HOST:PORT"}},
		"relative":       {key(object{"endpoint": "unix:x"}), []string{"unix:/FOLDER nor tls:HOST:PORT"}},
		"no credentials": {key(object{"endpoint": "tls:192.0.2.1:1"}), []string{"dpu.credentials", "key.pem"}},
		"no folder":      {key(object{"endpoint": "tls:192.0.2.1:1", "credentials": "/nowhere"}), []string{"/nowhere/key.pem"}},
		"card":           {key(object{"card": "paper"}), []string{"write hardware or emulated"}},
		"bridge":         {object{"bridge": "br0"}, []string{"br-int"}},
		"chained":        {object{"ipam": object{}}, []string{"ipam is missing"}},
	} {
		net := n.network(c.more)
		_, err := net.add(net.newPod("refused"))
		t.Run(name, func(t *testing.T) { has(t, err, types.ErrInvalidNetworkConfig, c.words...) })
	}
	net := n.network(object{"ipam": object{"type": "host-local", "dataDir": n.data + "/leases", "ranges": [][]object{{{"subnet": "203.0.113.0/24"}}}}})
	_, err := net.add(net.newPod("stranger"))
	has(t, err, codeNetwork, "203.0.113.2", "subnet of this node")
	n.empty(net)

	net = n.network(object{"capabilities": object{"mac": true}})
	all := net.pods(vfs)
	_, err = net.add(net.newPod("one-more"))
	has(t, err, codeNetwork, "each of the 4 VFs has a pod")
	has(t, net.cni.GetStatusNetworkList(t.Context(), net.list), codeNoService, "each of the 4 VFs has a pod")
	must(t, net.del(all[3]))
	must(t, net.cni.GetStatusNetworkList(t.Context(), net.list))
	twin := net.newPod("twin")
	twin.conf.CapabilityArgs = map[string]any{"mac": macOf(t, all[0]).String()}
	_, err = net.add(twin)
	has(t, err, codeClash, macOf(t, all[0]).String())
	n.vsctl("del-port", "rep0-0")
	has(t, net.check(all[0]), codeDrift, "no port rep0-0")
	must(t, os.RemoveAll(n.data+"/results"))
	all[1].close()
	must(t, net.cni.GCNetworkList(context.Background(), net.list, &libcni.GCArgs{}))
	n.empty(net)
}

// More changes of links than the DPU's agent can read at once are no fault of the switch, and it
// finds what has changed.
func TestDPULosesChanges(t *testing.T) {
	r := newRig(t)
	r.offloaded()
	n := r.dpu
	must(t, n.agent.cmd.Process.Signal(unix.SIGSTOP))
	n.card.do(func() error {
		link, err := netlink.LinkByName("p0")
		for range 1000 { // its socket has room for less than 300
			err = errors.Join(err, netlink.LinkSetUp(link), netlink.LinkSetDown(link))
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "rep1-0"
		return errors.Join(err, netlink.LinkSetUp(link), netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "late"}))
	})
	must(t, n.agent.cmd.Process.Signal(unix.SIGCONT))
	host, err := dpu.NewHost(n.endpoint, "")
	must(t, err)
	testkit.Eventually(t, func() error {
		h, err := host.Healthy(t.Context())
		if err == nil && !slices.Contains(h.Representors, "rep1-0") {
			err = fmt.Errorf("representors %v", h.Representors)
		}
		return err
	})
	if said := n.agent.said.String(); strings.Contains(said, "the switch does not work") {
		t.Error("the agent says that the switch does not work")
	}
}
