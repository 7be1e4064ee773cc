package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/bench/folder"
	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

const (
	// startLimit is how long anything may take until it runs, or has ended. It is long
	// because all of it may be on one CPU with containers that take all they get.
	startLimit = 60 * time.Second
	// pollInterval is between two looks at something that is waited for.
	pollInterval = 10 * time.Millisecond
	// weight is what all that is measured gets of its CPU, beside another program of
	// the machine's: the others' work shall not be what the tables show.
	weight = 16
)

// containerdConfig leaves out what only Kubernetes needs.
const containerdConfig = `version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri"]
`

// node is a machine with containerd and, at times, an agent. All of its processes
// are in a rig, which is killed also when we are.
type node struct {
	top    *testkit.Topology
	rig    *engines.Rig
	cpu    int
	dir    string // of what we and the rig both see
	folder *folder.Folder
	bin    string
	logger string // the URI of the logging driver, but for its file
	groups hierarchies
	name   string // the group of all, in which "containers" and "daemons" are

	log    *os.File // of containerd and the agents
	agent  *testkit.Cmd
	client *api.Client
}

// newNode makes one, without an agent. The caller closes it.
func newNode(ctx context.Context, o *options) (n *node, err error) {
	n = &node{cpu: o.cpu}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if err := testkit.Programs("containerd", "ctr", "runc", "busybox", "sysbench", "unshare", "nsenter", "findmnt"); err != nil {
		return n, err
	}
	if n.bin, err = testkit.Binaries(); err != nil {
		return n, err
	}
	if n.groups, err = findHierarchies(); err != nil {
		return n, err
	}
	if n.folder, err = folder.Make("tsugiki-bc-*"); err != nil {
		return n, err
	}
	n.dir = n.folder.Path
	if err := makeRootfs(n.rootfs()); err != nil {
		return n, err
	}
	if n.log, err = os.Create(filepath.Join(n.dir, "log")); err != nil {
		return n, err
	}
	var top testkit.Options
	if slices.Contains(o.figures, "softirq") {
		top.Containers = 2
	}
	if n.top, err = testkit.New(ctx, top); err != nil {
		return n, err
	}
	n.rig, err = engines.New(n.top.Host, engines.Options{Files: map[string]string{"/etc/containerd/config.toml": containerdConfig}})
	if err != nil {
		return n, err
	}
	n.name = "/" + filepath.Base(n.rig.Group())
	if err := n.findLogger(o.logger); err != nil {
		return n, err
	}
	return n, n.prepare(ctx)
}

// findLogger finds the driver.
func (n *node) findLogger(name string) error {
	if name == "tsugiki" {
		program := filepath.Join(n.bin, "tsugiki-log")
		if _, err := os.Stat(program); err != nil {
			return fmt.Errorf("find the logger: %w", err)
		}
		n.logger = "binary://" + program + "?max-size=16m&max-file=2&agent=" + url.QueryEscape(n.socket()) + "&path="
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	n.logger = "binary://" + self + "?" + lineLogger + "="
	return nil
}

// logFolder is for logs, in memory: in the rig, whose /run it is.
const logFolder = "/run/logs"

func (n *node) rootfs() string { return filepath.Join(n.dir, "rootfs") }
func (n *node) runDir() string { return filepath.Join(n.dir, "run") }
func (n *node) socket() string { return api.SocketIn(n.runDir()) }

// What processes may be in, below the group of all: containers and the daemons that
// work for them get as much as each other, as the paper has it.
func (n *node) containers() string { return n.name + "/containers" }
func (n *node) daemons() string    { return n.name + "/daemons" }

// prepare makes the groups and starts containerd.
func (n *node) prepare(ctx context.Context) error {
	for _, group := range []string{n.name, n.containers(), n.daemons()} {
		if err := n.groups.make(group, n.cpu); err != nil {
			return err
		}
	}
	if err := n.groups.weigh(n.name, weight); err != nil {
		return err
	}
	if err := n.do(ctx, "mkdir", logFolder); err != nil {
		return err
	}
	n.client = api.Dial(n.socket())
	if err := n.startDaemon(ctx, n.daemons(), "containerd", "--root", "/run/bench/containerd").Start(); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	return n.await(ctx, "containerd", func() error { return n.do(ctx, "ctr", "version") })
}

// startDaemon prepares a program of the rig that is in a group; "" is that of the
// caller.
func (n *node) startDaemon(ctx context.Context, group, program string, args ...string) *testkit.Cmd {
	script, files := "", []string(nil)
	if group != "" {
		files = n.groups.procs(group)
		script = `while [ "$1" != -- ]; do echo $$ >"$1" || exit; shift; done; `
	}
	all := append([]string{"-c", script + `shift; exec "$@"`, "start"}, append(files, "--", program)...)
	cmd := n.rig.Command(ctx, "sh", append(all, args...)...)
	cmd.Stdout, cmd.Stderr = n.log, n.log
	return cmd
}

// do runs a program of the rig.
func (n *node) do(ctx context.Context, program string, args ...string) error {
	var said bytes.Buffer
	cmd := n.rig.Command(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, said.String())
	}
	return nil
}

// await waits until something is so.
func (n *node) await(ctx context.Context, what string, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w\n%s", what, context.Cause(ctx), err, n.lastSaid())
		}
	}
}

// lastSaid is the end of what the daemons have logged.
func (n *node) lastSaid() string {
	data, err := os.ReadFile(n.log.Name())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// logURI is what has containerd log a container by the driver.
func (n *node) logURI(id string) string {
	return n.logger + url.QueryEscape(logFolder+"/"+id+".json")
}

// close ends everything and removes it.
func (n *node) close() error {
	var errs []error
	if n.rig != nil {
		errs = append(errs, n.rig.Close()) // kills the agent, and all containers
	}
	if n.top != nil {
		errs = append(errs, n.top.Close())
	}
	if n.log != nil {
		errs = append(errs, n.log.Close())
	}
	if n.folder != nil {
		errs = append(errs, n.folder.Remove())
	}
	return errors.Join(errs...)
}

func (n *node) machine() (measure.Machine, error) {
	cc, err := n.top.Host.Sysctl("net.ipv4.tcp_congestion_control")
	if err != nil {
		return measure.Machine{}, err
	}
	return measure.ThisMachine(cc)
}
