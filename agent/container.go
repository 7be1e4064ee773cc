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
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/intercept/notify"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/internal/kernel"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/enforcer"
	"github.com/tsugiki/tsugiki/relay"
)

// Spec describes a container.
type Spec struct {
	Name   string // empty: made from our process id
	RunDir string
	// Netns is the container's own network namespace, as netns.Open takes it;
	// empty or "new" makes one that has only a loopback.
	Netns string
	// Endpoints of the rules are all that the container is given, named by a rule
	// or not.
	rules.Rules
	// Annotated says that the rules stood in a container's annotations, whose author may
	// also write in the folders of its unix endpoints.
	Annotated bool
	Caps      launch.Capabilities
	User      *launch.User // nil: who we are
	Command   []string
	Log       *slog.Logger
}

// Container is a container with all that belongs to it. Its program is started by
// Start, or by others, who give the listener of its filter to a Daemon.
type Container struct {
	spec Spec
	mark string       // makes the name of its cgroup unique where names are not; or empty
	log  *slog.Logger // says which container
	// decisions takes what is decided about calls, below the level of a warning.
	decisions *slog.Logger
	// doors is the directory of its gates' doors; nil if gates and keepers end the
	// container should this process end.
	doors     *os.File
	porter    func() (*gate.Pool, error) // where there are doors
	claim     *claim
	group     *cgroup.Group                // parent of the two below
	programs  *cgroup.Group                // where the program is, and the sockets of its own namespace are made; nil, and group, if others have put it elsewhere
	keepers   *cgroup.Group                // where its host sockets are made
	endpoints atomic.Pointer[endpoint.Set] // never changed, only replaced
	ownNS     *netns.NS
	own       *place
	loopback  bool // ownNS has only a loopback
	// What this process has worked for it.
	intercepted, relayed cputime.Meter
	ports                *ports.Holder // of the host

	changes sync.Mutex // guards what follows once the program runs
	table   *policy.Table
	host    map[string]*place // by Endpoint.Netns
	former  []*place          // what was in host, and sockets may still be there
	closing bool
	// cause is why the container was ended by us; nil if it was not.
	cause atomic.Pointer[string]
	// changed is called with a table and the endpoints that are about to be in
	// force; nil if nobody wants to know.
	changed func(*policy.Table, *endpoint.Set) error

	answering *notify.Places // what answering its calls may take

	enforced *enforcer.Enforcement
	counting sync.Mutex // held while enforced is closed, or read by who does not hold changes
	// uncounted says that enforced is closed; guarded by counting.
	uncounted bool
	engine    *graft.Engine
	relay     *relay.Relay
	gates     gates
	retiring  sync.WaitGroup // gates that have ended and are being closed
	process   *launch.Process
	api       *server
	signals   chan os.Signal
	// ended is called when the last gate has ended with the last program; nil if
	// somebody waits for the program itself.
	ended func()
	// killAll ends all programs of the container.
	killAll func() error
}

// answering is what all containers of this process share.
var answering = notify.NewPool()

func newContainer(spec Spec) *Container {
	c := &Container{spec: spec, host: map[string]*place{}, answering: answering.NewPlaces()}
	c.log = spec.Log.With("container", spec.Name)
	c.decisions = c.log
	c.endpoints.Store(&c.spec.Endpoints)
	return c
}

