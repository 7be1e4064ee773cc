package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bench/folder"
	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// node is the host of all modes: a network namespace with a bridge, a switch and a table of pods.
type node struct {
	host   *netns.NS
	table  *forward.Table
	bpffs  int
	folder *folder.Folder // of the switch
	spaces []*netns.NS
	bridge *netlink.Bridge
	next   byte // the next pod's number
}

func newNode(ctx context.Context) (n *node, err error) {
	n = &node{bpffs: -1, next: 10}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
			n = nil
		}
	}()
	if err := n.mountBPF(); err != nil {
		return n, err
	}
	if n.host, err = n.namespace(); err != nil {
		return n, err
	}
	if n.folder, err = folder.Make("tsugiki-forward-"); err != nil {
		return n, err
	}
	return n, n.host.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br0"
		n.bridge = &netlink.Bridge{LinkAttrs: attrs}
		err := errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0), netlink.LinkAdd(n.bridge), netlink.LinkSetUp(n.bridge))
		if err != nil {
			return fmt.Errorf("make bridge: %w", err)
		}
		if n.table, err = forward.Open(); err != nil {
			return err
		}
		return n.startSwitch(ctx)
	})
}

// mountBPF makes a BPF file system that no path leads to, for the table.
func (n *node) mountBPF() error {
	fs, err := unix.Fsopen("bpf", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open BPF file system: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("make BPF file system: %w", err)
	}
	if n.bpffs, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0); err != nil {
		return fmt.Errorf("mount BPF file system: %w", err)
	}
	forward.Folder = fmt.Sprintf("/proc/self/fd/%d/%s", n.bpffs, filepath.Base(forward.Folder))
	return nil
}

// namespace makes one that the node closes.
func (n *node) namespace() (*netns.NS, error) {
	ns, err := netns.New()
	if err == nil {
		n.spaces = append(n.spaces, ns)
	}
	return ns, err
}

// ovs runs a program of Open vSwitch. The calling thread is on the host.
func (n *node) ovs(ctx context.Context, program string, args ...string) error {
	dir := n.folder.Path
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+dir, "OVS_LOGDIR="+dir, "OVS_DBDIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (n *node) vsctl(ctx context.Context, args ...string) error {
	return n.ovs(ctx, "ovs-vsctl", append([]string{"--db=unix:" + n.folder.Path + "/db.sock", "--timeout=60"}, args...)...)
}

// startSwitch starts Open vSwitch with the datapath in user space, on the last CPU.
func (n *node) startSwitch(ctx context.Context) error {
	dir := n.folder.Path
	detached := func(name string) []string {
		return []string{"--detach", "--no-chdir", "--pidfile=" + dir + "/" + name + ".pid", "--unixctl=" + dir + "/" + name + ".ctl", "--log-file=" + dir + "/" + name + ".log"}
	}
	if err := n.ovs(ctx, "ovsdb-tool", "create", dir+"/conf.db", "/usr/share/openvswitch/vswitch.ovsschema"); err != nil {
		return err
	}
	database := append([]string{dir + "/conf.db", "--remote=punix:" + dir + "/db.sock"}, detached("ovsdb-server")...)
	if err := n.ovs(ctx, "ovsdb-server", database...); err != nil {
		return err
	}
	if err := n.vsctl(ctx, "--no-wait", "init"); err != nil {
		return err
	}
	pinned := append([]string{"-c", strconv.Itoa(runtime.NumCPU() - 1), "ovs-vswitchd", "unix:" + dir + "/db.sock"}, detached("ovs-vswitchd")...)
	if err := n.ovs(ctx, "taskset", pinned...); err != nil {
		return err
	}
	return n.vsctl(ctx, "add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev")
}

// stopSwitch ends the daemons that run.
func (n *node) stopSwitch() error {
	var errs []error
	for _, name := range []string{"ovs-vswitchd", "ovsdb-server"} {
		at := filepath.Join(n.folder.Path, name)
		if _, err := os.Stat(at + ".pid"); err != nil {
			continue
		}
		errs = append(errs, n.ovs(context.Background(), "ovs-appctl", "-t", at+".ctl", "exit"))
		for _, err := os.Stat(at + ".pid"); err == nil; _, err = os.Stat(at + ".pid") {
			time.Sleep(10 * time.Millisecond)
		}
	}
	return errors.Join(errs...)
}

func (n *node) close() error {
	var errs []error
	if n.folder != nil {
		errs = append(errs, n.stopSwitch(), n.folder.Remove())
	}
	if n.table != nil {
		errs = append(errs, n.table.Close())
	}
	for _, ns := range n.spaces {
		errs = append(errs, ns.Close())
	}
	if n.bpffs >= 0 {
		errs = append(errs, unix.Close(n.bpffs))
	}
	return errors.Join(errs...)
}
