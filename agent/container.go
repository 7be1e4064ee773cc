// Package agent assembles the parts: it makes a container out of namespaces,
// cgroups, kernel programs, keepers, the engine and its front ends, runs a
// program in it, and takes all of it down again.
//
// It needs root (see kernel.Require) and Linux 5.15.
//
// # What is left when
//
// Everything that outlives a process by itself is in one cgroup per container,
// which is written down before it is made (see claim). The keeper holds the
// file that kills this cgroup and uses it as soon as its supervisor is gone, so
// that nothing runs on without one; the empty cgroup is removed by the next
// start. Kernel programs go with the cgroup and its last socket.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/intercept/notify"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/gate"
	"github.com/tsugiki/tsugiki/internal/kernel"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/programs"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/relay"
)

// shim is the file of native/shim, as the dynamic loader finds the one that fits a
// program: it replaces $LIB, or, musl's, does not, where it is a folder of that name.
const shim = "preload/$LIB/libtsugiki.so"

// Spec describes a container.
type Spec struct {
	Name   string // empty: made from our process id
	RunDir string
	// Netns is the container's own network namespace, as netns.Open takes it;
	// empty or "new" makes one that has only a loopback.
	Netns string
	// Endpoints are all that the container is given, named by a rule or not.
	Endpoints endpoint.Set
	Ingress   []policy.Ingress
	Egress    []policy.Egress
	Caps      launch.Capabilities
	User      *launch.User // nil: who we are
	Command   []string
	Log       *slog.Logger
	// Mode says by which front ends the calls of programs are seen.
	Mode filter.Mode
}

// Container is a running program with all that belongs to it.
type Container struct {
	spec      Spec
	claim     *claim
	group     *cgroup.Group                // parent of the two below
	programs  *cgroup.Group                // where the program is
	keepers   *cgroup.Group                // where its host sockets are made
	endpoints atomic.Pointer[endpoint.Set] // never changed, only replaced
	ownNS     *netns.NS
	own       *place

	changes sync.Mutex // guards what follows once the program runs
	table   *policy.Table
	host    map[string]*place // by Endpoint.Netns
	former  []*place          // what was in host, and sockets may still be there
	closing bool

	enforced   *policy.Enforcement
	engine     *graft.Engine
	relay      *relay.Relay
	gate       *gate.Gate
	supervisor *notify.Supervisor
	process    *launch.Process
	api        *server
	signals    chan os.Signal
}

