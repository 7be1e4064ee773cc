package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/charge/accounts"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/internal/config"
	"github.com/tsugiki/tsugiki/internal/kernel"
	"github.com/tsugiki/tsugiki/internal/programs"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy/enforcer"
)

// attachPatience is how long a container may be registered without a program.
const attachPatience = 2 * time.Minute

// adoptedPatience is how long a container may be without a program that was registered
// with a daemon that has ended since: who was about to start it may have been told that
// there is none, and could not take it back.
const adoptedPatience = 10 * time.Second

// endPatience is how long a container may be ending that is started again.
const endPatience = 2 * time.Second

// Daemon is the node daemon: it has containers that others start, and leaves them
// running when it ends.
type Daemon struct {
	runDir string
	config atomic.Pointer[config.Config]
	log    *slog.Logger
	boot   string
	lock   *os.File
	store  *store

	api       *server
	metrics   *http.Server // of the configuration; or nil
	listeners *listeners
	accounts  *accounts.Accounts // nil: CPU time is not charged

	// tidy is for when no container has been started for tidyAfter, see rest.
	tidy    *time.Timer
	resting atomic.Bool

	// letGo lets go of the kernel programs that containers to come get.
	letGo func() error

	porterMu sync.Mutex // guards porter
	porter   *gate.Pool // of new gates; nil before the first one

	files  fileLimit
	failed chan error // has room for one

	closing chan struct{} // closed by Close
	// silence is how long gates that do not answer were waited for at the start.
	silence time.Duration

	traces atomic.Int32  // that are open
	silent atomic.Uint64 // gates that did not answer in time

	// changes makes registrations, and beginnings of removals, one after another. While it is
	// held, nothing waits for a helper or for a container.
	changes  sync.Mutex
	closed   bool           // nothing is registered or removed any more; guarded by changes
	removals sync.WaitGroup // under way

	mu      sync.RWMutex // guards what follows
	byName  map[string]*managed
	byToken map[string]*managed
	leaving map[string]*removal // by name
	causes  []ended             // the last is the latest

	ports *ports.Table
}

// tidyAfter is longer than what lies between the starts of many containers: to give
// memory back takes some milliseconds of CPU time.
const tidyAfter = 500 * time.Millisecond

// restGrowth is by how many percent the heap may grow before it is collected while no
// container is started, unless GOGC says (see runtime). Starting makes much garbage, and
// to collect it more often takes CPU time: then it is startGrowth, Go's own.
const restGrowth, startGrowth = 50, 100

// rest gives back the memory that starting containers took.
func (d *Daemon) rest() {
	if os.Getenv("GOGC") == "" && !d.resting.Swap(true) {
		debug.SetGCPercent(restGrowth)
	}
	debug.FreeOSMemory()
}

// stir is for who begins to start a container.
func (d *Daemon) stir() {
	if d.resting.Swap(false) {
		debug.SetGCPercent(startGrowth)
	}
	d.tidy.Reset(tidyAfter)
}

// StartDaemon takes over what an earlier daemon left running, and begins to serve.
// A container that cannot be taken over is left alone, and said so.
func StartDaemon(cfg *config.Config, log *slog.Logger) (*Daemon, error) {
	d := &Daemon{
		runDir: cfg.RunDir, log: log,
		byName: map[string]*managed{}, byToken: map[string]*managed{}, leaving: map[string]*removal{}, closing: make(chan struct{}),
		failed: make(chan error, 1), ports: ports.New(),
	}
	d.tidy = time.AfterFunc(tidyAfter, d.rest)
	d.config.Store(cfg)
	if err := d.start(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Daemon) start() (err error) {
	if err := kernel.Require(); err != nil {
		return err
	}
	for _, program := range []string{gate.Program, keeper.Program} {
		if _, err := programs.Find(program); err != nil {
			return err
		}
	}
	if d.files, err = currentFileLimit(); err != nil {
		return err
	}
	if d.boot, err = bootID(); err != nil {
		return err
	}
	if err := d.takeRunDir(); err != nil {
		return err
	}
	if d.store, err = openStore(d.config.Load().StateDir); err != nil {
		return err
	}
	if err := d.adoptAll(); err != nil {
		return err
	}
	if d.letGo, err = enforcer.Prepare(); err != nil {
		return err
	}
	d.startCharging() // calls that wait come first: what a killed agent held, its undo helper has let go
	for _, m := range d.all() {
		m.charge()
	}
	if d.listeners, err = d.listenForFilters(); err != nil {
		return err
	}
	d.api, err = d.serveAPI()
	return err
}

func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(id)), err
}

