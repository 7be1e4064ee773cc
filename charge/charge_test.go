package charge

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// agent answers as docs/API.md says that one does.
type agent struct {
	mu      sync.Mutex
	charged map[string]time.Duration // by container; guarded by mu
	unknown map[string]bool
	largest int // charges of a request; guarded by mu
	cut     bool
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var request api.ChargeRequest
	err := json.NewDecoder(r.Body).Decode(&request)
	all, bad := request.All()
	if r.Method+" "+r.URL.Path != "POST /v1/charge" || errors.Join(err, bad) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.largest = max(a.largest, len(all))
	var unknown []string
	for _, c := range all {
		if a.unknown[c.Container] {
			unknown = append(unknown, c.Container)
		}
	}
	if len(unknown) > 0 {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(api.Failure{Error: "no such container", Unknown: unknown})
		return
	}
	for _, c := range all {
		a.charged[c.Container] += c.Duration()
	}
	if a.cut {
		panic(http.ErrAbortHandler) // as if it was killed before it answered
	}
	w.WriteHeader(http.StatusNoContent)
}

func (a *agent) of(container string) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.charged[container]
}

func (a *agent) sum() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	var sum time.Duration
	for d := range maps.Values(a.charged) {
		sum += d
	}
	return sum
}

func (a *agent) listen(t *testing.T, socket string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	a.charged = map[string]time.Duration{}
	s := &http.Server{Handler: a}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
}

func start(t *testing.T, a *agent) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	a.listen(t, socket)
	return New(socket)
}

func flush(t *testing.T, c *Client) {
	t.Helper()
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// spin spends CPU time.
func spin(d time.Duration) {
	for begin := threadClock(); threadClock()-begin < d; {
		runtime.KeepAlive(begin)
	}
}

// between tells whether a time is no less than one, and not much more.
func between(t *testing.T, what string, d, least time.Duration) {
	t.Helper()
	if d < least || d > least*3/2+time.Millisecond {
		t.Errorf("%s: %v was charged, of %v that were spent", what, d, least)
	}
}

func TestWork(t *testing.T) {
	a := &agent{}
	c := start(t, a)
	w := c.Begin("web")
	spin(20 * time.Millisecond)
	time.Sleep(50 * time.Millisecond) // which is no CPU time
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	flush(t, c)
	between(t, "web", a.of("web"), 20*time.Millisecond)
	before := a.of("web")
	if err := w.End(); !errors.Is(err, ErrEnded) {
		t.Errorf("ended twice: %v", err)
	}
	flush(t, c)
	if a.of("web") != before || c.Lost() != 0 {
		t.Errorf("%v was charged, %v was lost", a.of("web"), c.Lost())
	}
}

// TestNested checks that no time is charged twice, also if the outer work is ended first.
func TestNested(t *testing.T) {
	a := &agent{}
	c := start(t, a)
	outer := c.Begin("outer")
	spin(10 * time.Millisecond)
	inner := c.Begin("inner")
	spin(20 * time.Millisecond)
	if err := inner.End(); err != nil {
		t.Error(err)
	}
	spin(10 * time.Millisecond)
	inner = c.Begin("/inner")
	spin(10 * time.Millisecond)
	if err := outer.End(); err != nil {
		t.Error(err)
	}
	if err := inner.End(); !errors.Is(err, ErrEnded) {
		t.Errorf("the inner work goes on: %v", err)
	}
	flush(t, c)
	between(t, "outer", a.of("outer"), 20*time.Millisecond)
	between(t, "inner", a.of("inner"), 20*time.Millisecond)
	between(t, "/inner", a.of("/inner"), 10*time.Millisecond)
}

func TestOtherGoroutine(t *testing.T) {
	a := &agent{}
	c := start(t, a)
	w := c.Begin("web")
	ended := make(chan error)
	go func() { ended <- w.End() }()
	if err := <-ended; !errors.Is(err, ErrThread) {
		t.Errorf("ended by another goroutine: %v", err)
	}
	spin(10 * time.Millisecond)
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	flush(t, c)
	between(t, "web", a.of("web"), 10*time.Millisecond)
}

// TestAbandoned has goroutines end without ending their work, whose threads end too.
func TestAbandoned(t *testing.T) {
	c := New(filepath.Join(t.TempDir(), "none"))
	for range 100 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Begin("web")
		}()
		<-done
	}
	w := c.Begin("web")
	spin(time.Millisecond)
	if err := w.End(); err != nil {
		t.Error(err)
	}
}

