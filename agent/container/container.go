// Package container assembles one container out of namespaces, cgroups, kernel programs, keepers,
// the engine and its front ends. It adopts a container from an earlier process, changes its
// endpoints while it runs, and takes all of it down again.
//
// It does not know whether the daemon or tsugiki run has the container (see Owner), nor how others
// speak to it.
//
// It needs root (see kernel.Require) and Linux 5.15.
//
// # What is left when
//
// Everything that outlives a process by itself is in one cgroup per container. Its path is saved
// before the cgroup is made (see Owner.Save). The keeper holds the file that kills this cgroup. It
// uses the file as soon as its supervisor is gone, so that nothing runs on without a supervisor.
// The next start removes the empty cgroup. Kernel programs go with the cgroup and its last socket.
// Where the container outlives its supervisor, no keeper holds that file.
package container

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/intercept/notify"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/enforcer"
	"github.com/tsugiki/tsugiki/relay"
)

// Spec says who a container is and what it is given at first. It never changes.
type Spec struct {
	Name   string
	RunDir string
	// Mark makes the name of the container's cgroup unique where containers' names are not. It may
	// be empty.
	Mark string
	// Netns is the container's own network namespace, for messages; empty if it has no name.
	Netns string
	// LoopbackOnly says that the container's own namespace has only a loopback.
	LoopbackOnly bool
	// Outlives says that the container outlives this process: its gates wait at their adoption sockets. If
	// it is false, gates and keepers end the container when this process ends.
	Outlives bool
	// Programs asks for a cgroup for the container's programs, if nobody else has put them in one.
	Programs bool
	// The Endpoints of the rules are all endpoints of the container, whether a rule names them or
	// not.
	rules.Rules
	// Annotated says that the rules come from a container's annotations. The author of annotations
	// may also write in the folders of the container's unix endpoints.
	Annotated bool
	Granted   bool          // by a grant; then servers whose rule is withdrawn take nobody
	User      *launch.User  // nil: who we are
	Ports     *ports.Holder // of the host
	Log       *slog.Logger
	Decisions *slog.Logger // takes decisions about calls, below the level of a warning
}

// Owner is the process that has a container: the daemon, or tsugiki run.
type Owner interface {
	// Reserve reserves ports of the host in place of those that the container had reserved. If
	// another container has reserved one, Reserve returns a *ports.ReservedError and changes
	// nothing.
	Reserve(list []ports.Reservation) error
	// Save stores the state that is about to be in force.
	Save(s State) error
	// PodNetwork returns the cookie of the network namespace of a pod of the host, if the pod has a
	// grafted container whose programs run.
	PodNetwork(uid string) (cookie uint64, known bool)
	// Pool returns the process that holds the idle gates of a container that outlives us.
	Pool() (*gate.Pool, error)
	// Entered is called when the first program is in the container, before it runs.
	Entered()
	// Ended is called when the last gate of a container that outlives us has ended with the
	// last program.
	Ended()
}

// Container is a container with all that belongs to it.
type Container struct {
	spec  Spec
	owner Owner
	log   *slog.Logger // says which container

	endpoints atomic.Pointer[endpoint.Set] // never changed, only replaced
	given     atomic.Pointer[given]        // likewise
	shown     atomic.Pointer[Shown]
	// translated has the last counters of the translation; nil before there is one.
	translated atomic.Pointer[api.TranslationStats]
	// cause says why this process ended the container; nil if it did not.
	cause atomic.Pointer[string]

	changes sync.Mutex // once the program runs: guards what follows, except fields with locks of their own
	closing bool
	unsaved bool // what is in force is not what the owner has saved; see ErrUnsaved
	// unwithdrawn are endpoints that have gone, and that sockets may still have that were bound by their names.
	unwithdrawn []*endpoint.Endpoint
	state       State
	kernelState
	parts
	program
}