// Start makes a container and starts its program. On an error nothing is left,
// and the program has not run.
func Start(spec Spec) (*Container, error) {
	if spec.Name == "" {
		spec.Name = fmt.Sprintf("run-%d", os.Getpid())
	}
	c := newContainer(spec)
	c.loopback = c.ownIsNew()
	c.ports = ports.New().Holder(spec.Name) // nobody asks for other containers
	c.gates.trace(c.log.Enabled(context.Background(), slog.LevelInfo))
	c.killAll = func() error { return c.group.Kill() }
	if err := c.start(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Container) start() error {
	c.signals = catchSignals()
	if err := kernel.Require(); err != nil {
		return err
	}
	path, err := launch.Lookup(c.spec.Command[0])
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		c.compile, c.openHost, c.checkHost, c.openOwn, c.takeName, c.makeGroups, c.makePrograms, c.enforce, c.letGoOfPrograms, c.makeEngine, c.guard, c.startRelay, c.listen,
	} {
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

func (c *Container) openHost() error {
	host, err := netns.Current()
	if err != nil {
		return err
	}
	c.host[""] = c.newPlace(host)
	for _, ep := range c.endpoints.Load().All() {
		p, err := c.openPlace(ep)
		if err != nil {
			return err
		}
		c.host[ep.Netns] = p
	}
	return nil
}

// checkHost finds out whether the host has what endpoints and rules promise.
func (c *Container) checkHost() error {
	for _, ep := range c.endpoints.Load().All() {
		ns := c.host[ep.Netns].ns
		if err := checkAddress(ep, ns); err != nil {
			return err
		}
		if err := checkPorts(c.table, ep, ns, func(int, netip.AddrPort) bool { return false }); err != nil {
			return err
		}
	}
	return nil
}

func (c *Container) openOwn() (err error) {
	if c.ownIsNew() {
		c.ownNS, err = netns.New()
	} else {
		c.ownNS, err = netns.Open(c.spec.Netns)
	}
	if err != nil {
		return err
	}
	return c.checkOwn()
}

func (c *Container) checkOwn() error {
	if c.ownNS.Cookie() == c.host[""].Cookie() {
		return fmt.Errorf("network namespace %s is the host's, in which nothing needs grafting; name another, or \"new\"", c.spec.Netns)
	}
	return nil
}

func (c *Container) ownIsNew() bool { return c.spec.Netns == "" || c.spec.Netns == "new" }

// The cgroups of a container.
const (
	keepersGroup  = "keepers"
	programsGroup = "programs"
)

func (c *Container) enforce() error {
	dir, err := c.keepers.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	c.enforced, err = enforcer.Enforce(dir, c.table, c.netnsOf)
	return err
}

// letGoOfPrograms leaves room among the files of who has one container only.
func (c *Container) letGoOfPrograms() error { return c.enforced.LetGoOfPrograms() }

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
	p.cgroup, p.log = c.keepers, c.decisions
	if c.doors == nil {
		p.owner = c.group
	}
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
	ephemeral, err := ephemeralPorts(c.host[""].ns)
	if err != nil {
		return err
	}
	for _, p := range c.host {
		c.settle(p)
	}
	// Sockets of the container's own namespace are not policed.
	c.own = c.newPlace(c.ownNS)
	c.settle(c.own)
	c.own.cgroup = cmp.Or(c.programs, c.group)
	c.engine = graft.New(graft.Config{
		Enforcer:      c.enforced,
		Endpoint:      c.endpointNamed,
		Own:           c.own,
		Know:          c.gates.know,
		OwnIsLoopback: c.loopback,
		Ports:         c.ports,
		Ephemeral:     ephemeral,
		NoSymlinks:    c.spec.Annotated,
		Log:           c.decisions,
	}, c.rules(c.table))
	return nil
}

// guard starts the keeper now, so that a fault of it is an error of Start; and
// because it guards the container against our own death.
func (c *Container) guard() error {
	_, err := c.host[""].Keeper()
	return err
}

// startRelay lets sockets that are born on the host send datagrams to servers on
// the container's own loopback.
func (c *Container) startRelay() (err error) {
	if !c.engine.Born(unix.AF_INET) && !c.engine.Born(unix.AF_INET6) {
		return nil
	}
	c.relay, err = relay.Start(relay.Config{
		Enforcement: c.enforced, Host: c.host[""], Own: c.own, Log: c.decisions, Work: &c.relayed,
	})
	return err
}

// PID is the program's process id.
func (c *Container) PID() int { return c.process.PID }
