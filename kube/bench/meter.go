package main

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// calls are requests of one kind.
type calls struct {
	Requests  int64 `json:"requests"`
	Throttled int64 `json:"throttled"` // were answered 429
	Failed    int64 `json:"failed"`    // had another error, or no answer
	Bytes     int64 `json:"bytes"`     // of the bodies of answers, not compressed
	Lines     int64 `json:"lines"`     // of the bodies: events, where a watch's answer is JSON
}

func (c *calls) add(d calls, times int64) {
	c.Requests += times * d.Requests
	c.Throttled += times * d.Throttled
	c.Failed += times * d.Failed
	c.Bytes += times * d.Bytes
	c.Lines += times * d.Lines
}

// traffic is what a client and the API server have said to each other.
type traffic struct {
	In      int64            `json:"in"`      // bytes from the API server, as TLS has them
	Out     int64            `json:"out"`     // bytes to it
	Watches int64            `json:"watches"` // that are open
	Calls   map[string]calls `json:"calls"`   // by verb and resource
}

// add adds what another one is more, or with -1 takes it away. Open watches are those of t.
func (t *traffic) add(other *traffic, times int64) {
	t.In += times * other.In
	t.Out += times * other.Out
	if t.Calls == nil {
		t.Calls = map[string]calls{}
	}
	for what, d := range other.Calls {
		c := t.Calls[what]
		c.add(d, times)
		t.Calls[what] = c
	}
}

// meter counts the traffic of a client. Its methods may be called by several goroutines.
type meter struct {
	mu      sync.Mutex // guards what follows
	sum     traffic
	seconds map[int64]int64 // requests by the second of Unix time
	// began says since when a request of a kind and a path has had no success. Requests that were turned
	// away, or had no answer, are made again.
	began   map[string]time.Time
	longest map[string]float64 // seconds until a request had success, by verb
	pause   float64            // the longest that an answer has asked for, in seconds
}

func newMeter() *meter {
	return &meter{
		sum: traffic{Calls: map[string]calls{}}, seconds: map[int64]int64{}, began: map[string]time.Time{}, longest: map[string]float64{},
	}
}

// waits returns the longest waits, and forgets them if a stage begins.
func (m *meter) waits(forget bool) (longest map[string]float64, pause float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	longest, pause = maps.Clone(m.longest), m.pause
	if forget {
		clear(m.longest)
		m.pause = 0
	}
	return longest, pause
}

// addWaits keeps the longest waits.
func (a *answer) addWaits(longest map[string]float64, pause float64) {
	for verb, seconds := range longest {
		a.Longest[verb] = max(a.Longest[verb], seconds)
	}
	a.Pause = max(a.Pause, pause)
}

// begin notes that a request is made, perhaps again.
func (m *meter) begin(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.began[key].IsZero() {
		m.began[key] = time.Now()
	}
}

// answered notes the answer to a request.
func (m *meter) answered(key, verb string, resp *http.Response) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		m.pause = max(m.pause, float64(seconds))
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= http.StatusInternalServerError {
		return
	}
	if resp.StatusCode < http.StatusBadRequest {
		m.longest[verb] = max(m.longest[verb], time.Since(m.began[key]).Seconds())
	}
	delete(m.began, key)
}

// read returns what was counted until now.
func (m *meter) read() traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := traffic{Watches: m.sum.Watches}
	t.add(&m.sum, 1)
	return t
}

// eachSecond adds the requests of all seconds.
func (m *meter) eachSecond(into map[int64]int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for second, n := range m.seconds {
		into[second] += n
	}
}

func (m *meter) add(what string, d calls) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.sum.Calls[what]
	c.add(d, 1)
	m.sum.Calls[what] = c
	if d.Requests > 0 {
		m.seconds[time.Now().Unix()] += d.Requests
	}
}

func (m *meter) wire(in, out int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sum.In += in
	m.sum.Out += out
}

func (m *meter) watching(more int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sum.Watches += more
}

// dial connects, and counts the bytes of the connection.
func (m *meter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return meteredConn{conn, m}, nil
}

type meteredConn struct {
	net.Conn
	meter *meter
}

func (c meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.meter.wire(int64(n), 0)
	return n, err
}

func (c meteredConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.meter.wire(0, int64(n))
	return n, err
}

// wrap counts the requests that go through a transport.
func (m *meter) wrap(next http.RoundTripper) http.RoundTripper { return meteredTransport{next, m} }

type meteredTransport struct {
	next  http.RoundTripper
	meter *meter
}

func (t meteredTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	what := kindOf(r)
	verb, _, _ := strings.Cut(what, " ")
	key := what + " " + r.URL.Path
	t.meter.add(what, calls{Requests: 1})
	t.meter.begin(key)
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		t.meter.add(what, calls{Failed: 1})
		return nil, err
	}
	t.meter.answered(key, verb, resp)
	watch := false
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		t.meter.add(what, calls{Throttled: 1})
	case resp.StatusCode >= http.StatusBadRequest:
		t.meter.add(what, calls{Failed: 1})
	default:
		watch = strings.HasPrefix(what, watchVerb)
	}
	body := &meteredBody{ReadCloser: resp.Body, meter: t.meter, what: what, end: func() {}}
	if watch {
		t.meter.watching(1)
		body.end = func() { t.meter.watching(-1) }
	}
	resp.Body = body
	return resp, nil
}

type meteredBody struct {
	io.ReadCloser
	meter *meter
	what  string
	once  sync.Once
	end   func()
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.meter.add(b.what, calls{Bytes: int64(n), Lines: int64(bytes.Count(p[:n], []byte("\n")))})
	if err != nil {
		b.once.Do(b.end)
	}
	return n, err
}

func (b *meteredBody) Close() error {
	b.once.Do(b.end)
	return b.ReadCloser.Close()
}

// Verbs of requests, as the API server's metrics name them, but for watchListVerb: that is a watch
// which begins with all objects.
const (
	watchVerb     = "WATCH"
	watchListVerb = "WATCHLIST"
	listVerb      = "LIST"
)

// kindOf names a request by its verb and resource: "PATCH pods/status".
func kindOf(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	skip := map[string]int{"api": 2, "apis": 3}[parts[0]]
	if skip == 0 || len(parts) <= skip {
		return r.Method + " discovery"
	}
	parts = parts[skip:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	resource := parts[0]
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	verb := map[string]string{http.MethodPost: "CREATE", http.MethodPut: "UPDATE"}[r.Method]
	query := r.URL.Query()
	switch {
	case verb != "":
	case r.Method != http.MethodGet:
		verb = r.Method
	case query.Get("watch") == "true" && query.Get("sendInitialEvents") == "true":
		verb = watchListVerb
	case query.Get("watch") == "true":
		verb = watchVerb
	case len(parts) == 1:
		verb = listVerb
	default:
		verb = http.MethodGet
	}
	return verb + " " + resource
}
