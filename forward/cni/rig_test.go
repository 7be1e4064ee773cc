package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// tableFolder is where tables are pinned, in a host's mount namespace.
var tableFolder = forward.Folder

// A rig is a host in a namespace, with a BPF file system and a /var/lib of its own, and runs plugins
// there.
type rig struct {
	t    *testing.T
	host *netns.NS
	pid  int      // of a process in the host's mount namespace
	path []string // folders of plugins
	data string   // for addresses and results
	vs   *vswitch // if a test has started one
	dpu  *node    // the same, with a DPU, in a test of all modes
}

type object map[string]any

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newRig(t *testing.T) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	testkit.CheckLeaks(t)
	plugins, err := testkit.CNIPlugins()
	must(t, err)
	r := &rig{t: t, path: []string{testkit.BuildTsugiki(t), plugins}, data: t.TempDir(), host: newNS(t)}
	hold := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-ec", "mount -t bpf bpf /sys/fs/bpf; mount -t tmpfs var /var/lib; echo up; exec cat")
	stdin, err := hold.StdinPipe()
	must(t, err)
	stdout, err := hold.StdoutPipe()
	must(t, err)
	must(t, hold.Start())
	t.Cleanup(func() { stdin.Close(); _ = hold.Wait() })
	if _, err := io.ReadFull(stdout, make([]byte, 3)); err != nil {
		t.Fatalf("mount BPF file system: %v", err)
	}
	r.pid = hold.Process.Pid
	before := forward.Folder
	forward.Folder = fmt.Sprintf("/proc/%d/root%s", r.pid, tableFolder)
	t.Cleanup(func() { forward.Folder = before })
	return r
}

// newNS makes a namespace whose links look for no duplicates of IPv6 addresses: standard plugins would
// wait for that in each ADD, for a second and more.
func newNS(t *testing.T) *netns.NS {
	t.Helper()
	ns, err := netns.New()
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	must(t, ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0) }))
	return ns
}

func nsPath(ns *netns.NS) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.File().Fd()) }

// do runs a function in the host's namespace.
func (r *rig) do(f func() error) {
	r.t.Helper()
	must(r.t, r.host.Do(f))
}

// executor runs plugins on the host.
type executor struct {
	version.PluginDecoder
	r *rig
}

func (e *executor) ExecPlugin(ctx context.Context, plugin string, stdin []byte, env []string) ([]byte, error) {
	cmd := e.r.command(ctx, plugin)
	cmd.Env, cmd.Stdin = env, bytes.NewReader(stdin)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		answer := &types.Error{}
		if json.Unmarshal(out.Bytes(), answer) == nil && answer.Msg != "" {
			return nil, answer
		}
		return nil, fmt.Errorf("%w: %s%s", err, out.Bytes(), said.Bytes())
	}
	return out.Bytes(), nil
}

func (*executor) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// command is a program on the host.
func (r *rig) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	words := append([]string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", r.pid), "--net=" + nsPath(r.host), program}, args...)
	return exec.CommandContext(ctx, "nsenter", words...)
}

// network is a list of plugins.
type network struct {
	r    *rig
	list *libcni.NetworkConfigList
	cni  *libcni.CNIConfig
}

// network makes a network of these plugins. Version 1.1.0 has GC and STATUS.
func (r *rig) network(name string, plugins ...object) *network {
	r.t.Helper()
	return r.networkOf("1.1.0", name, plugins...)
}

func (r *rig) networkOf(version, name string, plugins ...object) *network {
	r.t.Helper()
	text, err := json.Marshal(object{"cniVersion": version, "name": name, "plugins": plugins})
	must(r.t, err)
	list, err := libcni.NetworkConfFromBytes(text)
	must(r.t, err)
	return &network{r, list, libcni.NewCNIConfigWithCacheDir(r.path, r.data, &executor{r: r})}
}

// ipam hands out addresses of both families.
func (r *rig) ipam() object {
	return object{
		"type": "host-local", "dataDir": filepath.Join(r.data, "leases"),
		"ranges": [][]object{{{"subnet": "198.51.100.0/24"}}, {{"subnet": "2001:db8:77::/64"}}},
		"routes": []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
	}
}