// keptBy is who keeps gates while they have nothing to do. One that was killed has taken
// those with it that had nothing to do, and their containers end.
func (d *Daemon) keptBy() (*gate.Pool, error) {
	d.porterMu.Lock()
	defer d.porterMu.Unlock()
	if d.porter != nil && !d.porter.Ended() {
		return d.porter, nil
	}
	if d.porter != nil {
		d.log.Warn("the gate pool was killed, starting another")
		_ = d.porter.Close() // nobody is at its other end
	}
	var err error
	d.porter, err = gate.StartPool("", nil, gate.IdleAfter)
	return d.porter, err
}

// adoptAll takes over the containers of an earlier daemon.
func (d *Daemon) adoptAll() error {
	records, err := d.store.all()
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Boot != d.boot {
			d.log.Info("container ended with the machine", "container", r.Name)
			if err := d.store.delete(r.Name); err != nil {
				return err
			}
			continue
		}
		if err := d.adopt(r); err != nil {
			d.log.Error("container not taken over; it runs on without an agent", "container", r.Name, "err", err)
		}
	}
	d.findPorts()
	// Not before: while a helper of another container is being started, it has a
	// copy of every file that we have, and so of what a program is about to close.
	for _, m := range d.all() {
		if m.late.Load() {
			go d.adoptLate(m)
		} else {
			m.resume()
		}
	}
	return nil
}

func (d *Daemon) adopt(r *record) error {
	rules, err := rules.Texts{Mode: r.Mode, Endpoints: r.Given, Ingress: r.Ingress, Egress: r.Egress}.Parse()
	if err != nil {
		return err
	}
	m := d.newManaged(r, rules)
	d.insert(m)
	patience := max(adoptPatience-d.silence, adoptLeast)
	lives, err := m.adopt(patience)
	switch {
	case !lives:
		// Ended, or half made or half removed when the earlier daemon was killed.
		m.log.Debug("nothing to take over", "err", err)
		d.end(m)
		return nil
	case errors.Is(err, gate.ErrSilent):
		d.log.Warn("a gate does not answer, somebody may have stopped it; its container is taken over when it goes on", "container", r.Name)
		d.silence += patience
		m.late.Store(true)
		m.refresh()
		return nil
	case err != nil:
		d.drop(m)
		return errors.Join(err, m.release())
	}
	m.refresh()
	if m.record.PID == 0 {
		d.awaitProgram(m, adoptedPatience)
	}
	d.log.Info("container taken over", "container", r.Name, "gates", len(m.adopted))
	return nil
}

func (d *Daemon) insert(m *managed) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byName[m.spec.Name], d.byToken[m.token] = m, m
}

func (d *Daemon) drop(m *managed) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.byName, m.spec.Name)
	delete(d.byToken, m.token)
}

func (d *Daemon) find(name string) *managed {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.byName[name]
}

func (d *Daemon) findToken(token string) *managed {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.byToken[token]
}

// all are the containers at this moment, by name.
func (d *Daemon) all() []*managed {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var list []*managed
	for _, m := range d.byName {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *managed) int { return strings.Compare(a.spec.Name, b.spec.Name) })
	return list
}

// given is what a container is given, and its name.
type given struct {
	texts     rules.Texts
	found     bool
	name      string
	annotated bool // by its annotations
}