// Start makes a container and starts its program. On an error nothing is left,
// and the program has not run.
func Start(spec Spec) (*Container, error) {
	c := &Container{spec: spec, host: map[string]*place{}}
	c.endpoints.Store(&c.spec.Endpoints)
	if err := c.start(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Container) start() error {
	c.catchSignals()
	if err := kernel.Require(); err != nil {
		return err
	}
	path, err := launch.Lookup(c.spec.Command[0])
	if err != nil {
		return err
	}
	for _, step := range []func() error{c.compile, c.openNamespaces, c.takeName, c.makeGroups, c.enforce, c.makeEngine, c.startRelay, c.listen} {
		if err := step(); err != nil {
			return err
		}
	}
	if err := c.launch(path); err != nil {
		return err
	}
	c.api.start()
	return nil
}

func (c *Container) compile() (err error) {
	c.table, err = policy.NewTable(c.spec.Ingress, c.spec.Egress)
	return err
}

func (c *Container) openNamespaces() (err error) {
	host, err := netns.Current()
	if err != nil {
		return err
	}
	c.host[""] = c.newPlace(host)
	if c.ownIsNew() {
		c.ownNS, err = netns.New()
	} else {
		c.ownNS, err = netns.Open(c.spec.Netns)
	}
	if err != nil {
		return err
	}
	if c.ownNS.Cookie() == host.Cookie() {
		return fmt.Errorf("network namespace %s is the host's, in which nothing needs grafting; name another, or \"new\"", c.spec.Netns)
	}
	for _, ep := range c.spec.Endpoints.All() {
		p, err := c.openPlace(ep)
		if err != nil {
			return err
		}
		c.host[ep.Netns] = p
		if err := checkAddress(ep, p.ns); err != nil {
			return err
		}
		if err := checkPorts(c.table, ep, p.ns, func(int, netip.AddrPort) bool { return false }); err != nil {
			return err
		}
	}
	return nil
}

func (c *Container) ownIsNew() bool { return c.spec.Netns == "" || c.spec.Netns == "new" }

func (c *Container) takeName() error {
	if err := Sweep(c.spec.RunDir); err != nil {
		return err
	}
	name := c.spec.Name
	if name == "" {
		name = fmt.Sprintf("run-%d", os.Getpid())
	}
	var err error
	c.claim, err = newClaim(c.spec.RunDir, name)
	if err != nil {
		return err
	}
	c.spec.Name = name
	return nil
}

func (c *Container) makeGroups() error {
	own, err := cgroup.Own()
	if err != nil {
		return err
	}
	group := cgroup.At(own + "/tsugiki-" + c.spec.Name)
	if err := c.claim.record(leftovers{PID: os.Getpid(), Cgroup: group.Path()}); err != nil {
		return err
	}
	if c.group, err = makeGroup(own, "tsugiki-"+c.spec.Name); err != nil {
		return err
	}
	if c.programs, err = cgroup.Create(c.group.Path(), "programs"); err != nil {
		return err
	}
	c.keepers, err = cgroup.Create(c.group.Path(), "keepers")
	return err
}

// makeGroup makes a cgroup. One of that name that is empty is what a killed
// process with another run directory has left.
func makeGroup(parent, name string) (*cgroup.Group, error) {
	g, err := cgroup.Create(parent, name)
	if errors.Is(err, fs.ErrExist) && cgroup.At(parent+"/"+name).RemoveIfEmpty() == nil {
		return cgroup.Create(parent, name)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%w; a container of that name runs with another --run-dir, choose another --name", err)
	}
	return g, err
}

func (c *Container) enforce() error {
	dir, err := c.keepers.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	c.enforced, err = policy.Enforce(dir, c.table, c.netnsOf)
	return err
}

func (c *Container) endpointNamed(name string) *endpoint.Endpoint {
	ep, err := c.endpoints.Load().Get(name)
	if err != nil {
		return nil
	}
	return ep
}

// netnsOf and what follows are for who holds c.changes, or nobody does yet.
func (c *Container) netnsOf(ep *endpoint.Endpoint) uint64 { return c.host[ep.Netns].Cookie() }

func (c *Container) newPlace(ns *netns.NS) *place { return &place{ns: ns, user: c.spec.User} }

// settle says where the keeper of a place goes.
func (c *Container) settle(p *place) {
	p.cgroup, p.owner, p.log = c.keepers, c.group, c.spec.Log.With("container", c.spec.Name)
}

// openPlace returns the place of an endpoint, which may be one that c.host has not.
func (c *Container) openPlace(ep *endpoint.Endpoint) (*place, error) {
	have := c.host[ep.Netns]
	if ep.Netns == "" {
		return have, nil
	}
	ns, err := netns.Open(ep.Netns)
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", ep.Name, err)
	}
	if have == nil {
		i := slices.IndexFunc(c.former, func(p *place) bool { return p.Cookie() == ns.Cookie() })
		if i < 0 {
			return c.newPlace(ns), nil
		}
		have = c.former[i]
	}
	if err := ns.Close(); err != nil {
		return nil, err
	}
	if ns.Cookie() != have.Cookie() {
		return nil, fmt.Errorf("endpoint %s: network namespace %s is another by now than the one of the container's other endpoints; delete those first",
			ep.Name, ep.Netns)
	}
	return have, nil
}

// rules are what the engine decides by with a table.
func (c *Container) rules(t *policy.Table) graft.Rules {
	r := graft.Rules{Table: t, Host: map[string]graft.Place{}}
	for name, p := range c.host {
		r.Host[name] = p
	}
	for _, p := range c.former {
		r.Former = append(r.Former, p)
	}
	return r
}

func (c *Container) makeEngine() error {
	log := c.spec.Log.With("container", c.spec.Name)
	ephemeral, err := ephemeralPorts(c.host[""].ns)
	if err != nil {
		return err
	}
	for _, p := range c.host {
		c.settle(p)
	}
	// Sockets of the container's own namespace belong where its programs are.
	c.own = &place{ns: c.ownNS, cgroup: c.programs, owner: c.group, user: c.spec.User, log: log}
	c.engine = graft.New(graft.Config{
		Enforcement:   c.enforced,
		Endpoint:      c.endpointNamed,
		Own:           c.own,
		OwnSockets:    func() { c.gate.SetOwnSockets() },
		GraftSockets:  func() { c.gate.SetAPI() },
		BoundClients:  func() { c.gate.SetBoundClients() },
		Services:      func() { c.gate.SetServices() },
		OwnIsLoopback: c.ownIsNew(),
		Ephemeral:     ephemeral,
		Log:           log,
	}, c.rules(c.table))
	// Now, so that a fault of it is an error of Start; and because it guards the
	// container against our own death.
	_, err = c.host[""].Keeper()
	return err
}

