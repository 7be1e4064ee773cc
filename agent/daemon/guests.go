package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/agent/vm"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/charge/accounts"
	"github.com/tsugiki/tsugiki/internal/config"
	"github.com/tsugiki/tsugiki/internal/cputime"
)

// # Virtual machines
//
// A guest is a container of the daemon that has a vm.Machine in the place of programs. Its connections are
// this process's, so it does not outlive the daemon. Its record says how to attach it anew; if its VMM has a
// device, the next daemon goes on with that. Guests of the configuration are attached by the configuration
// alone.

// sourceGuest is the CPU time that moves a guest's bytes.
const sourceGuest = "guest"

// attachment is the part of a container that is a guest's.
type attachment struct {
	mu      sync.Mutex // guards what follows
	machine *vm.Machine
	served  chan struct{} // closed when nothing of the machine is served any more
	ended   bool          // no machine is attached any more
	clocks  []*bootClock  // of the VMM that is connected

	vmm atomic.Int64 // pid; 0: none is known
}

// bootClock is a clock that stops for good when its VMM ends: another VMM may be charged elsewhere.
type bootClock struct {
	accounts.Clock
	mu    sync.Mutex // guards what follows
	ended bool
	last  time.Duration
}

// Elapsed implements accounts.Clock. After the end, the account forgets it (os.ErrProcessDone).
func (c *bootClock) Elapsed() (time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return c.last, os.ErrProcessDone
	}
	now, err := c.Clock.Elapsed()
	if err == nil {
		c.last = now
	}
	return now, err
}

func (c *bootClock) end() {
	_, _ = c.Elapsed() // without an answer, the last one stays
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}

// isGuest tells whether the container is a virtual machine.
func (m *managed) isGuest() bool { return m.VSock != "" }

// errConfigured says why a guest is not removed.
var errConfigured = fmt.Errorf("%w: the configuration has the virtual machine; take it out of the file, and reload the agent", container.ErrExists)

// placeOf reads where a guest's VMM is.
func placeOf(text string) (vm.Place, error) {
	place, err := vm.Parse(text, 0)
	if path := place.Path(); err == nil && path != "" && !filepath.IsAbs(path) {
		err = fmt.Errorf("%w: the path %s is not absolute", vm.ErrPlace, path)
	}
	return place, err
}

// CheckGuests checks the guests of a configuration, which config.Load does not check. Its error joins a
// config.Error for each wrong one.
func CheckGuests(cfg *config.Config) error {
	var errs []error
	lines := map[string]int{}
	for _, g := range cfg.Guests {
		_, err := placeOf(g.VSock)
		_, found := rules.OfConfig(cfg, g.Name)
		switch {
		case err != nil:
		case api.CheckName(g.Name) != nil:
			err = api.CheckName(g.Name)
		case lines[g.Name] != 0:
			err = fmt.Errorf("virtual machine %s is there twice, first on line %d", g.Name, lines[g.Name])
		case !found:
			err = fmt.Errorf("virtual machine %s has no rules; write a [[container]] whose match covers the name", g.Name)
		}
		lines[g.Name] = g.Line
		if err != nil {
			errs = append(errs, &config.Error{File: cfg.Path, Line: g.Line, Err: err})
		}
	}
	return errors.Join(errs...)
}

// attachGuest makes a guest's container, and the sockets for its VMM. On an error nothing is left.
func (d *Daemon) attachGuest(ctx context.Context, g api.Guest, configured bool) (*managed, error) {
	place, err := placeOf(g.VSock)
	if err == nil {
		err = api.CheckName(g.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", rules.ErrRequest, err)
	}
	texts := g.Rules
	if texts == nil {
		t, found := rules.OfConfig(d.config.Load(), g.Name)
		if !found {
			return nil, fmt.Errorf("%w: virtual machine %s has no rules; write them, or a [[container]] whose match covers the name", rules.ErrRequest, g.Name)
		}
		texts = &t
	}
	given, err := rules.Parse(*texts)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", rules.ErrRequest, err)
	}
	if err := haveResolvers(given.Translation); err != nil {
		return nil, err
	}
	if err := place.Check(); err != nil { // before all the work
		return nil, err
	}
	m, err := d.registerGuest(ctx, g, given, configured)
	if err != nil {
		return nil, err
	}
	if err = m.BeginGuest(); err == nil {
		err = m.attachMachine(place)
	}
	if err != nil {
		rerr := d.remove(m, "virtual machine cannot be attached, and is removed")
		if errors.Is(rerr, httpapi.ErrNoContainer) {
			rerr = nil // somebody else removes it
		}
		return nil, errors.Join(err, rerr)
	}
	return m, nil
}

