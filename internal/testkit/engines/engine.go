package engines

import (
	"fmt"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Container says what to run.
type Container struct {
	Name string
	// Image is the name of one that was loaded; empty is ImageName.
	Image string
	// Runtime is a key of Options.Runtimes, or a runtime that Options.Configured has made known, or
	// empty for the engine's own.
	Runtime string
	// Network is the engine's default one, a bridge, unless None is set:
	// then the container has a loopback and nothing else.
	None bool
	// Annotations are what the engine has for them; Docker has labels.
	Annotations map[string]string
	Args        []string // of the image's own command if empty
	Env         []string // KEY=VALUE
	CapAdd      []string // as in NET_ADMIN
	Privileged  bool
	DNS         string   // the address of the name server that it is told of
	Publish     string   // HOSTPORT:PORT, where the engine can
	CPUs        float64  // its quota; without one if it is 0
	Flags       []string // more of the run of the engine's command; not for pods
}

// Engine is a running engine, or podman. Its methods return what the engine has
// said as errors; what an engine cannot do wraps errors.ErrUnsupported.
type Engine interface {
	Name() string
	// Load makes another image known, under its name.
	Load(i *Image) error
	Run(c Container) error // also starts it
	// Exec runs a program in a container and returns what it printed on
	// standard output; the error has what it printed on standard error.
	Exec(name string, args ...string) (string, error)
	Logs(name string) (string, error)
	// IP is the container's own address, empty where it has none.
	IP(name string) (string, error)
	// Stop asks the container to end and waits for it; Start starts it again.
	Stop(name string) error
	Start(name string) error
	Kill(name string) error
	Pause(name string) error
	Unpause(name string) error
	// Running tells whether its first process is there.
	Running(name string) (bool, error)
	// Remove ends it if it runs and leaves nothing of it. One that is not there
	// is an error.
	Remove(name string) error
}

// starters are the engines.
var starters = map[string]func(t testkit.TB, r *Rig) Engine{
	"docker": startDocker,
	"podman": startPodman,
	"ctr":    startCtr,
	"cri":    startCRI,
	"crio":   startCRIO,
}

// Names are the engines that Start knows and that Debian has. It knows "crio", too: see Options.CRIO.
var Names = []string{"docker", "podman", "ctr", "cri"}

// Start starts an engine in a rig and loads the image into it. It skips the test
// where the engine is not installed. A rig has one engine.
func (r *Rig) Start(t testkit.TB, name string) Engine {
	t.Helper()
	start, found := starters[name]
	if !found {
		t.Fatalf("no engine %q", name)
	}
	return start(t, r)
}

// need skips the test where one of the distribution's programs is missing.
func need(t testkit.TB, r *Rig, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := r.run("sh", "-c", "command -v "+p); err != nil {
			t.Skipf("skip: needs the program %s in %s", p, searchPath)
		}
	}
}

// image is the name of a container's image.
func (c Container) image() string {
	if c.Image == "" {
		return ImageName
	}
	return c.Image
}

// flags are name and value for each of a list.
func flags(name string, values ...string) []string {
	var all []string
	for _, v := range values {
		all = append(all, name, v)
	}
	return all
}

// pairs are KEY=VALUE for each entry of a map.
func pairs(m map[string]string) []string {
	var all []string
	for k, v := range m {
		all = append(all, fmt.Sprintf("%s=%s", k, v))
	}
	return all
}

// Denied is what the image's program denied prints where the engine's default
// profile is in force. Podman's allows more than the others do.
func Denied(e Engine) string {
	if e.Name() == "podman" {
		return "keyctl ok\nadd_key ENOSYS\nunshare ok\n"
	}
	return "keyctl EPERM\nadd_key EPERM\nunshare EPERM\n"
}