// rulesFor finds out what a container is given. The configuration's rules are for the
// name that its engine gives it: no annotation takes another's.
func (d *Daemon) rulesFor(r api.Registration) (given, error) {
	if own := r.Rules; own != nil {
		texts := rules.Texts{Mode: own.Mode, Endpoints: own.Endpoints, Ingress: own.Ingress, Egress: own.Egress}
		return given{texts: texts, found: true, name: r.Name}, nil
	}
	if len(r.Image) > 0 {
		d.log.Warn("annotations of the image are not heard: only those count that are given to who starts the container",
			"container", r.Name, "engine", r.Engine, "annotations", strings.Join(r.Image, ","))
	}
	h, err := rules.Hear(d.config.Load(), &r)
	for _, path := range h.Paths {
		if err == nil {
			err = rules.CheckPath(path)
		}
	}
	if h.Rules || err != nil {
		return given{texts: h.Texts, found: h.Rules, name: h.Name, annotated: true}, err
	}
	texts, found := rules.ConfigTexts(d.config.Load(), r.Name)
	return given{texts: texts, found: found, name: h.Name}, nil
}

// register makes a container that has no program yet. On an error nothing is left. It does not
// begin, or is undone, if it is abandoned by then: nobody would start its program.
func (d *Daemon) register(ctx context.Context, r api.Registration) (*managed, error) {
	g, err := d.rulesFor(r)
	if err != nil {
		return nil, err
	}
	if !g.found {
		return nil, nil // whatever its name is
	}
	r.Name = g.name
	if err := api.CheckName(r.Name); err != nil {
		return nil, fmt.Errorf("%w: %w", rules.ErrRequest, err)
	}
	parsed, err := g.texts.Parse()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", rules.ErrRequest, err)
	}
	if err := d.lockName(ctx, r.Name, r.ID); err != nil {
		return nil, err
	}
	defer d.changes.Unlock()
	d.stir()
	rec := d.newRecord(r, parsed)
	rec.Annotated = g.annotated
	m := d.newManaged(rec, parsed)
	if err := m.create(); err != nil {
		return nil, errors.Join(err, d.forget(m))
	}
	if abandoned(ctx) {
		return nil, errors.Join(errAbandoned, d.forget(m))
	}
	m.refresh()
	d.insert(m)
	d.awaitProgram(m, attachPatience)
	d.log.Info("container registered", "container", r.Name, "id", r.ID)
	if len(r.Dropped) > 0 {
		d.log.Info("container loses capabilities with which its programs could get around its rules",
			"container", r.Name, "capabilities", strings.Join(r.Dropped, ","))
	}
	return m, nil
}

func (d *Daemon) newRecord(r api.Registration, rules rules.Rules) *record {
	var token [16]byte
	rand.Read(token[:])
	rec := &record{
		ID: r.ID, Name: r.Name, Token: hex.EncodeToString(token[:]), Boot: d.boot, Created: time.Now().UTC(),
		UID: r.UID, GID: r.GID, LoopbackOnly: r.LoopbackOnly, Programs: r.Programs,
		Mode: rules.Mode.String(), Given: lines(&rules.Endpoints),
	}
	for _, i := range rules.Ingress {
		rec.Ingress = append(rec.Ingress, i.String())
	}
	for _, e := range rules.Egress {
		rec.Egress = append(rec.Egress, e.String())
	}
	return rec
}

// Reload makes a configuration the one that containers are registered by from now
// on. The directories, and where metrics are, stay those of the first.
func (d *Daemon) Reload(cfg *config.Config) { d.config.Store(cfg) }

// Close stops to serve. The containers go on, and wait for the next daemon where
// they need one.
func (d *Daemon) Close() error {
	var errs []error
	close(d.closing)
	d.tidy.Stop()
	if d.api != nil {
		errs = append(errs, d.api.close())
	}
	if d.metrics != nil {
		errs = append(errs, d.metrics.Close())
	}
	if d.listeners != nil {
		errs = append(errs, d.listeners.close())
	}
	if d.accounts != nil {
		errs = append(errs, d.accounts.Close())
	}
	d.changes.Lock()
	d.closed = true
	d.changes.Unlock()
	d.removals.Wait()
	errs = append(errs, d.releaseAll())
	if d.porter != nil {
		errs = append(errs, d.porter.Close())
	}
	if d.letGo != nil {
		errs = append(errs, d.letGo())
	}
	if d.store != nil {
		errs = append(errs, d.store.close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
	}
	return errors.Join(errs...)
}