// registerGuest makes a guest's container.
func (d *Daemon) registerGuest(ctx context.Context, g api.Guest, given rules.Rules, configured bool) (*managed, error) {
	var id, token [16]byte
	rand.Read(id[:])
	rand.Read(token[:])
	t := given.Texts()
	identity := identity{
		ID: hex.EncodeToString(id[:]), Name: g.Name, Token: hex.EncodeToString(token[:]), Boot: d.boot, Created: time.Now().UTC(),
		LoopbackOnly: true, Programs: true, VSock: g.VSock, Configured: configured,
		Mode: t.Mode, Endpoints: t.Endpoints, Ingress: t.Ingress, Egress: t.Egress, NameRules: t.NameRules, Translate: t.Translate,
	}
	if err := d.lockName(ctx, g.Name, identity.ID); err != nil {
		return nil, err
	}
	defer d.changes.Unlock()
	if err := d.forgetOrphan(g.Name); err != nil {
		return nil, err
	}
	m := d.newManaged(identity, given)
	err := m.Prepare()
	if err == nil {
		err = m.Make()
	}
	if err != nil {
		return nil, errors.Join(err, d.forget(m))
	}
	d.insert(m)
	d.log.Info("virtual machine registered", "container", g.Name, "vsock", g.VSock)
	return m, nil
}

// attachMachine makes the sockets for a guest's VMM, and serves them.
func (m *managed) attachMachine(place vm.Place) error {
	a := &m.attachment
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return os.ErrClosed
	}
	machine, err := vm.Attach(m.Container, place, &m.d.contexts, m.d.holderOf(m.Name), m.setVMM)
	if err != nil {
		return err
	}
	a.machine, a.served = machine, make(chan struct{})
	go func() {
		err := machine.Serve()
		close(a.served)
		if err != nil {
			m.log.Error("virtual machine cannot be served", "err", err)
			m.d.end(m)
		}
	}()
	return nil
}

func (d *Daemon) holderOf(name string) string { return vm.HolderIn(d.runDir, name) }

// endMachine ends what serves a guest; leave says that the next daemon goes on with it.
func (m *managed) endMachine(leave bool) {
	a := &m.attachment
	a.mu.Lock()
	a.ended = true
	machine, served := a.machine, a.served
	a.mu.Unlock()
	if machine == nil {
		return
	}
	if leave {
		machine.Leave()
	} else {
		machine.End()
	}
	<-served
}

// setVMM notes a guest's VMM, and charges the VMM's cgroup; 0 says that it has ended.
func (m *managed) setVMM(pid int) {
	a := &m.attachment
	a.vmm.Store(int64(pid))
	a.mu.Lock() // the machine is there
	machine := a.machine
	former := a.clocks
	a.clocks = nil
	a.mu.Unlock()
	for _, c := range former {
		c.end()
	}
	if pid == 0 || machine == nil || m.d.accounts == nil {
		return
	}
	intercepted, relayed := m.Clocks()
	sources := map[string]accounts.Clock{}
	var clocks []*bootClock
	for source, clock := range map[string]accounts.Clock{
		sourceGuest: machine.Work(), sourceIntercept: intercepted, sourceRelay: relayed, sourceGate: cputime.Group(m.SocketsGroup()),
	} {
		c := &bootClock{Clock: clock}
		clocks = append(clocks, c)
		sources[source] = c
	}
	err := m.d.accounts.Open(accounts.Container{Name: m.Name, ID: m.ID, PID: pid, Sockets: m.SocketsGroup(), Sources: sources})
	if err != nil {
		m.log.Warn("CPU time is not charged", "pid", pid, "err", err)
		return
	}
	a.mu.Lock()
	a.clocks = clocks
	a.mu.Unlock()
}

// guest describes a guest.
func (m *managed) guest() api.Guest {
	return api.Guest{Name: m.Name, VSock: m.VSock, Configured: m.Configured, State: m.guestState()}
}