// otherIPAM hands out other addresses.
func (r *rig) otherIPAM() object {
	return merged(r.ipam(), object{"ranges": [][]object{{{"subnet": "203.0.113.0/24"}}, {{"subnet": "2001:db8:78::/64"}}}})
}

// plugin is tsugiki-cni with an IPAM plugin and what else is given.
func (r *rig) plugin(more object) object {
	return merged(object{"type": "tsugiki-cni", "ipam": r.ipam(), "pairs": "all"}, more)
}

// pod is one that is, or was, attached.
type pod struct {
	ns    *netns.NS
	conf  *libcni.RuntimeConf
	addrs []netip.Addr
}

func (n *network) newPod(id string) *pod {
	ns := newNS(n.r.t)
	return &pod{ns: ns, conf: &libcni.RuntimeConf{ContainerID: id, NetNS: nsPath(ns), IfName: "eth0"}}
}

func (n *network) add(p *pod) (*current.Result, error) {
	got, err := n.cni.AddNetworkList(context.Background(), n.list, p.conf)
	if err != nil {
		return nil, err
	}
	result, err := current.NewResultFromResult(got)
	if err != nil {
		return nil, err
	}
	p.addrs = nil
	for _, ip := range result.IPs {
		p.addrs = append(p.addrs, addrOf(ip.Address.IP))
	}
	return result, nil
}

func (n *network) del(p *pod) error {
	return n.cni.DelNetworkList(context.Background(), n.list, p.conf)
}

func (n *network) check(p *pod) error {
	return n.cni.CheckNetworkList(context.Background(), n.list, p.conf)
}

// forget removes what libcni has noted of pods: at GC it would call DEL for them.
func (n *network) forget(pods ...*pod) {
	n.r.t.Helper()
	for _, p := range pods {
		must(n.r.t, os.Remove(filepath.Join(n.r.data, "results", fmt.Sprintf("%s-%s-%s", n.list.Name, p.conf.ContainerID, p.conf.IfName))))
	}
}

// pods attaches some.
func (n *network) pods(count int) []*pod {
	n.r.t.Helper()
	var all []*pod
	for i := range count {
		p := n.newPod(fmt.Sprintf("pod-%s-%d", n.list.Name, i))
		_, err := n.add(p)
		must(n.r.t, err)
		all = append(all, p)
	}
	return all
}

// echo sends a datagram from a pod to each address of another one, which answers.
func (r *rig) echo(from, to *pod) {
	r.t.Helper()
	for _, a := range to.addrs {
		r.echoBy(from, &pod{ns: to.ns, addrs: []netip.Addr{a}}, a.String())
	}
}

// echoInterval is when echo sends another datagram, if no answer has come: the first one may be lost.
const echoInterval = 100 * time.Millisecond

// echoBy sends to an address that leads to a pod's.
func (r *rig) echoBy(from, to *pod, by string) {
	r.t.Helper()
	a := netip.MustParseAddr(by)
	var server, client *net.UDPConn
	must(r.t, to.ns.Do(func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.addrs[0], 0)))
		return err
	}))
	defer server.Close()
	must(r.t, from.ns.Do(func() (err error) {
		port := server.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		client, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, port)))
		return err
	}))
	defer client.Close()
	go testkit.AnswerDatagrams(server, testkit.Echo)
	testkit.Eventually(r.t, func() error {
		buf := []byte("sent")
		if _, err := client.Write(buf); err != nil {
			return err
		}
		must(r.t, client.SetReadDeadline(time.Now().Add(echoInterval)))
		if _, err := client.Read(buf); err != nil {
			return fmt.Errorf("answer of %s: %w", a, err)
		}
		return nil
	})
}

// counts are a pod's, by its host link.
func (r *rig) counts(n *network, p *pod) (counts map[string]uint64) {
	r.t.Helper()
	r.do(func() error {
		return withTable(func(t *forward.Table) error {
			c, err := t.Counts(r.device(forward.Owner{Network: n.list.Name, Container: p.conf.ContainerID, Interface: p.conf.IfName}))
			counts = c.Packets
			return err
		})
	})
	return counts
}

