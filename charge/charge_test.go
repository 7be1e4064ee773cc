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

// agent is a server that answers as docs/API.md describes.
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

// moment has the thread's clock before and after a call.
type moment struct{ before, after time.Duration }

func during(do func()) moment {
	before := threadClock()
	do()
	return moment{before, threadClock()}
}

// span is the least and the most CPU time that may have been used.
type span struct{ least, most time.Duration }

// to returns the CPU time from one moment to another.
func (m moment) to(end moment) span { return span{end.before - m.after, end.after - m.before} }

func (s span) and(other span) span { return span{s.least + other.least, s.most + other.most} }

// want checks that a measured time was charged. Each sent charge is rounded to the nearest
// microsecond.
func (s span) want(t *testing.T, a *agent, container string) {
	t.Helper()
	if d := a.of(container); d < s.least-time.Microsecond || d > s.most+time.Microsecond {
		t.Errorf("%s: %v was charged, of %v to %v that were spent", container, d, s.least, s.most)
	}
}

// begin and end call Begin and End, and read the clock before and after. The caller's goroutine is
// locked to its thread.
func begin(c *Client, container string) (w *Work, at moment) {
	at = during(func() { w = c.Begin(container) })
	return w, at
}

func end(t *testing.T, w *Work) moment {
	t.Helper()
	return during(func() {
		if err := w.End(); err != nil {
			t.Error(err)
		}
	})
}

func TestWork(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a := &agent{}
	c := start(t, a)
	w, began := begin(c, "web")
	spin(20 * time.Millisecond)
	time.Sleep(50 * time.Millisecond) // sleeping uses no CPU time
	ended := end(t, w)
	flush(t, c)
	began.to(ended).want(t, a, "web")
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
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a := &agent{}
	c := start(t, a)
	outer, outerBegan := begin(c, "outer")
	spin(10 * time.Millisecond)
	inner, firstBegan := begin(c, "inner")
	spin(20 * time.Millisecond)
	firstEnded := end(t, inner)
	spin(10 * time.Millisecond)
	inner, secondBegan := begin(c, "/inner")
	spin(10 * time.Millisecond)
	outerEnded := end(t, outer)
	if err := inner.End(); !errors.Is(err, ErrEnded) {
		t.Errorf("the inner work goes on: %v", err)
	}
	flush(t, c)
	outerBegan.to(firstBegan).and(firstEnded.to(secondBegan)).want(t, a, "outer")
	firstBegan.to(firstEnded).want(t, a, "inner")
	secondBegan.to(outerEnded).want(t, a, "/inner")
}

func TestOtherGoroutine(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a := &agent{}
	c := start(t, a)
	w, began := begin(c, "web")
	refused := make(chan error)
	go func() { refused <- w.End() }()
	if err := <-refused; !errors.Is(err, ErrThread) {
		t.Errorf("ended by another goroutine: %v", err)
	}
	spin(10 * time.Millisecond)
	ended := end(t, w)
	flush(t, c)
	began.to(ended).want(t, a, "web")
}

// TestAbandoned lets goroutines end without End. Their threads end, too.
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
	const routines, works = 50, 20
	var all sync.WaitGroup
	spans := make([]span, routines)
	for i := range routines {
		all.Add(1)
		go func() {
			defer all.Done()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for range works {
				w, began := begin(c, "web")
				spin(100 * time.Microsecond)
				spans[i] = spans[i].and(began.to(end(t, w)))
				if err := c.Add("other", 7*time.Microsecond); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	flush(t, c)
	// What the background has taken may still be under way: then the turn was its.
	sum := span{-routines * works * time.Microsecond, routines * works * time.Microsecond} // each charge may be rounded once
	for _, s := range spans {
		sum = sum.and(s)
	}
	sum.want(t, a, "web")
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

// TestLateAgent checks that charges are kept until an agent comes, up to a limit.
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
	testkit.Eventually(t, func() error {
		if d := a.of("web"); d != 3*time.Millisecond {
			return errors.New("not charged yet")
		}
		return nil
	})
	if d := a.of("busy"); d != api.ChargeMax {
		t.Errorf("busy: %v", d)
	}
}

// TestUnknown checks that containers that do not exist do not prevent charges to others, in several
// requests.
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
	testkit.Eventually(t, func() error {
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

// TestCutAnswer checks that a charge is not sent again if the agent ends between charging and
// answering.
func TestCutAnswer(t *testing.T) {
	a := &agent{cut: true}
	c := start(t, a)
	if err := c.Add("web", time.Second); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, func() error {
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