func (m *managed) guestState() *api.GuestState {
	a := &m.attachment
	a.mu.Lock()
	machine := a.machine
	a.mu.Unlock()
	if machine == nil {
		return &api.GuestState{}
	}
	c, boots, faults := machine.Counts()
	return &api.GuestState{
		VMM: int(a.vmm.Load()), Boots: boots, Faults: faults,
		Open: c.Open.Load(), Opened: c.Opened.Load(), Dialed: c.Dialed.Load(), Resets: c.Resets.Load(),
		FromGuest: c.FromGuest.Load(), ToGuest: c.ToGuest.Load(),
	}
}

// forgetFormer removes what a killed daemon has left of a guest. Those that are not the configuration's are
// attached anew.
func (d *Daemon) forgetFormer(r *record) error {
	if err := container.ForgetState(d.runDir, r.Name, r.State); err != nil {
		return err
	}
	if r.Configured {
		if !d.hasGuest(r.Name) {
			if err := vm.Forget(d.holderOf(r.Name)); err != nil {
				return err
			}
		}
		return d.store.delete(r.Name)
	}
	d.formerGuests = append(d.formerGuests, r)
	return nil
}

// hasGuest tells whether the configuration has a guest.
func (d *Daemon) hasGuest(name string) bool {
	return slices.ContainsFunc(d.config.Load().Guests, func(g config.Guest) bool { return g.Name == name })
}

// attachGuests attaches the guests of a former daemon and of the configuration.
func (d *Daemon) attachGuests() {
	for _, r := range d.formerGuests {
		given := r.rules()
		d.attachPatiently(&pendingGuest{guest: api.Guest{Name: r.Name, VSock: r.VSock, Rules: &given}, former: r})
	}
	d.formerGuests = nil
	d.followConfig(d.config.Load())
}

// followConfig attaches the guests that are new in a configuration, and removes those that are gone.
func (d *Daemon) followConfig(cfg *config.Config) {
	wanted := map[string]string{}
	for _, g := range cfg.Guests {
		wanted[g.Name] = g.VSock
	}
	for _, name := range d.pending.cancelConfigured() {
		if _, is := wanted[name]; is {
			continue
		}
		if err := vm.Forget(d.holderOf(name)); err != nil {
			d.log.Error("end the device of a virtual machine", "container", name, "err", err)
		}
	}
	for _, m := range d.all() {
		if m.Configured && wanted[m.Name] != m.VSock {
			if err := d.remove(m, "virtual machine is not in the configuration any more"); err != nil {
				d.log.Error("remove virtual machine", "container", m.Name, "err", err)
			}
		}
	}
	for _, g := range cfg.Guests {
		if m := d.find(g.Name); m != nil && m.Configured {
			continue
		}
		d.attachPatiently(&pendingGuest{guest: api.Guest{Name: g.Name, VSock: g.VSock}})
	}
}

// guestRoutes returns the routes of docs/API.md for guests.
func (d *Daemon) guestRoutes() httpapi.Routes {
	return httpapi.Routes{
		"POST /v1/guests":               d.handleAttach,
		"GET /v1/guests":                d.handleGuests,
		"GET /v1/guests/{container}":    d.handleGuest,
		"DELETE /v1/guests/{container}": d.handleRemove,
	}
}

func (d *Daemon) handleAttach(w http.ResponseWriter, r *http.Request) {
	var g api.Guest
	err := httpapi.ReadObject(http.MaxBytesReader(w, r.Body, registrationMax), &g)
	if err == nil && (g.Configured || g.State != nil) {
		err = fmt.Errorf("%w: configured and state are of answers alone", rules.ErrRequest)
	}
	var m *managed
	if err == nil {
		if m, err = d.attachGuest(r.Context(), g, false); err == nil {
			d.pending.cancel(g.Name) // it has taken that one's place
		}
	}
	if err != nil {
		httpapi.Refuse(w, err)
		return
	}
	httpapi.Answer(w, http.StatusCreated, m.guest())
}

func (d *Daemon) handleGuests(w http.ResponseWriter, _ *http.Request) {
	list := []api.Guest{}
	for _, m := range d.all() {
		if m.isGuest() {
			list = append(list, m.guest())
		}
	}
	httpapi.Answer(w, http.StatusOK, list)
}

func (d *Daemon) handleGuest(w http.ResponseWriter, r *http.Request) {
	m := d.find(r.PathValue("container"))
	if m == nil || !m.isGuest() {
		httpapi.Refuse(w, httpapi.ErrNoContainer)
		return
	}
	httpapi.Answer(w, http.StatusOK, m.guest())
}

// isAbout tells whether a request is about guests alone.
func isAbout(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/v1/guests/") }
