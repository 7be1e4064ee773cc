package container

import (
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/intercept/notify"
)

// words are the words by which gates and shims learn a hint.
var words = [graft.Hints]gate.Word{
	graft.OwnSockets:     gate.OwnSockets,
	graft.Services:       gate.Services,
	graft.BoundClients:   gate.BoundClients,
	graft.AFGraftSockets: gate.AFGraftSockets,
	graft.Expects:        gate.Expects,
}

// gates are the gates of a container: one for the filter of its first program, and one for each
// program that an engine has executed in the container since.
type gates struct {
	known [graft.Hints]atomic.Bool

	// telling is held while gates are told something. A stopped gate delays the caller for package
	// gate's patience, and learns it when it goes on. telling is taken before mu.
	telling sync.Mutex
	traced  bool   // guarded by telling, as the next
	served  uint32 // gate.ServedBit of all ports that may lead to the host

	mu    sync.Mutex // guards what follows
	list  []*supervised
	ended counted // sums of gates that are not in the list any more
}

// supervised is a gate with the supervisor that answers its requests.
type supervised struct {
	gate       *gate.Gate
	supervisor *notify.Supervisor
	listener   *os.File

	mu     sync.Mutex    // guards what follows
	stats  *gate.Stats   // its last answer; nil before
	asking chan struct{} // closed when the gate has answered; nil unless it is asked
}

// close ends a gate after its programs have ended.
func (s *supervised) close() error {
	return errors.Join(s.supervisor.Close(), s.forget())
}

// forget closes the listener once no call is being handled. If that takes too long, the listener is
// closed later.
func (s *supervised) forget() error {
	if s.supervisor.Await() {
		return s.listener.Close()
	}
	go func() {
		<-s.supervisor.Handled()
		s.listener.Close() // a descriptor of ours alone
	}()
	return nil
}

// each calls do for all gates at once, because each call may take its time.
func each(list []*supervised, do func(*supervised) error) error {
	errs := make([]error, len(list))
	var all sync.WaitGroup
	for i, s := range list {
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = do(s)
		}()
	}
	all.Wait()
	return errors.Join(errs...)
}

// know tells all gates a hint before it returns.
func (g *gates) know(h graft.Hint) {
	if g.known[h].Load() {
		return
	}
	g.telling.Lock()
	defer g.telling.Unlock()
	_ = each(g.all(), func(s *supervised) error {
		s.gate.Set(words[h])
		return nil
	})
	g.known[h].Store(true)
}

// serves tells all gates, before it returns, that a port of the loopback leads to the host.
func (g *gates) serves(port uint16) {
	g.telling.Lock()
	defer g.telling.Unlock()
	if g.served&gate.ServedBit(port) != 0 {
		return
	}
	g.served |= gate.ServedBit(port)
	_ = each(g.all(), func(s *supervised) error {
		s.gate.SetServed(g.served)
		return nil
	})
}

// trace makes all gates report each decision, or stop doing so.
func (g *gates) trace(on bool) {
	g.telling.Lock()
	defer g.telling.Unlock()
	g.traced = on
	_ = each(g.all(), func(s *supervised) error {
		s.gate.SetTraced(on)
		return nil
	})
}

// add adds a gate to the container. The gate has been told by then all that the others were told: the
// ports in one order, because after the first one it asks about no others.
func (g *gates) add(s *supervised) {
	g.telling.Lock()
	defer g.telling.Unlock()
	if g.served != 0 {
		s.gate.SetServed(g.served)
	}
	for h := range graft.Hints {
		if g.known[h].Load() {
			s.gate.Set(words[h])
		}
	}
	if g.traced {
		s.gate.SetTraced(true)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = append(g.list, s)
}

// remove removes a gate that has ended, if it is in the list, and tells whether it was the last.
// Its counters stay in the sums. It is one of retiring from then on: whoever takes all gates later
// waits for it.
func (g *gates) remove(s *supervised, retiring *sync.WaitGroup) (found, last bool) {
	// This reads the gate's last counters, which are there by now. A request from before may have
	// an answer from before.
	<-s.ask()
	<-s.ask()
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.list, s)
	if i < 0 {
		return false, false
	}
	retiring.Add(1)
	g.list = slices.Delete(g.list, i, i+1)
	g.ended.add(s.counted())
	return true, len(g.list) == 0
}

// take removes and returns all gates.
func (g *gates) take() []*supervised {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := g.list
	g.list = nil
	return list
}

// serve tells whether one of the gates has this listener.
func (g *gates) serve(listener *os.File) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.list, func(s *supervised) bool {
		return sameFile(s.listener, listener)
	})
}

// sameFile tells whether two descriptors of this process are of one open file. Inodes do not tell:
// all seccomp listeners have the same.
func sameFile(a, b *os.File) bool {
	self := uintptr(os.Getpid())
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, self, self, 0 /* KCMP_FILE */, a.Fd(), b.Fd(), 0)
	return errno == 0 && order == 0
}

// all returns the gates.
func (g *gates) all() []*supervised {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.list)
}

// count returns the number of gates.
func (g *gates) count() int { return len(g.all()) }

// setRules gives all gates other rules, and returns how many gates do not answer. These get the
// rules when they go on.
func (g *gates) setRules(image []byte) (silent int, err error) {
	g.telling.Lock()
	defer g.telling.Unlock()
	var late atomic.Int32
	err = each(g.all(), func(s *supervised) error {
		err := s.gate.SetRules(image)
		if errors.Is(err, gate.ErrSilent) {
			late.Add(1)
			return nil
		}
		return err
	})
	return int(late.Load()), err
}
