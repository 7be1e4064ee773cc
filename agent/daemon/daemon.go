// Package daemon is the node daemon: it registers containers, writes them down, adopts them after a
// restart, hands the listeners of their programs to them, and serves the API and the metrics.
//
// Package container knows what a container is made of. Package daemon needs root and Linux 5.15.
package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tsugiki/tsugiki/agent/grants"
	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/vm"
	"github.com/tsugiki/tsugiki/charge/accounts"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/config"
	"github.com/tsugiki/tsugiki/internal/kernel"
	"github.com/tsugiki/tsugiki/internal/programs"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy/enforcer"
)

// Daemon is the node daemon. It has the containers that others start, and leaves them running when
// it ends.
type Daemon struct {
	runDir string
	config atomic.Pointer[config.Config]
	log    *slog.Logger
	boot   string
	lock   *os.File
	store  *store

	api       *httpapi.Server
	metrics   *http.Server // of the configuration; or nil
	listeners *listeners
	accounts  *accounts.Accounts // nil: CPU time is not charged
	grants    *grants.Table      // nil: containers of pods are as others
	podNotes  podNotes           // of pods that have grants

	memory *memory

	// letGo lets go of the kernel programs that are kept for future containers.
	letGo func() error

	poolMu sync.Mutex // guards pool
	pool   *gate.Pool // of new gates; nil before the first one
	// filterSocket is the socket of listeners. A pool keeps it for the next daemon. It is set
	// before the first listener can come.
	filterSocket *os.File

	contexts     vm.Contexts
	formerGuests []*record // of an earlier daemon, until attachGuests takes them
	pending      pendingGuests

	files  httpapi.FileLimit
	failed chan error // has room for one

	closing chan struct{} // closed by Close
	// attached is closed when all programs that waited for the daemon have been attached.
	attached chan struct{}
	// awaited has the adopted containers without a program, until awaitPrograms takes them.
	awaited []*managed
	// unrestored has the containers that could not be adopted, until restoreAll takes them.
	unrestored []unrestored
	// silence is the time that the start has waited for gates that do not answer.
	silence time.Duration

	traces atomic.Int32  // that are open
	silent atomic.Uint64 // gates that did not answer in time

	// changes serializes registrations and the beginnings of removals. Its holder never waits for a
	// helper or for a container.
	changes  sync.Mutex
	closed   bool           // nothing is registered or removed any more; guarded by changes
	removals sync.WaitGroup // under way

	mu      sync.RWMutex // guards what follows
	byName  map[string]*managed
	byToken map[string]*managed
	leaving map[string]*removal // by name
	orphans []orphan
	ended   []*ended // the last is the latest

	ports *ports.Table
}

// Start takes over the containers that an earlier daemon left running, and begins to serve. It
// leaves a container alone that it cannot take over, and logs that.
func Start(cfg *config.Config, log *slog.Logger) (*Daemon, error) {
	d := &Daemon{
		runDir: cfg.RunDir, log: log,
		byName: map[string]*managed{}, byToken: map[string]*managed{}, leaving: map[string]*removal{}, closing: make(chan struct{}), attached: make(chan struct{}),
		failed: make(chan error, 1), ports: ports.New(),
	}
	d.memory = newMemory()
	d.config.Store(cfg)
	if cfg.Kubernetes.Grants {
		d.grants = grants.New(0)
	}
	if err := d.start(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Daemon) start() (err error) {
	if err := kernel.Require(); err != nil {
		return err
	}
	cgroup.MakeLasting() // containers, and so their groups, outlive a service
	if _, err := cgroup.Own(); err != nil {
		d.log.Warn("containers cannot be grafted here; CPU time is charged", "err", err)
	}
	for _, program := range []string{gate.Program, keeper.Program} {
		if _, err := programs.Find(program); err != nil {
			return err
		}
	}
	if d.files, err = httpapi.CurrentFileLimit(); err != nil {
		return err
	}
	if d.boot, err = bootID(); err != nil {
		return err
	}
	if err := d.takeRunDir(); err != nil {
		return err
	}
	if d.store, err = openStore(d.config.Load().StateDir, d.boot); err != nil {
		return err
	}
	d.podNotes.load(d.store, d.log)
	if err := d.adoptAll(); err != nil {
		return err
	}
	if d.letGo, err = enforcer.Prepare(); err != nil {
		return err
	}
	d.startCharging() // after the calls that wait: by now a killed agent's undo helper has released its locks
	for _, m := range d.all() {
		m.charge()
	}
	if d.listeners, err = d.listenForFilters(); err != nil {
		return err
	}
	d.awaitPrograms()
	d.restoreAll()
	d.attachGuests()
	d.api, err = d.serveAPI()
	return err
}

func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(id)), err
}

// gatePool returns the processes that hold idle gates, and starts them if necessary. If both are
// killed at once, the idle gates die with them and their containers end.
func (d *Daemon) gatePool() (*gate.Pool, error) {
	d.poolMu.Lock()
	defer d.poolMu.Unlock()
	if d.pool != nil && !d.pool.Ended() {
		return d.pool, nil
	}
	if d.pool != nil {
		d.log.Warn("the gate pool and its spare were killed, starting another")
		_ = d.pool.Close() // nobody is at its other end
	}
	var err error
	d.pool, err = gate.StartPool("", nil, gate.IdleAfter, d.filterSocket)
	return d.pool, err
}

func (d *Daemon) insert(m *managed) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byName[m.Name], d.byToken[m.Token] = m, m
}

func (d *Daemon) drop(m *managed) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.byName, m.Name)
	delete(d.byToken, m.Token)
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

// all returns the containers of this moment, in the order of their names.
func (d *Daemon) all() []*managed {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var list []*managed
	for _, m := range d.byName {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *managed) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Reload sets the configuration for later registrations, and attaches and removes guests. The directories
// and the address of metrics stay those of the first configuration.
func (d *Daemon) Reload(cfg *config.Config) {
	d.config.Store(cfg)
	d.followConfig(cfg)
}

// Close stops serving. The containers go on, and wait for the next daemon where they need one.
func (d *Daemon) Close() error {
	var errs []error
	close(d.closing)
	d.memory.stop()
	if d.api != nil {
		errs = append(errs, d.api.Close())
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
	errs = append(errs, d.releaseAll(), d.contexts.Close())
	if d.pool != nil {
		errs = append(errs, d.pool.Close())
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

// guard wraps a listener so that it recovers when it runs out of files.
func (d *Daemon) guard(l net.Listener) net.Listener { return httpapi.Guard(l, d.files, d.log, d.fail) }

// fail reports that the daemon cannot go on.
func (d *Daemon) fail(err error) {
	select {
	case d.failed <- err:
	default: // an earlier error is there
	}
}

// Failed returns a channel for the error with which the daemon cannot go on. The caller then closes
// the daemon.
func (d *Daemon) Failed() <-chan error { return d.failed }
