package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/host"
	"github.com/tsugiki/tsugiki/kube/install"
)

// agentProgram is the agent of the node.
const agentProgram = install.Prefix + "/bin/tsugiki"

// stateDir has data that the next agent needs.
const stateDir = "/var/lib/tsugiki"

// askLimit is how long containerd has for an answer. The readiness probe has less.
const askLimit = 30 * time.Second

// onNode are the commands of a container that has to do with its node, and with no API server.
var onNode = map[string]func(args []string) error{
	"install":    runInstall,
	"agent":      runAgent,
	"ready":      runReady,
	"uninstall":  runUninstall,
	"remove":     runRemove,
	"wait":       runWait,
	host.Command: host.Become,
}

// nodeFlags are those of the commands above.
type nodeFlags struct {
	*flag.FlagSet
	socket, unit, root string
}

func newNodeFlags(command string) *nodeFlags {
	f := &nodeFlags{FlagSet: flag.NewFlagSet(command, flag.ContinueOnError)}
	f.SetOutput(io.Discard)
	f.StringVar(&f.socket, "containerd", "/run/containerd/containerd.sock", "")
	if command != "uninstall" {
		f.StringVar(&f.root, "root", "/host", "")
	}
	return f
}

// installation is the one of the node.
func (f *nodeFlags) installation() install.Options {
	return install.Options{Root: f.root, Log: slog.Default()}
}

// parse reads the flags. No command has an argument.
func (f *nodeFlags) parse(args []string) error {
	if err := f.Parse(args); err != nil {
		return usageError{err}
	}
	if f.NArg() > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", f.Arg(0))}
	}
	return nil
}

// given tells whether the command line has a flag.
func (f *nodeFlags) given(name string) (is bool) {
	f.Visit(func(g *flag.Flag) { is = is || g.Name == name })
	return is
}

// usageError is a mistake in the command line.
type usageError struct{ error }

// statusError is the exit status of a program that has said why.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func asStatus(status int, err error) error {
	if err == nil && status != 0 {
		err = statusError(status)
	}
	return err
}

func runInstall(args []string) error {
	f := newNodeFlags("install")
	o := install.Options{Log: slog.Default()}
	f.StringVar(&o.Config, "agent-config", "", "")
	f.StringVar(&o.Containerd, "containerd-config", "/etc/containerd/config.toml", "")
	f.BoolVar(&o.Translate, "translate", false, "")
	f.StringVar(&o.PluginDir, "plugin-dir", "/opt/cni/bin", "")
	if err := f.parse(args); err != nil {
		return err
	}
	o.Root, o.Socket = f.root, f.socket
	return install.Install(o)
}

// runAgent starts the agent of the node, and ends with it.
func runAgent(args []string) error {
	f := newNodeFlags("agent")
	f.StringVar(&f.unit, "containerd-unit", "", "")
	if err := f.parse(args); err != nil {
		return err
	}
	// The kubelet has made the folder for the pod, and everybody could look into it.
	if err := os.Chmod(api.RunDir, 0o700); err != nil {
		return err
	}
	if err := f.restart(); err != nil {
		slog.Warn("containerd is not started anew; the readiness probe says whether it knows the runtime tsugiki", "err", err)
	}
	err := asStatus(host.Run(os.Stderr, agentProgram, "agent"))
	if _, gone := os.Stat(agentProgram); err != nil && errors.Is(gone, os.ErrNotExist) {
		slog.Error("the agent was removed from the node after this pod had installed it: delete the pod, and its next one installs it again", "file", agentProgram)
	}
	return err
}

// runReady tells whether pods can be grafted: the agent answers, and containerd knows the runtimes.
func runReady(args []string) error {
	f := newNodeFlags("ready")
	if err := f.parse(args); err != nil {
		return err
	}
	_, err := api.Dial("").Containers()
	return errors.Join(err, f.knows())
}