// kernelState is the part of a container that is in the kernel.
type kernelState struct {
	group    *cgroup.Group // parent of the two below
	programs *cgroup.Group // where the program is, and the sockets of its own namespace are made; nil, and group, if others have put it elsewhere
	keepers  *cgroup.Group // where its host sockets are made
	ownNS    *netns.NS
	table    *policy.Table
	began    *policy.Table     // of the Spec, for which filters and gates are made
	host     map[string]*place // by Endpoint.Netns
	former   []*place          // places that were in host; sockets may still be in them
	enforced *enforcer.Enforcement
	counting sync.Mutex // held to close enforced, and to read it without changes
	// uncounted says that enforced is closed; guarded by counting.
	uncounted bool
}

// parts are the workers of a container in this process, and its helpers.
type parts struct {
	adoptDir    *os.File      // directory of its gates' sockets; nil unless it outlives us
	own         *place        // makes sockets in its own namespace
	answering   *notify.Slots // limits how many calls are answered at once
	tracing     tracing
	engine      *graft.Engine
	relay       *relay.Relay
	translation *translation // nil: there is none
	gates       gates
	adopted     []*gate.Gate   // whose calls nobody has answered yet
	retiring    sync.WaitGroup // gates that have ended and are being closed
	// CPU time that this process has used for the container.
	intercepted, relayed cputime.Meter
}

// program is the state of a container's programs.
type program struct {
	first     atomic.Pointer[Process] // nil before there is one
	network   atomic.Uint64           // cookie of its network namespace; 0 before it is known
	begun     atomic.Bool             // a first program has entered since we have the container
	attaching atomic.Int32            // programs
	late      atomic.Bool             // it is not taken over yet; a gate does not answer, or something else has failed
}

// answering is the pool that all containers of this process share to answer calls.
var answering = notify.NewPool()

// New returns a container without any resources.
func New(spec Spec, owner Owner) *Container {
	c := &Container{spec: spec, owner: owner, log: spec.Log.With("container", spec.Name)}
	if spec.Decisions == nil {
		c.spec.Decisions = c.log
	}
	c.host, c.answering = map[string]*place{}, answering.NewSlots()
	c.endpoints.Store(&c.spec.Endpoints)
	c.given.Store(begin(&c.spec.Rules))
	return c
}

// Prepare checks whether the host has what the Spec asks for, and reserves the container's ports.
func (c *Container) Prepare() error {
	return inOrder(c.compile, c.openHost, c.reserve, c.checkHost)
}

// Make makes all resources that the container needs before it has a program. It comes after
// Prepare. Before Make makes anything that outlives us, it has the owner save the State.
func (c *Container) Make() error {
	err := inOrder(c.save, c.openAdoptSockets, c.makeGroups, c.makePrograms, c.enforce)
	if err == nil {
		c.refresh()
	}
	return err
}

// Begin starts the container's workers in this process. It comes after Make, and before the caller
// of Use starts the program.
func (c *Container) Begin() error {
	return inOrder(c.enforced.LetGoOfPrograms, c.makeEngine, c.guard, c.reachLoopback, c.serveNames)
}

func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// reserve reserves the ports that the rules name.
func (c *Container) reserve() error { return c.owner.Reserve(c.reservations(c.table)) }

// save has the owner save the state for the first time.
func (c *Container) save() error {
	own, err := cgroup.Own()
	if err != nil {
		return err
	}
	c.state.Cgroup = filepath.Join(own, c.groupName())
	return c.announce(c.table, c.endpoints.Load())
}

func (c *Container) compile() (err error) {
	g := c.given.Load()
	c.table, err = policy.NewTable(g.ingress, g.egress, g.names...)
	if c.began = c.table; err == nil {
		c.state.Untrapped = c.needsTraps(c.table, c.endpoints.Load(), c.sourcesFor()) == nil
		err = c.checkTranslation()
	}
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

// checkHost checks whether the host has the addresses and ports of endpoints and rules.
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
	if c.enforced, err = enforcer.Enforce(dir, c.table, c.netnsOf); err != nil {
		return err
	}
	return c.admitPods()
}

func (c *Container) endpointNamed(name string) *endpoint.Endpoint {
	ep, err := c.endpoints.Load().Get(name)
	if err != nil {
		return nil
	}
	return ep
}