// device is the host's link of an attachment.
func (r *rig) device(o forward.Owner) int {
	links, err := netns.Dump(netlink.LinkList)
	must(r.t, err)
	for _, link := range links {
		vf := strings.HasPrefix(link.Attrs().Name, "vf") // it says whose it is, too
		if found, ok := ownerOf(link); ok && found == o && !vf {
			return link.Attrs().Index
		}
	}
	r.t.Fatalf("no link of %v", o)
	return 0
}

// emptyMap removes all rows of a map of the host's table.
func emptyMap(name string) error {
	path, err := filepath.Glob(filepath.Join(forward.Folder, "*", name))
	if err != nil || len(path) != 1 {
		return fmt.Errorf("maps %v: %w", path, err)
	}
	m, err := ebpf.LoadPinnedMap(path[0], nil)
	if err != nil {
		return err
	}
	defer m.Close()
	key := make([]byte, m.KeySize())
	for m.NextKey(nil, &key) == nil {
		if err := m.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

// close ends the pod's namespace, as a runtime may before DEL. The number of its descriptor is soon
// another file's.
func (p *pod) close() {
	p.ns.Close()
	p.conf.NetNS = "/run/netns/tsugiki-gone"
}

// noLinks returns a pod's link that is left, or a VF that has an owner.
func noLinks() error {
	links, err := netns.Dump(netlink.LinkList)
	for _, link := range links {
		vf := strings.HasPrefix(link.Attrs().Name, "vf") && link.Attrs().Alias == ""
		if link.Type() == "veth" && !vf {
			err = errors.Join(err, fmt.Errorf("link %s (%s) is left", link.Attrs().Name, link.Attrs().Alias))
		}
	}
	return err
}

// nothing checks that no pod is left: no link, no row, no program, no port of a switch, no address
// that is taken. The kernel deletes the links of a namespace some time after that is closed, and
// the programs of a link some time after that.
func (r *rig) nothing(n *network) {
	r.t.Helper()
	testkit.Eventually(r.t, func() error { return r.host.Do(noLinks) })
	r.rowsAndLeases(n)
}

func (r *rig) rowsAndLeases(n *network) {
	r.t.Helper()
	must(r.t, noRows())
	testkit.Eventually(r.t, onlyPinned)
	leases, err := filepath.Glob(filepath.Join(r.data, "leases", n.list.Name, "[0-9]*"))
	must(r.t, err)
	for _, lease := range leases {
		if base := filepath.Base(lease); !strings.HasPrefix(base, "last_") && base != "lock" {
			r.t.Errorf("the address %s is taken", base)
		}
	}
	if r.dpu != nil {
		must(r.t, r.dpu.noPorts())
	}
	if r.vs != nil && r.vs.runs("ovsdb-server") {
		if ports := r.vs.vsctl("--bare", "--columns=name", "find", "port", "name!=br-int", "name!=br-other"); ports != "" {
			r.t.Errorf("ports of the switch are left: %s", ports)
		}
	}
}

// pinned loads each map or program of the host's table whose name begins so.
func pinned(prefix string) (files []string, err error) {
	return filepath.Glob(filepath.Join(forward.Folder, "*", prefix+"*"))
}

// noRows says which map of the host's table has a row.
func noRows() error {
	files, err := pinned("*_by_")
	for _, file := range files {
		m, openErr := ebpf.LoadPinnedMap(file, nil)
		if openErr != nil {
			return openErr
		}
		key := make([]byte, m.KeySize())
		if m.NextKey(nil, &key) == nil {
			err = errors.Join(err, fmt.Errorf("%s has the row %x", filepath.Base(file), key))
		}
		m.Close()
	}
	return err
}

// onlyPinned says whether there are programs of the host's table besides those that are pinned.
func onlyPinned() error {
	files, err := pinned("forward_")
	maps, mapErr := pinned("pod_by_device")
	if err = errors.Join(err, mapErr); err != nil || len(maps) == 0 {
		return err
	}
	m, err := ebpf.LoadPinnedMap(maps[0], nil)
	if err != nil {
		return err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return err
	}
	own, _ := info.ID()
	count := 0
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it has ended
		}
		if info, err := p.Info(); err == nil {
			if of, _ := info.MapIDs(); slices.Contains(of, own) {
				count++
			}
		}
		p.Close()
	}
	if want := len(files) - 1; count != want { // forward_end reads no map
		err = fmt.Errorf("%d programs read the table, want the %d that are pinned", count, want)
	}
	return err
}