// runUninstall removes all from the node.
func runUninstall(args []string) error {
	if err := newNodeFlags("uninstall").parse(args); err != nil {
		return err
	}
	return asStatus(host.RunInside(os.Stderr, host.Self, append([]string{"remove"}, args...)...))
}

// runWait waits until the pod ends. By then, the containers before this one have done their work.
func runWait(args []string) error {
	if err := newNodeFlags("wait").parse(args); err != nil {
		return err
	}
	ended, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	<-ended.Done()
	return nil
}

// runRemove is runUninstall in the node's namespaces.
func runRemove(args []string) error {
	f := newNodeFlags("uninstall")
	if err := f.parse(args); err != nil {
		return err
	}
	o := f.installation()
	if is, err := o.Installed(); err != nil || !is {
		slog.Info("tsugiki-kube has installed nothing on this node, and removes nothing")
		return err
	}
	if err := noAgent(api.Dial("")); err != nil {
		return err
	}
	socket, err := o.ContainerdSocket()
	if err != nil {
		return err
	}
	if !f.given("containerd") && socket != "" {
		f.socket = socket
	}
	if err := errors.Join(noContainers(filepath.Join(api.RunDir, "runtime")), noProcesses("/proc", install.Prefix+"/bin/"), f.noPods()); err != nil {
		return err
	}
	if err := host.Clear(); err != nil {
		return err
	}
	if _, err := os.Stat(agentProgram); err == nil {
		if out, err := exec.Command(agentProgram, "doctor", "--clean").CombinedOutput(); err != nil {
			return fmt.Errorf("remove the kernel programs: %w: %s", err, out)
		}
	}
	// The record goes last: without it, a second call would do nothing.
	if err := errors.Join(os.RemoveAll(api.RunDir), os.RemoveAll(stateDir)); err != nil {
		return err
	}
	return install.Uninstall(o)
}

// noAgent returns an error unless nobody listens at the agent's socket. An agent that gives no answer, or
// a bad one, has containers nevertheless.
func noAgent(agent *api.Client) error {
	switch _, err := agent.Containers(); {
	case err == nil:
		return errors.New("the agent runs on this node: delete the DaemonSet tsugiki-kube-node first")
	case !errors.Is(err, api.ErrNoAgent):
		return fmt.Errorf("the agent of this node may still run: %w", err)
	}
	return nil
}

// noPods returns an error that names the pods of the node that need the runtime, if there are any.
func (f *nodeFlags) noPods() error {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	names, err := host.PodsOf(ctx, f.socket, install.Handlers, install.Runtime)
	if err != nil || len(names) == 0 {
		return err
	}
	return fmt.Errorf("pods of the RuntimeClass tsugiki still run on this node: delete them, and this is tried again (%s)", strings.Join(names, ", "))
}

// noProcesses returns an error that names the processes that run a program of a folder, if there are any:
// tsugiki run is one for each container of its own. Processes that end meanwhile do not count.
func noProcesses(proc, folder string) error {
	links, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "exe"))
	if err != nil {
		return err
	}
	var found []string
	for _, link := range links {
		if program, err := os.Readlink(link); err == nil && strings.HasPrefix(program, folder) {
			found = append(found, fmt.Sprintf("%s as process %s", program, filepath.Base(filepath.Dir(link))))
		}
	}
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("programs of Tsugiki still run on this node: end them, and this is tried again (%s)", strings.Join(found, ", "))
}

// noContainers returns an error that names the grafted containers of the node, if there are any.
// tsugiki-runtime has a file for each in a folder until it has deleted the container.
func noContainers(folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(files) == 0 {
		return err
	}
	var names []string
	for _, f := range files {
		var state struct{ Name string }
		text, err := os.ReadFile(f)
		if err == nil {
			err = json.Unmarshal(text, &state)
		}
		if err != nil {
			state.Name = filepath.Base(f) // one that cannot be read counts
		}
		names = append(names, state.Name)
	}
	return fmt.Errorf("containers of the RuntimeClass tsugiki still run on this node: delete their pods, and this is tried again (%s)", strings.Join(names, ", "))
}
