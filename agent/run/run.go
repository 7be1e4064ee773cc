// Package run implements the command tsugiki run, which starts one program in a
// container of its own process, or in one of the daemon's, and ends as the program ends; and
// tsugiki guest attach, which serves the sockets of a virtual machine in such a container.
//
// It needs root (see kernel.Require) and Linux 5.15.
package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/internal/kernel"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/programs"
	"github.com/tsugiki/tsugiki/shim"
)

// Program describes a program to run in a container.
type Program struct {
	Name   string // of the container; empty: made from our process id
	RunDir string
	// Netns is the container's own network namespace, as netns.Open takes it;
	// empty or "new" makes one that has only a loopback.
	Netns string
	rules.Rules
	Caps    launch.Capabilities
	User    *launch.User // nil: who we are
	Command []string
	Log     *slog.Logger
}

func (p *Program) ownIsNew() bool { return p.Netns == "" || p.Netns == "new" }

func (p *Program) openOwn() (*netns.NS, error) {
	if p.ownIsNew() {
		return netns.New()
	}
	return netns.Open(p.Netns)
}

// nameIt gives the container a name if it has none.
func (p *Program) nameIt() {
	if p.Name == "" {
		p.Name = fmt.Sprintf("run-%d", os.Getpid())
	}
}

// Alone is a program in a container of this process, without a daemon. It implements Owner.
type Alone struct {
	container *container.Container
	name      *nameLock // nil before there is one
	saved     string    // the cgroup that is recorded
	api       *httpapi.Server
	process   *launch.Process
	signals   chan os.Signal
}

// newAlone returns a container without any resources.
func newAlone(p *Program) *Alone {
	p.nameIt()
	a := &Alone{}
	a.container = container.New(container.Spec{
		Name: p.Name, RunDir: p.RunDir, Netns: p.Netns, LoopbackOnly: p.ownIsNew(), Programs: true,
		Rules: p.Rules, User: p.User, Log: p.Log,
		Ports: ports.New().Holder(p.Name), // no other container asks for ports
	}, a)
	return a
}

// Check returns the error for which Start would not start a program: a missing feature or
// program, rules that contradict each other, and addresses and ports that the host does not have.
// It starts and leaves nothing.
func Check(p Program) error {
	a := newAlone(&p)
	_, err := a.check(&p)
	return errors.Join(err, a.Close())
}

// Start makes a container and starts its program. On an error nothing is left,
// and the program has not run.
func Start(p Program) (*Alone, error) {
	a := newAlone(&p)
	a.container.Trace(p.Log.Enabled(context.Background(), slog.LevelInfo))
	if err := a.start(&p); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Alone) start(p *Program) error {
	a.signals = catchSignals()
	path, err := a.check(p)
	if err != nil {
		return err
	}
	if err := a.make(p); err != nil {
		return err
	}
	if err := a.launch(p, path); err != nil {
		return err
	}
	a.api.Start()
	return nil
}

// make makes the container, which has no program yet.
func (a *Alone) make(p *Program) error {
	c := a.container
	for _, step := range []func() error{func() error { return a.lockName(p) }, c.Make, c.Begin, func() error { return a.listen(p) }} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// check makes all checks that are possible before others can see the container. It returns the
// program's path.
func (a *Alone) check(p *Program) (path string, err error) {
	if err := kernel.Require(); err != nil {
		return "", err
	}
	if path, err = launch.Lookup(p.Command[0]); err != nil {
		return "", err
	}
	if err := a.container.Prepare(); err != nil {
		return "", err
	}
	return path, a.useOwn(p)
}

func (a *Alone) useOwn(p *Program) error {
	own, err := p.openOwn()
	if err != nil {
		return err
	}
	return a.container.Use(own)
}

// lockName takes the container's name, after it has removed what killed processes have left.
func (a *Alone) lockName(p *Program) (err error) {
	if err := Sweep(p.RunDir); err != nil {
		return err
	}
	a.name, err = lockName(p.RunDir, p.Name)
	return err
}

// listen opens the container's socket. Requests wait until the server is started.
func (a *Alone) listen(p *Program) (err error) {
	find := func(name string) httpapi.Container {
		if name == p.Name {
			return a.container
		}
		return nil
	}
	routes := httpapi.EndpointRoutes(find)
	maps.Copy(routes, httpapi.TranslationRoutes(func(name string) httpapi.Translating {
		if name == p.Name {
			return a.container
		}
		return nil
	}))
	maps.Copy(routes, httpapi.RulesRoutes(func(name string) httpapi.Ruled {
		if name == p.Name {
			return a.container
		}
		return nil
	}))
	a.api, err = httpapi.Listen(api.ContainerSocket(p.RunDir, p.Name), httpapi.New(routes, p.Log))
	return err
}

func (a *Alone) launch(p *Program, path string) error {
	options := a.container.FilterOptions()
	options.Alone = true
	prog, err := filter.Build(runtime.GOARCH, options)
	if err != nil {
		return err
	}
	dir, own, err := a.container.OpenOwn()
	if err != nil {
		return err
	}
	defer dir.Close()
	spec := launch.Spec{
		Path: path, Args: p.Command, Netns: own.File(), CgroupDir: dir,
		Filter: prog, Caps: p.Caps, User: p.User,
	}
	if spec.Launcher, err = programs.Find(launch.Program); err != nil {
		return err
	}
	if a.container.Preloads() {
		spec.NeedsPreload = p.Mode == filter.Preload
		if spec.Preload, err = programs.Find(shim.LibraryFile); err != nil {
			return err
		}
	}
	a.process, err = launch.Start(spec, func(listener *os.File, _ int) error { return a.container.Serve(listener) })
	return err
}

// Wait waits for the program to end, passes signals on to it meanwhile, and
// returns how it ended.
func (a *Alone) Wait() (unix.WaitStatus, error) { return wait(a.process.PID, a.signals) }

// Close ends the API, kills what is left of the container and removes it.
func (a *Alone) Close() error {
	var err error
	if a.api != nil {
		err = a.api.Close()
	}
	removed, cerr := a.container.Close()
	err = errors.Join(err, cerr)
	if a.name != nil && removed { // else the next start tries again
		err = errors.Join(err, a.name.release())
	}
	return err
}

// Reserve implements Owner. No other container has ports.
func (a *Alone) Reserve([]ports.Reservation) error { return nil }

// Save implements Owner. It records what will have to be removed before it is made.
func (a *Alone) Save(s container.State) error {
	if s.Cgroup == a.saved {
		return nil
	}
	a.saved = s.Cgroup
	return a.name.record(leftovers{PID: os.Getpid(), Cgroup: s.Cgroup})
}

// PodNetwork implements Owner. There are no pods.
func (a *Alone) PodNetwork(string) (uint64, bool) { return 0, false }

// Pool implements Owner. Gates of a container that ends with this process are never idle.
func (a *Alone) Pool() (*gate.Pool, error) { return nil, errors.ErrUnsupported }

// Entered implements Owner.
func (a *Alone) Entered() {}

// Ended implements Owner.
func (a *Alone) Ended() {}
