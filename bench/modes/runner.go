// Package modes runs the same program as a process of the host, in a container
// behind address translation and in a grafted container, against servers on a
// remote host; or on a host without IPv4, by IPv6 and as a program that knows
// IPv4 only, with what leads such a program to the remote.
//
// It owns the topology of benches and demo and how a program is started in
// each mode. What is run and what is read from its output is the callers'
// business. It needs what testkit needs, the program taskset for pinning, and
// for the mode graft the built tsugiki and what that needs.
package modes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Mode is a way to run a client.
type Mode string

const (
	// Host is a process in the host's namespace, what others compare to.
	Host Mode = "host"
	// NAT is a process in a container whose packets pass veth, bridge and
	// address translation.
	NAT Mode = "nat"
	// The others are a process in a container, started by tsugiki run in the
	// mode of that name, all of whose IPv4 destinations belong to an endpoint
	// on the host. Its own network namespace has only a loopback.
	Auto    Mode = "auto"
	Preload Mode = "preload"
	Seccomp Mode = "seccomp"
)

// Modes are all modes, in the order of tables.
var Modes = []Mode{Host, NAT, Auto, Preload, Seccomp}

// IsGraft tells whether a mode's programs are grafted by tsugiki run.
func (m Mode) IsGraft() bool { return m == Auto || m == Preload || m == Seccomp }

func (m Mode) isTsugiki() bool { return m.IsGraft() || m.isTranslated() }

// ParseModes reads a list of modes separated by commas.
func ParseModes(list string) ([]Mode, error) {
	var modes []Mode
	for name := range strings.SplitSeq(list, ",") {
		m := Mode(name)
		if !slices.Contains(Modes, m) && !m.isPeer() && !m.isOnIPv6() {
			return nil, fmt.Errorf("unknown mode %q, want some of %v", name, slices.Concat(Modes, Peers, OnIPv6))
		}
		modes = append(modes, m)
	}
	return modes, nil
}

// Names are modes as strings, for reports.
func Names(modes []Mode) []string {
	var names []string
	for _, m := range modes {
		names = append(names, string(m))
	}
	return names
}

// Pinning says which CPUs clients and servers run on.
type Pinning string

const (
	// Apart gives clients a CPU and servers another, where there are two.
	// Streams want it. A round trip then waits twice for a sleeping CPU to
	// wake, which virtual machines are slow at, and which hides what the
	// modes differ in.
	Apart Pinning = "apart"
	// Together puts both on one CPU: round trips cost what their code costs.
	Together Pinning = "together"
	// Anywhere leaves it to the scheduler. Loads want it in which every
	// operation passes a third process, such as a supervisor: on one CPU it
	// would take turns with client and server, which no machine makes it do.
	Anywhere Pinning = "anywhere"
)

// Config says what to build.
type Config struct {
	Modes []Mode
	// CongestionControl is set in every namespace; empty chooses cubic, or
	// reno where the machine does not allow cubic outside its initial
	// namespace. The machine's default is not used: bbr paces, so that bulk
	// figures would tell of pacing and not of the path.
	CongestionControl string
}

// Runner is a topology and what is needed to start programs in it.
type Runner struct {
	Top *testkit.Topology
	// CongestionControl is that of every namespace.
	CongestionControl string
	// Missing says which modes are left out, and why.
	Missing []string

	modes   []Mode
	tsugiki string
	cpus    []int             // that we may use
	pinned  *measure.Pinned   // see Pin
	docker  *docker           // nil: no mode is of Docker
	ipv4    *testkit.Topology // of the mode IPv4, or nil
	tayga   *testkit.Topology // whose host is the container of the mode Tayga, or nil
	dir     string            // of files of modes on IPv6, or empty
}