func TestConcurrent(t *testing.T) {
	a := &agent{}
	c := start(t, a)
	var all sync.WaitGroup
	for range 50 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 20 {
				w := c.Begin("web")
				spin(100 * time.Microsecond)
				if err := errors.Join(w.End(), c.Add("other", 7*time.Microsecond)); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	flush(t, c)
	// What the background has taken may still be under way: then the turn was its.
	between(t, "web", a.of("web"), 100*time.Millisecond)
	if d := a.of("other"); d != 7*time.Millisecond {
		t.Errorf("other: %v", d)
	}
}

func TestBadValues(t *testing.T) {
	c := New(filepath.Join(t.TempDir(), "none"))
	for _, d := range []time.Duration{0, -1, api.ChargeMax + 1, -1 << 63, 1<<63 - 1} {
		if c.Add("web", d) == nil {
			t.Errorf("%v is taken", d)
		}
	}
	for _, name := range []string{"", "a/b", "/a/../b", "a\n"} {
		if c.Add(name, time.Second) == nil {
			t.Errorf("%q is taken", name)
		}
		if c.Begin(name).End() == nil {
			t.Errorf("work for %q is taken", name)
		}
	}
	c.Source = "no source"
	if c.Add("web", time.Second) == nil {
		t.Errorf("source %q is taken", c.Source)
	}
	if c.Lost() != 0 {
		t.Errorf("%v was lost", c.Lost())
	}
}

// TestLateAgent keeps what is charged until an agent comes, up to a bound.
func TestLateAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	c := New(socket)
	for _, d := range []time.Duration{api.ChargeMax - time.Second, 5 * time.Second} {
		if err := c.Add("busy", d); err != nil {
			t.Error(err)
		}
	}
	if err := c.Add("web", 3*time.Millisecond); err != nil {
		t.Error(err)
	}
	if err := c.Flush(t.Context()); !errors.Is(err, api.ErrNoAgent) {
		t.Errorf("without an agent: %v", err)
	}
	if c.Lost() != 4*time.Second {
		t.Errorf("%v was lost", c.Lost())
	}
	a := &agent{}
	a.listen(t, socket)
	// By itself.
	testkit.Eventually(t, 10*time.Second, func() error {
		if d := a.of("web"); d != 3*time.Millisecond {
			return errors.New("not charged yet")
		}
		return nil
	})
	if d := a.of("busy"); d != api.ChargeMax {
		t.Errorf("busy: %v", d)
	}
}

// TestUnknown checks that containers that there are not do not keep others from being
// charged, in several requests.
func TestUnknown(t *testing.T) {
	a := &agent{unknown: map[string]bool{"gone": true, "/gone": true}}
	c := start(t, a)
	const others = 2500
	for i := range others {
		if err := c.Add("web-"+strings.Repeat("x", i/100)+string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676)), time.Millisecond); err != nil {
			t.Error(err)
		}
	}
	for name := range a.unknown {
		if err := c.Add(name, time.Millisecond); err != nil {
			t.Error(err)
		}
	}
	testkit.Eventually(t, 10*time.Second, func() error {
		_ = c.Flush(t.Context()) // says that there are unknown ones
		if c.Lost() != 2*time.Millisecond || a.sum() != others*time.Millisecond {
			return errors.New("not all is charged")
		}
		return nil
	})
	if a.largest > api.ChargesMax {
		t.Errorf("%d charges in a request", a.largest)
	}
}

// TestCutAnswer has an agent end between charging and answering: not charged twice.
func TestCutAnswer(t *testing.T) {
	a := &agent{cut: true}
	c := start(t, a)
	if err := c.Add("web", time.Second); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, 10*time.Second, func() error {
		_ = c.Flush(t.Context()) // the background may have been first
		if c.Lost() != time.Second {
			return errors.New("not lost")
		}
		return nil
	})
	a.mu.Lock()
	a.cut = false
	a.mu.Unlock()
	flush(t, c)
	if d := a.of("web"); d != time.Second {
		t.Errorf("%v was charged", d)
	}
}

func TestFlushEnds(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket) // which never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := New(socket)
	if err := c.Add("web", time.Second); err != nil {
		t.Error(err)
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := c.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an agent that says nothing: %v", err)
		}
		cancel()
	}
}

func BenchmarkWork(b *testing.B) {
	c := New(filepath.Join(b.TempDir(), "none"))
	for b.Loop() {
		if err := c.Begin("web").End(); err != nil {
			b.Fatal(err)
		}
	}
}
