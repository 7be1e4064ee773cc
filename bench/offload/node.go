package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bench/folder"
	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/programs"
)

// patience is how long a program may take to do what it was started for.
const patience = time.Minute

// fabric is the network of the nodes, and everything that has to be taken down.
type fabric struct {
	bin    string    // folder of tsugiki's programs
	ns     *netns.NS // with a bridge, which is the gateway
	folder *folder.Folder
	nodes  []*node
	spaces []*netns.NS
}

// gateway is the address of the fabric, which also is the outside.
var gateway = netip.MustParseAddr("192.0.2.254")

func newFabric(bin string) (f *fabric, err error) {
	f = &fabric{bin: bin}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if f.folder, err = folder.Make("tsugiki-offload-bench-"); err != nil {
		return f, err
	}
	if f.ns, err = f.namespace(); err != nil {
		return f, err
	}
	return f, f.ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br0"
		br := &netlink.Bridge{LinkAttrs: attrs}
		return errors.Join(netlink.LinkAdd(br), address("br0", netip.PrefixFrom(gateway, 24)))
	})
}

// address gives a link an address and sets it up.
func address(name string, p netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	return errors.Join(netlink.AddrAdd(link, a), netlink.LinkSetUp(link))
}

func (f *fabric) namespace() (*netns.NS, error) {
	ns, err := netns.New()
	if err == nil {
		f.spaces = append(f.spaces, ns)
	}
	return ns, err
}

func (f *fabric) close() error {
	var errs []error
	for _, n := range f.nodes {
		errs = append(errs, n.stop())
	}
	for _, ns := range f.spaces {
		errs = append(errs, ns.Close())
	}
	if f.folder != nil {
		errs = append(errs, f.folder.Remove())
	}
	return errors.Join(errs...)
}

// node is a host, whose switch is on a DPU or on the host itself.
type node struct {
	number int
	cpu    int // of the switch
	host   *netns.NS
	place  *netns.NS // of the switch; with a DPU it is not the host
	dir    string
	daemon []*exec.Cmd
	rules  string // of the configuration
	bin    string // folder of tsugiki's programs
}

// newNode makes a node whose switch is on a CPU. offloaded: the switch is in a namespace of its own.
func (f *fabric) newNode(ctx context.Context, number, cpu, vfs int, offloaded bool) (n *node, err error) {
	n = &node{bin: f.bin, number: number, cpu: cpu, dir: filepath.Join(f.folder.Path, strconv.Itoa(number))}
	f.nodes = append(f.nodes, n)
	if n.host, err = f.namespace(); err != nil {
		return n, err
	}
	n.place = n.host
	if offloaded {
		if n.place, err = f.namespace(); err != nil {
			return n, err
		}
	}
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		return n, err
	}
	err = f.ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "to" + strconv.Itoa(number)
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "p0", PeerNamespace: netlink.NsFd(int(n.place.File().Fd()))}
		br, err := netlink.LinkByName("br0")
		return errors.Join(err, netlink.LinkAdd(veth), netlink.LinkSetMaster(veth, br), netlink.LinkSetUp(veth))
	})
	if err == nil {
		err = n.startSwitch(ctx)
	}
	if err == nil {
		err = n.startAgents(ctx, vfs)
	}
	if err != nil {
		return n, fmt.Errorf("make node %d: %w", number, err)
	}
	return n, nil
}

// run runs a program in a namespace, until it ends or has gone to the background.
func (n *node) run(ctx context.Context, in *netns.NS, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+n.dir, "OVS_LOGDIR="+n.dir, "OVS_DBDIR="+n.dir)
	out, err := n.output(in, cmd)
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (n *node) output(in *netns.NS, cmd *exec.Cmd) (out []byte, err error) {
	err = in.Do(func() error {
		out, err = cmd.CombinedOutput()
		return err
	})
	return out, err
}

// startSwitch starts Open vSwitch with the datapath in user space.
func (n *node) startSwitch(ctx context.Context) error {
	db := n.database()
	for _, step := range [][]string{
		{"ovsdb-tool", "create", n.dir + "/conf.db", "/usr/share/openvswitch/vswitch.ovsschema"},
		n.detached("ovsdb-server", n.dir+"/conf.db", "--remote=p"+db),
		{"ovs-vsctl", "--db=" + db, "--no-wait", "init"},
	} {
		if err := n.run(ctx, n.place, step[0], step[1:]...); err != nil {
			return err
		}
	}
	return n.startVswitchd(ctx)
}

