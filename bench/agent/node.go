package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/bench/folder"
	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/internal/cni"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

const (
	// agentLimit is how long an agent may take until it serves.
	agentLimit = 60 * time.Second
	// pollInterval is between two looks at something that is waited for, and so
	// what a takeover is measured to.
	pollInterval = 2 * time.Millisecond
)

// node is a machine with an agent. All of its processes are in the rig's cgroup,
// which is killed also when we are; all files are in one folder.
type node struct {
	top      *testkit.Topology
	rig      *engines.Rig
	dir      string // of files, on a disk: the agent's state is written through
	folder   *folder.Folder
	runtimes map[kind]string
	bridge   *cni.Network
	spec     *specs.Spec
	servers  map[string]uint16 // ports of the remote's, by client

	agent  *testkit.Cmd
	log    *os.File
	client *api.Client
}

// newNode makes one. The caller closes it.
func newNode(ctx context.Context, o *options) (n *node, err error) {
	n = &node{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if err := n.findPrograms(o.runtime); err != nil {
		return n, err
	}
	if n.folder, err = folder.Make(folderPattern); err != nil {
		return n, err
	}
	n.dir = n.folder.Path
	n.bridge.Data = filepath.Join(n.dir, "ipam")
	if n.top, err = testkit.New(ctx, testkit.Options{}); err != nil {
		return n, err
	}
	if n.rig, err = engines.New(n.top.Host, engines.Options{}); err != nil {
		return n, err
	}
	n.rig.Env = []string{"TSUGIKI_AGENT=" + n.socket(), "TSUGIKI_OCI_RUNTIME=" + n.runtimes[bare]}
	if err := n.prepare(ctx); err != nil {
		return n, err
	}
	if err := n.serve(ctx); err != nil {
		return n, err
	}
	if n.log, err = os.Create(filepath.Join(n.dir, "agent.log")); err != nil {
		return n, err
	}
	n.client = api.Dial(n.socket())
	if err := n.startAgent(ctx); err != nil {
		return n, err
	}
	return n, n.awaitAgent(ctx, 0)
}

func (n *node) findPrograms(runtime string) error {
	if err := testkit.Programs(runtime, "ldd", "iptables-save", "unshare", "nsenter", "findmnt"); err != nil {
		return err
	}
	dir, err := testkit.Binaries()
	if err != nil {
		return fmt.Errorf("find tsugiki: %w", err)
	}
	path, err := exec.LookPath(runtime)
	if err != nil {
		return err
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	n.runtimes = map[kind]string{bare: path, bridge: path, graft: filepath.Join(dir, "tsugiki-runtime")}
	plugins, err := cni.Find()
	n.bridge = &cni.Network{Plugins: plugins, Run: n.plugin}
	return err
}

// folderPattern is for the names of our folders, which are short: the paths of unix
// sockets are.
const folderPattern = "tsugiki-ba-*"

func (n *node) runDir() string { return filepath.Join(n.dir, "run") }
func (n *node) socket() string { return api.SocketIn(n.runDir()) }

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

// startAgent starts an agent, which may have run before.
func (n *node) startAgent(ctx context.Context) error {
	// No other containers of the machine than ours, and what our bundles' annotations say.
	config := filepath.Join(n.dir, "agent.toml")
	text := fmt.Sprintf(`[charge]
within = %q
[[allow]]
engines = ["other"]
names = ["*"]
annotations = ["egress", "ingress", "mode", "name"]
unknown_origin = true
destinations = ["0.0.0.0/0"]
addresses = [%q]
`, "/"+filepath.Base(n.rig.Group()), testkit.HostAddr4)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	n.agent = n.rig.Command(ctx, filepath.Join(filepath.Dir(n.runtimes[graft]), "tsugiki"), "agent",
		"--config", config, "--run-dir", n.runDir(), "--state-dir", filepath.Join(n.dir, "state"))
	n.agent.Stdout, n.agent.Stderr = n.log, n.log
	if err := n.agent.Start(); err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	return nil
}

// awaitAgent waits until the agent has so many containers that run.
func (n *node) awaitAgent(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, agentLimit)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		list, err := n.client.Containers()
		have := 0
		for _, c := range list {
			if c.State == "running" {
				have++
			}
		}
		if err == nil && have == want {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it has %d containers", have)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for an agent with %d containers: %w: %w\n%s", want, ctx.Err(), err, n.lastSaid())
		}
	}
}

// replaceAgent kills the agent, starts another, and measures how long it takes
// until that one has all containers.
func (n *node) replaceAgent(ctx context.Context, containers int) (time.Duration, error) {
	since := time.Now()
	if err := n.agent.Process.Kill(); err != nil {
		return 0, fmt.Errorf("kill agent: %w", err)
	}
	_ = n.agent.Wait() // killed
	if err := n.startAgent(ctx); err != nil {
		return 0, err
	}
	err := n.awaitAgent(ctx, containers)
	return time.Since(since), err
}

// lastSaid is the end of what the agent has logged.
func (n *node) lastSaid() string {
	data, err := os.ReadFile(n.log.Name())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// checkEmpty checks that nothing is left of any container, and that the agent has had
// nothing to complain of.
func (n *node) checkEmpty() error {
	list, err := n.client.Containers()
	if err != nil {
		return err
	}
	data, err := os.ReadFile(n.log.Name())
	if err != nil {
		return err
	}
	var complaints []string
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			complaints = append(complaints, line)
		}
	}
	if len(list) > 0 || len(complaints) > 0 {
		return fmt.Errorf("the agent still has %d containers, and has logged %d warnings and errors:\n%s",
			len(list), len(complaints), strings.Join(complaints[:min(10, len(complaints))], ""))
	}
	return nil
}

// output runs a program of the rig's and returns what it printed.
func (n *node) output(cmd *testkit.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s%s", strings.Join(cmd.Args, " "), err, stderr.String(), stdout.String())
	}
	return stdout.Bytes(), nil
}

// rate counts the connections that a container of its own makes in a second.
func (n *node) rate(ctx context.Context, client string, d time.Duration) (float64, error) {
	k, edit := graft, func(s *specs.Spec) { s.Annotations[api.AnnotationMode] = client }
	if client == "host" {
		k, edit = bare, shareNetwork
	}
	c := &container{id: "crr-" + client, kind: k}
	args := append(n.clientArgs(client), "-t", fmt.Sprint(d.Seconds()), "-w", "0.2")
	if err := n.bundle(c, args, edit); err != nil {
		return 0, err
	}
	out, err := n.output(n.rig.Command(ctx, n.runtimes[k], "--root", n.root(), "run", "--bundle", c.bundle, c.id))
	if err != nil {
		return 0, fmt.Errorf("connections of %s: %w", client, err)
	}
	var s struct {
		Ops     float64 `json:"ops"`
		Seconds float64 `json:"seconds"`
	}
	if err := json.Unmarshal(out, &s); err != nil || s.Ops == 0 || s.Seconds <= 0 {
		return 0, fmt.Errorf("connections of %s: netdrive measured nothing: %s: %w", client, out, err)
	}
	return s.Ops / s.Seconds, nil
}