// startRelay lets sockets that are born on the host send datagrams to servers on
// the container's own loopback.
func (c *Container) startRelay() (err error) {
	if !c.engine.Born(unix.AF_INET) && !c.engine.Born(unix.AF_INET6) {
		return nil
	}
	c.relay, err = relay.Start(relay.Config{
		Enforcement: c.enforced, Host: c.host[""], Own: c.own, Log: c.spec.Log.With("container", c.spec.Name),
	})
	return err
}

func (c *Container) launch(path string) error {
	prog, err := filter.Build(runtime.GOARCH, c.filterOptions())
	if err != nil {
		return err
	}
	dir, err := c.programs.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	spec := launch.Spec{
		Path: path, Args: c.spec.Command, Netns: c.ownNS, CgroupDir: dir,
		Filter: prog, Caps: c.spec.Caps, User: c.spec.User,
	}
	if c.spec.Mode != filter.Seccomp && len(c.spec.Endpoints.All()) > 0 {
		spec.NeedsPreload = c.spec.Mode == filter.Preload
		if spec.Preload, err = programs.Find(shim); err != nil {
			return err
		}
	}
	c.process, err = launch.Start(spec, c.serve)
	return err
}

// serve starts the front end before the program can make its first call.
func (c *Container) serve(listener *os.File) error {
	dir, err := c.keepers.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	kill, err := c.group.Killer()
	if err != nil {
		return err
	}
	defer kill.Close()
	config := gate.Config{
		CgroupDir: dir,
		Own:       c.ownNS,
		Listener:  listener,
		Kill:      kill,
		Rules:     c.table.Snapshot(c.netnsOf),
		Born4:     c.engine.Born(unix.AF_INET),
		Born6:     c.engine.Born(unix.AF_INET6),
		Datagrams: c.seesDatagrams(),
		Report:    c.spec.Log.Enabled(context.Background(), slog.LevelInfo),
	}
	if u := c.spec.User; u != nil {
		config.UID, config.GID = u.UID, u.GID
	}
	if c.gate, err = gate.Start(config); err != nil {
		return err
	}
	c.supervisor = notify.New(listener, c.gate, c.engine, c.spec.Log.With("container", c.spec.Name), c.gateEnded)
	c.supervisor.Start()
	return nil
}

// gateEnded ends the container if it has lost its gate: nobody would answer its
// calls any more.
func (c *Container) gateEnded(cause error) {
	if c.gate.EndedWell() {
		return
	}
	c.spec.Log.Warn("the gate was killed; the container ends", "container", c.spec.Name, "cause", cause)
	if err := c.group.Kill(); err != nil {
		c.spec.Log.Error("end container", "container", c.spec.Name, "err", err)
	}
}

// PID is the program's process id.
func (c *Container) PID() int { return c.process.PID }

// Close takes the API away, kills what is left of the container and removes it.
// It may be called for one that is only half made.
func (c *Container) Close() error {
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if c.api != nil {
		note(c.api.close())
	}
	c.changes.Lock()
	defer c.changes.Unlock()
	c.closing = true
	places := append(slices.Collect(maps.Values(c.host)), c.former...)
	if c.supervisor != nil {
		note(c.supervisor.Close())
	}
	if c.own != nil {
		note(c.own.close())
	}
	for _, p := range places {
		note(p.close())
	}
	if c.group != nil {
		note(c.group.Kill())
	}
	if c.supervisor != nil {
		c.supervisor.Wait()
	}
	if c.relay != nil {
		note(c.relay.Close())
	}
	if c.engine != nil {
		note(c.engine.Close())
	}
	if c.enforced != nil {
		c.reportDenied()
		note(c.enforced.Close())
	}
	removed := true
	for _, g := range []*cgroup.Group{c.programs, c.keepers, c.group} {
		if g != nil {
			err := g.Remove()
			removed = err == nil // else the next start tries again
			note(err)
		}
	}
	if c.process != nil {
		// Not before all are dead: a call that waits would fail with ENOSYS.
		note(c.process.Listener.Close())
	}
	if c.claim != nil && removed {
		note(c.claim.release())
	}
	for _, p := range places {
		note(p.ns.Close())
	}
	if c.ownNS != nil {
		note(c.ownNS.Close())
	}
	return errors.Join(errs...)
}

// reportDenied says what the kernel refused, for the program itself may not.
func (c *Container) reportDenied() {
	d, err := c.enforced.Denied()
	if err == nil && d != (policy.Denied{}) {
		c.spec.Log.Info("refused by policy", "container", c.spec.Name,
			"connect", d.Connect, "bind", d.Bind, "send", d.Send, "setsockopt", d.SetOption)
	}
}
