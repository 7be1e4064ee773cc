package engines

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// containerdConfig is for both of its interfaces. %[1]s is the rig's folder, %[2]s
// the image's name, %[3]s more runtimes, %[4]s the folder of network plugins, %[5]s more of all.
const containerdConfig = `version = 2
root = "%[1]s/containerd"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "%[2]s"
# Lowering it needs CAP_SYS_RESOURCE, which machines for tests lack.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "%[4]s"
conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
%[3]s%[5]s`

const containerdRuntime = `[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.%[1]s]
runtime_type = "io.containerd.runc.v2"
pod_annotations = ["tsugiki.dev/*"]
container_annotations = ["tsugiki.dev/*"]
%[3]s[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.%[1]s.options]
BinaryName = %[2]q
`

// networkFolder is the folder of the network of a runtime's pods, in the rig.
const networkFolder = "/etc/cni/%s.d"

// cniConfig is the network of pods: a bridge, as engines make one.
const cniConfig = `{
	"cniVersion": "0.4.0",
	"name": "pods",
	"plugins": [{
		"type": "bridge",
		"bridge": "cni0",
		"isGateway": true,
		"ipMasq": true,
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.89.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}
	}]
}
`

// startContainerd starts containerd and loads the image into one of its
// namespaces.
func (r *Rig) startContainerd(t testkit.TB, namespace string) {
	t.Helper()
	var runtimes strings.Builder
	files := map[string]string{"/etc/cni/net.d/0-pods.conflist": r.network()}
	for name, path := range r.Runtimes {
		network := ""
		if list := r.Networks[name]; list != "" {
			folder := fmt.Sprintf(networkFolder, name)
			files[filepath.Join(folder, "0-pods.conflist")] = list
			network = fmt.Sprintf("cni_conf_dir = %q\n", folder)
		}
		fmt.Fprintf(&runtimes, containerdRuntime, name, path, network)
	}
	files["/etc/containerd/config.toml"] = fmt.Sprintf(containerdConfig, r.dir, ImageName, runtimes.String(), r.pluginFolder(t), r.Containerd)
	r.configure(t, files)
	if r.Migrated {
		const migrate = `containerd --config "$0" config migrate >"$0.new" && mv "$0.new" "$0"`
		if _, err := r.run("sh", "-c", migrate, "/etc/containerd/config.toml"); err != nil {
			t.Fatalf("%v", err)
		}
	}
	r.daemon(t, func() error {
		_, err := r.run("ctr", "version")
		return err
	}, "containerd")
	if err := r.importImage(namespace, r.Image); err != nil {
		t.Fatalf("%v", err)
	}
}

// importImage makes an image known in one of containerd's namespaces.
func (r *Rig) importImage(namespace string, i *Image) error {
	_, err := r.run("ctr", "-n", namespace, "image", "import", i.archive(true))
	return err
}

// ctr drives containerd by its own command, which knows no networks: its
// containers have none.
type ctr struct {
	*Rig
	execs atomic.Int64
}

func startCtr(t testkit.TB, r *Rig) Engine {
	t.Helper()
	need(t, r, "containerd", "ctr", "runc")
	r.startContainerd(t, "default")
	return &ctr{Rig: r}
}

func (e *ctr) Name() string { return "ctr" }

func (e *ctr) Load(i *Image) error { return e.importImage("default", i) }

func (e *ctr) Run(c Container) error {
	if !c.None || c.Publish != "" {
		return fmt.Errorf("run %s with a network: %w", c.Name, errors.ErrUnsupported)
	}
	args := []string{"run", "-d", "--seccomp", "--log-uri", "file://" + e.log(c.Name), "--cgroup", "/" + e.name + "/" + c.Name}
	args = append(args, flags("--annotation", pairs(c.Annotations)...)...)
	args = append(args, flags("--env", c.Env...)...)
	for _, name := range c.CapAdd {
		args = append(args, "--cap-add", "CAP_"+name)
	}
	if c.Runtime != "" {
		args = append(args, "--runc-binary", e.Runtimes[c.Runtime])
	}
	if c.Privileged {
		args = append(args, "--privileged")
	}
	if c.CPUs != 0 {
		args = append(args, "--cpus", fmt.Sprint(c.CPUs))
	}
	if c.DNS != "" {
		args = append(args, "--mount", "type=bind,src="+e.resolvConf(c)+",dst=/etc/resolv.conf,options=rbind:ro")
	}
	_, err := e.run("ctr", append(append(append(args, c.Flags...), c.image(), c.Name), c.Args...)...)
	return err
}

func (e *ctr) log(name string) string { return filepath.Join(e.dir, name+".log") }

func (e *ctr) task(args ...string) (string, error) {
	return e.run("ctr", append([]string{"task"}, args...)...)
}

// Exec has the shim write what the program prints, standard error included: ctr itself
// can end before it has opened the pipe, and prints nothing then (1.6.20, one of some
// 2800 programs on a loaded machine).
func (e *ctr) Exec(name string, args ...string) (string, error) {
	id := fmt.Sprintf("exec%d", e.execs.Add(1))
	log := e.log(id)
	_, err := e.task(append([]string{"exec", "--exec-id", id, "--log-uri", "file://" + log, name}, args...)...)
	out, readErr := os.ReadFile(e.outside(log))
	if err != nil {
		return string(out), fmt.Errorf("%w\n%s", err, out)
	}
	return string(out), readErr
}

func (e *ctr) Logs(name string) (string, error) {
	text, err := os.ReadFile(e.outside(e.log(name)))
	return string(text), err
}

func (e *ctr) IP(string) (string, error) { return "", nil }

func (e *ctr) Running(name string) (bool, error) {
	out, err := e.task("ls")
	for l := range strings.Lines(out) {
		if f := strings.Fields(l); len(f) == 3 && f[0] == name {
			return f[2] != "STOPPED", err
		}
	}
	return false, err
}

// end sends a signal to a task, waits for its end and removes it.
func (e *ctr) end(name, signal string) error {
	if _, err := e.task("kill", "-s", signal, name); err != nil {
		return err
	}
	for deadline := time.Now().Add(testkit.Patience); ; time.Sleep(pollInterval) {
		if running, err := e.Running(name); err != nil || !running {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is still there after %s", name, signal)
		}
	}
	_, err := e.task("rm", name)
	return err
}

func (e *ctr) Stop(name string) error { return e.end(name, "SIGTERM") }
func (e *ctr) Kill(name string) error { return e.end(name, "SIGKILL") }

func (e *ctr) Start(name string) error {
	_, err := e.task("start", "-d", "--log-uri", "file://"+e.log(name), name)
	return err
}

func (e *ctr) Pause(name string) error {
	_, err := e.task("pause", name)
	return err
}

func (e *ctr) Unpause(name string) error {
	_, err := e.task("resume", name)
	return err
}

func (e *ctr) Remove(name string) error {
	running, err := e.Running(name)
	if err != nil {
		return err
	}
	if running {
		if err := e.end(name, "SIGKILL"); err != nil {
			return err
		}
	}
	_, _ = e.task("rm", name) // one that has ended by itself
	_, err = e.run("ctr", "container", "rm", name)
	return err
}