// endpointNumbered returns the endpoint of a name by which sockets with a number were bound; nil if it has gone, or has
// another definition by now.
func (c *Container) endpointNumbered(name string, number uint32) *endpoint.Endpoint {
	if slices.ContainsFunc(c.state.Moved, func(m MovedName) bool { return m.Name == name && number <= m.Last }) {
		return nil
	}
	return c.endpointNamed(name)
}

// The caller of netnsOf and of the functions below holds c.changes, or nobody else can have c yet.
func (c *Container) netnsOf(ep *endpoint.Endpoint) uint64 { return c.host[ep.Netns].Cookie() }

func (c *Container) newPlace(ns *netns.NS) *place { return &place{ns: ns, user: c.spec.User} }

// settle sets the cgroup, the log and the owner of a place's keeper.
func (c *Container) settle(p *place) {
	p.cgroup, p.log = c.keepers, c.spec.Decisions
	if !c.spec.Outlives {
		p.owner = c.group
	}
}

// openPlace returns the place of an endpoint. The place may be a new one that is not in c.host.
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

// rules returns the engine's rules for a table.
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
	ephemeral, kept, err := hostPorts(c.host[""].ns)
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
	translation, err := c.openTranslation()
	if err != nil {
		return err
	}
	c.engine = graft.New(graft.Config{
		Enforcer:      c.enforced,
		Began:         c.began,
		Endpoint:      c.endpointNamed,
		Own:           c.own,
		Know:          c.gates.know,
		Serves:        c.gates.serves,
		OwnIsLoopback: c.hasOnlyLoopback(),
		Untrapped:     c.state.Untrapped,
		Ports:         c.spec.Ports,
		Ephemeral:     ephemeral,
		Kept:          kept,
		Translation:   translation,
		Work:          &c.intercepted,
		NoSymlinks:    c.spec.Annotated,
		Log:           c.spec.Decisions,
	}, c.rules(c.table))
	return nil
}

// guard starts the keeper early, so that Start reports its errors and the container is protected if
// the supervisor dies.
func (c *Container) guard() error {
	_, err := c.host[""].Keeper()
	return err
}

// reachLoopback lets sockets that are created on the host first reach the container's own loopback:
// the loopback is on the host too, or a relay carries datagrams to it.
func (c *Container) reachLoopback() (err error) {
	if err := c.enforced.UseMark(c.ownNS.Cookie()); err != nil {
		return err
	}
	defer c.network.Store(c.ownNS.Cookie()) // not before its packets have the mark
	if c.state.Untrapped {
		err := c.enforced.UseLoopback(c.ownNS.Cookie())
		c.setTracing(func(t *tracing) { t.possible = err == nil })
		return err
	}
	if !c.engine.HostFirst(unix.AF_INET) && !c.engine.HostFirst(unix.AF_INET6) {
		return nil
	}
	c.relay, err = relay.Start(relay.Config{
		Enforcement: c.enforced, Host: c.host[""], Own: c.own, Log: c.spec.Decisions, Work: &c.relayed,
	})
	return err
}

// First is the first program; nil before there is one.
func (c *Container) First() *Process { return c.first.Load() }

// Cause returns why this process ended the container; empty if it did not.
func (c *Container) Cause() string {
	if cause := c.cause.Load(); cause != nil {
		return *cause
	}
	return ""
}

// GateCount returns the number of gates, including those that wait for Resume.
func (c *Container) GateCount() int {
	c.changes.Lock()
	defer c.changes.Unlock()
	return c.gates.count() + len(c.adopted)
}

// SocketsID returns the number of the cgroup in which the host sockets are made.
func (c *Container) SocketsID() uint64 { return c.enforced.Cgroup() }

// Clocks returns the meters of the CPU time that this process uses for the container: to answer
// calls, and to carry datagrams.
func (c *Container) Clocks() (intercepted, relayed *cputime.Meter) { return &c.intercepted, &c.relayed }

// Ports are the container's ports of the host.
func (c *Container) Ports() *ports.Holder { return c.spec.Ports }

// HostNamespaces are the network namespaces of the host's side.
func (c *Container) HostNamespaces() []*netns.NS {
	var list []*netns.NS
	for _, p := range c.places() {
		list = append(list, p.ns)
	}
	return list
}