func (n *node) database() string { return "unix:" + n.dir + "/db.sock" }

// detached is the command line of a daemon on the switch's CPU, which ends when that is ready.
func (n *node) detached(name string, args ...string) []string {
	at := filepath.Join(n.dir, name)
	return append(append([]string{"taskset", "-c", strconv.Itoa(n.cpu), name}, args...),
		"--detach", "--no-chdir", "--pidfile="+at+".pid", "--unixctl="+at+".ctl", "--log-file="+at+".log")
}

func (n *node) startVswitchd(ctx context.Context) error {
	words := n.detached("ovs-vswitchd", n.database())
	return n.run(ctx, n.place, words[0], words[1:]...)
}

func (n *node) endpoint() string { return "unix:" + n.dir + "/host" }

// startAgents starts the DPU's agent and the controller, and waits until the switch works.
func (n *node) startAgents(ctx context.Context, vfs int) error {
	err := n.start(n.place, n.cpu, "dpu-agent", "--listen", n.endpoint(), "--ovs-run-dir", n.dir, "--datapath", "netdev", "--uplink", "p0",
		"--address", fmt.Sprintf("192.0.2.%d/24", n.number), "--gateway", gateway.String(), "--masquerade", fmt.Sprintf("192.0.2.%d", 100+n.number),
		"--emulate-vfs", strconv.Itoa(vfs), "--host-netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.host.File().Fd()))
	if err == nil {
		err = n.writeConfig()
	}
	if err == nil {
		err = n.start(n.host, 0, "offload", "--config", n.config())
	}
	if err != nil {
		return err
	}
	host, err := dpu.NewHost(n.endpoint(), "")
	if err != nil {
		return err
	}
	return eventually(ctx, func() error {
		_, err := host.Healthy(ctx)
		return err
	})
}

func (n *node) config() string { return filepath.Join(n.dir, "offload.toml") }

func (n *node) writeConfig() error {
	text := fmt.Sprintf("[dpu]\nendpoint = %q\n", n.endpoint())
	for i := 1; i <= 3; i++ {
		text += fmt.Sprintf("[[node]]\ntunnel = \"192.0.2.%d\"\nsubnets = [%q]\n", i, subnet(i))
	}
	return os.WriteFile(n.config(), []byte(text+n.rules), 0o600)
}

func subnet(number int) string { return fmt.Sprintf("10.77.%d.0/24", number) }

// start starts a command of tsugiki in a namespace, on a CPU. Its log is a file.
func (n *node) start(in *netns.NS, cpu int, args ...string) error {
	program, err := programs.FindIn("tsugiki", []string{n.bin})
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(n.dir, args[0]+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("taskset", append([]string{"-c", strconv.Itoa(cpu), program}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := in.Do(cmd.Start); err != nil {
		return err
	}
	n.daemon = append(n.daemon, cmd)
	return nil
}

// end ends one of the programs of start.
func (n *node) end(i int) error {
	cmd := n.daemon[i]
	n.daemon = slices.Delete(n.daemon, i, i+1)
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		return fmt.Errorf("%s: %w", cmd.Args, err)
	}
	return cmd.Wait()
}

// stop ends the node's programs.
func (n *node) stop() error {
	var errs []error
	for len(n.daemon) > 0 {
		errs = append(errs, n.end(len(n.daemon)-1))
	}
	for _, name := range []string{"ovs-vswitchd", "ovsdb-server"} {
		at := filepath.Join(n.dir, name)
		if _, err := os.Stat(at + ".pid"); err != nil {
			continue
		}
		errs = append(errs, n.run(context.Background(), n.place, "ovs-appctl", "-t", at+".ctl", "exit"))
		errs = append(errs, eventually(context.Background(), func() error {
			if _, err := os.Stat(at + ".pid"); err == nil {
				return errors.New(name + " has not ended")
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}

// eventually repeats a check until it succeeds.
func eventually(ctx context.Context, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("still after %s: %w", patience, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