// New builds a topology with containers. The caller closes the runner.
func New(ctx context.Context, c Config) (*Runner, error) {
	r := &Runner{modes: c.Modes}
	if slices.ContainsFunc(c.Modes, Mode.isTsugiki) {
		dir, err := testkit.Binaries()
		if err != nil {
			return nil, fmt.Errorf("find tsugiki: %w", err)
		}
		r.tsugiki = filepath.Join(dir, "tsugiki")
	}
	var err error
	if r.cpus, err = usableCPUs(); err != nil {
		return nil, err
	}
	if r.CongestionControl, err = ChooseCongestionControl(c.CongestionControl); err != nil {
		return nil, err
	}
	o := testkit.Options{CongestionControl: r.CongestionControl}
	if slices.ContainsFunc(c.Modes, Mode.isOnIPv6) {
		o.IPv6Only = true
	} else {
		o.Containers = 1 // behind NAT
	}
	r.Top, err = testkit.New(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(r.prepare(ctx), r.prepareOnIPv6(ctx)); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// ChooseCongestionControl is what Config.CongestionControl becomes.
func ChooseCongestionControl(asked string) (string, error) {
	if asked != "" {
		return asked, nil
	}
	allowed, err := testkit.AllowedCongestionControls()
	if err != nil {
		return "", err
	}
	if slices.Contains(allowed, "cubic") {
		return "cubic", nil
	}
	return "reno", nil // which every kernel has and allows
}

func usableCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("choose CPUs: %w", err)
	}
	var cpus []int
	for cpu := range len(set) * strconv.IntSize {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// Pin says where the clients and servers run that are started from now on,
// and returns their CPUs, nil if they are not pinned. A server has the same
// CPU in both pinnings that pin.
func (r *Runner) Pin(p Pinning) (*measure.Pinned, error) {
	r.pinned = nil
	if p == Anywhere || p == Apart && len(r.cpus) < 2 {
		return nil, nil
	}
	if err := testkit.Programs("taskset"); err != nil {
		return nil, err
	}
	last := r.cpus[len(r.cpus)-1]
	r.pinned = &measure.Pinned{Client: last, Server: last}
	if p == Apart {
		r.pinned.Client = r.cpus[0]
	}
	return r.pinned, nil
}

// Close ends what still runs and takes the topology down.
func (r *Runner) Close() error {
	errs := []error{r.docker.close()}
	for _, top := range []*testkit.Topology{r.Top, r.ipv4, r.tayga} {
		if top != nil {
			errs = append(errs, top.Close())
		}
	}
	if r.dir != "" {
		errs = append(errs, os.RemoveAll(r.dir))
	}
	return errors.Join(errs...)
}

// clientCPU is where clients run, or nil.
func (r *Runner) clientCPU() *int {
	if r.pinned == nil {
		return nil
	}
	return &r.pinned.Client
}

// Modes are those of the configuration that are not missing.
func (r *Runner) Modes() []Mode { return slices.Clone(r.modes) }

// Shuffled are the runner's modes in random order.
func (r *Runner) Shuffled(random *rand.Rand) []Mode {
	order := slices.Clone(r.modes)
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

// Client prepares a program to be run in a mode.
func (r *Runner) Client(ctx context.Context, m Mode, argv ...string) *testkit.Cmd {
	return r.client(ctx, m, nil, argv...)
}

func (r *Runner) client(ctx context.Context, m Mode, flags []string, argv ...string) *testkit.Cmd {
	if m.IsDocker() {
		cmd, _ := r.docker.run(ctx, m, r.clientCPU(), 0, argv)
		return cmd
	}
	ns := r.host(m)
	switch m {
	case Pasta, Slirp4netns, Bypass4netns:
		argv = peer(m, 0, argv)
	case Auto, Preload, Seccomp:
		argv = slices.Concat([]string{
			r.tsugiki, "run", "--mode", string(m), "--netns", "new",
			"--endpoint", "out type ipv4 addr 0.0.0.0 port dynamic",
			"-e", "0.0.0.0/0=out",
		}, flags, []string{"--"}, argv)
	case Translated, TranslatedSeccomp:
		argv = r.translated(m, flags, argv)
	}
	if r.pinned != nil {
		argv = pinned(r.pinned.Client, argv)
	}
	cmd := ns.Command(ctx, argv[0], argv[1:]...)
	if m.isTsugiki() || m == Bypass4netns {
		// They end their program and remove its cgroups on SIGTERM.
		cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	}
	return cmd
}

// Serve starts a server for clients in a mode, on the remote, and waits until it listens at the ports
// of a network (see WaitListen). It runs until ctx ends or the runner is closed.
func (r *Runner) Serve(ctx context.Context, m Mode, network string, ports []uint16, argv ...string) (*testkit.Cmd, error) {
	cmd := r.Remote(ctx, m, argv...)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start server %s: %w", argv[0], err)
	}
	wait, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	for _, port := range ports {
		if err := r.remote(m).WaitListen(wait, network, port); err != nil {
			return nil, fmt.Errorf("start server %s: %w", strings.Join(argv, " "), err)
		}
	}
	return cmd, nil
}

// pinned runs argv on one CPU. taskset replaces itself by the program, which
// keeps its process id.
func pinned(cpu int, argv []string) []string {
	return append([]string{"taskset", "--cpu-list", strconv.Itoa(cpu)}, argv...)
}

// Run is a client that has ended.
type Run struct {
	Stdout []byte
	Wall   time.Duration
	// CPU is what the client's process and those of its descendants used
	// that were waited for; of tsugiki run the supervisor is among them.
	CPU time.Duration
}

// Run runs a program in a mode to its end.
func (r *Runner) Run(ctx context.Context, m Mode, argv ...string) (Run, error) {
	return r.RunWith(ctx, m, nil, argv...)
}

// RunWith is Run with further flags of tsugiki run, where the mode is one of graft's.
func (r *Runner) RunWith(ctx context.Context, m Mode, flags []string, argv ...string) (Run, error) {
	cmd := r.client(ctx, m, flags, argv...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	wall := time.Since(start)
	if ctx.Err() != nil {
		return Run{}, ctx.Err()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		// Some programs, iperf3 -J among them, explain on standard output.
		said := strings.TrimSpace(stderr.String() + stdout.String())
		return Run{}, fmt.Errorf("run %s in mode %s: %w: %s", argv[0], m, err, said)
	}
	if err != nil {
		return Run{}, fmt.Errorf("run %s in mode %s: %w", argv[0], m, err)
	}
	state := cmd.ProcessState
	return Run{Stdout: stdout.Bytes(), Wall: wall, CPU: state.UserTime() + state.SystemTime()}, nil
}
