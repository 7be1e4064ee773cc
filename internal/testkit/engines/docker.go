package engines

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// cli is an engine that is driven as Docker is.
type cli struct {
	*Rig
	name    string
	command []string                 // with its global flags
	create  func(Container) []string // flags of its run, besides those that all have
}

// startDocker starts dockerd, which starts a containerd of its own.
func startDocker(t testkit.TB, r *Rig) Engine {
	t.Helper()
	need(t, r, "dockerd", "docker", "containerd", "runc", "iptables")
	runtimes := map[string]any{}
	for name, path := range r.Runtimes {
		runtimes[name] = map[string]string{"path": path}
	}
	settings := map[string]any{
		"runtimes":      runtimes,
		"data-root":     filepath.Join(r.dir, "docker"),
		"cgroup-parent": "/" + r.name,
		"exec-opts":     []string{"native.cgroupdriver=cgroupfs"},
	}
	help, err := r.run("dockerd", "--help")
	if err != nil {
		t.Fatalf("%v", err)
	}
	if strings.Contains(help, "--oom-score-adjust") { // before Docker 25
		// Lowering it needs CAP_SYS_RESOURCE, which machines for tests lack.
		settings["oom-score-adjust"] = 0
		settings["storage-driver"] = "overlay2"
	}
	config, err := json.Marshal(settings)
	if err != nil {
		t.Fatalf("%v", err)
	}
	r.configure(t, map[string]string{"/etc/docker/daemon.json": string(config)})
	d := &cli{r, "docker", []string{"docker"}, func(c Container) []string {
		f := flags("--label", pairs(c.Annotations)...)
		if c.Runtime != "" {
			f = append(f, "--runtime", c.Runtime)
		}
		if c.DNS != "" {
			f = append(f, "--dns", c.DNS)
		}
		return f
	}}
	r.daemon(t, func() error {
		_, err := d.do("version")
		return err
	}, "dockerd")
	if err := d.Load(r.Image); err != nil {
		t.Fatalf("%v", err)
	}
	return d
}

// startPodman makes podman ready: it has no daemon.
func startPodman(t testkit.TB, r *Rig) Engine {
	t.Helper()
	need(t, r, "podman", "conmon", "runc")
	// What conmon, and so the runtime, finds in its environment.
	env := append([]string{"PATH=" + searchPath}, r.Env...)
	config := fmt.Sprintf(`[containers]
default_ulimits = []
[engine]
cgroup_manager = "cgroupfs"
conmon_env_vars = %s
events_logger = "none"
runtime = "runc"
[network]
network_backend = "cni"
cni_plugin_dirs = [%q]
`, tomlList(env), r.pluginFolder(t))
	storage := fmt.Sprintf("[storage]\ndriver = \"overlay\"\ngraphroot = %q\nrunroot = \"/run/containers/storage\"\n",
		filepath.Join(r.dir, "podman"))
	files := map[string]string{"/etc/containers/containers.conf": config, "/etc/containers/storage.conf": storage}
	if r.Network != "" {
		files["/etc/cni/net.d/0-pods.conflist"] = r.Network
	}
	r.configure(t, files)
	p := &cli{r, "podman", []string{"podman"}, func(c Container) []string {
		// Its defaults are more than a machine for tests may allow itself.
		f := append(flags("--annotation", pairs(c.Annotations)...), "--cgroup-parent", "/"+r.name, "--ulimit", "host")
		if c.DNS != "" { // --dns is refused without a network
			f = append(f, "--volume", r.resolvConf(c)+":/etc/resolv.conf:ro")
		}
		return f
	}}
	if err := p.Load(r.Image); err != nil {
		t.Fatalf("%v", err)
	}
	return p
}

func tomlList(values []string) string {
	var quoted []string
	for _, v := range values {
		quoted = append(quoted, fmt.Sprintf("%q", v))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

func (e *cli) Name() string { return e.name }

func (e *cli) do(args ...string) (string, error) {
	return e.run(e.command[0], append(e.command[1:], args...)...)
}

func (e *cli) Load(i *Image) error {
	_, err := e.do("load", "-q", "-i", i.archive(e.name == "podman"))
	return err
}

func (e *cli) on(verb, name string, flags ...string) error {
	_, err := e.do(append(append([]string{verb}, flags...), name)...)
	return err
}

func (e *cli) Run(c Container) error {
	command := e
	if e.name == "podman" && c.Runtime != "" {
		with := *e
		runtime, known := e.Runtimes[c.Runtime]
		if !known { // podman's own configuration has it
			runtime = c.Runtime
		}
		with.command = []string{"podman", "--runtime", runtime}
		command = &with
	}
	args := append([]string{"run", "-d", "--name", c.Name}, e.create(c)...)
	args = append(args, flags("--env", c.Env...)...)
	args = append(args, flags("--cap-add", c.CapAdd...)...)
	if c.None {
		args = append(args, "--network", "none")
	}
	if c.Privileged {
		args = append(args, "--privileged")
	}
	if c.CPUs != 0 {
		args = append(args, "--cpus", fmt.Sprint(c.CPUs))
	}
	if c.Publish != "" {
		args = append(args, "--publish", c.Publish)
	}
	args = append(append(append(args, c.Flags...), c.image()), c.Args...)
	_, err := command.do(args...)
	return err
}

func (e *cli) Exec(name string, args ...string) (string, error) {
	return e.do(append([]string{"exec", name}, args...)...)
}

func (e *cli) Logs(name string) (string, error) { return e.do("logs", name) }

func (e *cli) IP(name string) (string, error) {
	out, err := e.do("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name)
	ip := strings.TrimSpace(out)
	if ip == "invalid IP" { // Docker 29 says so of a network without addresses
		ip = ""
	}
	return ip, err
}

func (e *cli) Running(name string) (bool, error) {
	out, err := e.do("inspect", "-f", "{{.State.Running}}", name)
	return strings.TrimSpace(out) == "true", err
}

func (e *cli) Stop(name string) error    { return e.on("stop", name, "-t", "5") }
func (e *cli) Start(name string) error   { return e.on("start", name) }
func (e *cli) Kill(name string) error    { return e.on("kill", name) }
func (e *cli) Pause(name string) error   { return e.on("pause", name) }
func (e *cli) Unpause(name string) error { return e.on("unpause", name) }

func (e *cli) Remove(name string) error {
	if _, err := e.do("inspect", "-f", "{{.Id}}", name); err != nil {
		return err // rm -f says nothing of it
	}
	if e.name == "podman" { // rm -f stops it first
		return e.on("rm", name, "-f", "-v", "-t", "0")
	}
	return e.on("rm", name, "-f", "-v")
}

// resolvConf writes a resolv.conf for a container, and returns its path in the
// rig.
func (r *Rig) resolvConf(c Container) string {
	path := filepath.Join(r.dir, "resolv", c.Name)
	_ = r.write(path, "nameserver "+c.DNS+"\n") // or the engine finds no such file
	return path
}
