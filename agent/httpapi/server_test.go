package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// fakeContainer has endpoints, and fails if it is told to.
type fakeContainer struct {
	endpoints endpoint.Set
	fails     error
}

func (c *fakeContainer) ListEndpoints() []api.Endpoint {
	list := []api.Endpoint{}
	for _, ep := range c.endpoints.All() {
		list = append(list, api.Endpoint{Container: "c", Name: ep.Name, Definition: rules.DefinitionOf(ep)})
	}
	return list
}

func (c *fakeContainer) AddEndpoint(ep *endpoint.Endpoint) error {
	if c.fails != nil {
		return c.fails
	}
	return c.endpoints.Add(ep)
}

func (c *fakeContainer) DeleteEndpoint(name string) error { return c.endpoints.Remove(name) }

// serve serves the endpoints of a container c at a socket, and returns that.
func serve(t *testing.T, c Container) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.sock")
	find := func(name string) Container {
		if name == "c" {
			return c
		}
		return nil
	}
	s, err := Listen(path, New(EndpointRoutes(find), slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is still there: %v", err)
		}
	})
	return path
}

func TestEndpoints(t *testing.T) {
	c := &fakeContainer{}
	socket := serve(t, c)
	client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) }}}
	const good = `{"type":"ipv4","addr":"198.51.100.1","port":"80"}`
	for _, tt := range []struct {
		name, method, path, body string
		fails                    error
		status                   int
		says                     string
	}{
		{"none yet", "GET", "c/endpoints", "", nil, 200, "[]"},
		{"an endpoint", "PUT", "c/endpoints/a", good, nil, 201, `{"type":"ipv4","addr":"198.51.100.1","port":"80","path":"","netns":"","nameable":false}`},
		{"listed", "GET", "c/endpoints", "", nil, 200, `"name":"a"`},
		{"no JSON", "PUT", "c/endpoints/b", "type ipv4", nil, 400, "bad request: invalid character"},
		{"nothing", "PUT", "c/endpoints/b", "", nil, 400, "bad request: EOF"},
		{"two objects", "PUT", "c/endpoints/b", good + good, nil, 400, "something follows the object"},
		{"an unknown field", "PUT", "c/endpoints/b", `{"kind":"ipv4"}`, nil, 400, `unknown field \"kind\"`},
		{"a field of another type", "PUT", "c/endpoints/b", `{"port":80}`, nil, 400, "cannot unmarshal number"},
		{"an endpoint that is none", "PUT", "c/endpoints/b", `{"type":"ipx"}`, nil, 400, "ipx"},
		{"too long", "PUT", "c/endpoints/b", `{"path":"` + strings.Repeat("x", bodyMax) + `"}`, nil, 413, "too large"},
		{"one that is there", "PUT", "c/endpoints/b", good, fmt.Errorf("%w, b; delete it first", container.ErrExists), 409, "delete it first"},
		{"no such address", "PUT", "c/endpoints/b", good, container.HostError{Err: errors.New("the host has no address")}, 409, "has no address"},
		{"another container", "GET", "d/endpoints", "", nil, 404, "no container of that name"},
		{"an endpoint for another", "PUT", "d/endpoints/a", good, nil, 404, "no container of that name"},
		{"one of another", "DELETE", "d/endpoints/a", "", nil, 404, "no container of that name"},
		{"an unknown endpoint", "DELETE", "c/endpoints/b", "", nil, 404, "b"},
		{"the endpoint", "DELETE", "c/endpoints/a", "", nil, 204, ""},
		{"a wrong method", "POST", "c/endpoints", good, nil, 405, "Method Not Allowed"},
		{"an unknown path", "GET", "c/rules", "", nil, 404, "404 page not found"},
	} {
		c.fails = tt.fails
		r, err := http.NewRequest(tt.method, "http://x/v1/containers/"+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tt.status || !strings.Contains(string(body), tt.says) {
			t.Errorf("%s: %d %s, %v; want %d %s", tt.name, resp.StatusCode, body, err, tt.status, tt.says)
		}
	}
}

// A request whose header is too long is refused, and so is one that nobody may make.
func TestHeaders(t *testing.T) {
	socket := serve(t, &fakeContainer{})
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("x", 2*headerMax))
	}()
	start := make([]byte, len("HTTP/1.1 431"))
	if _, err := io.ReadFull(conn, start); err != nil || string(start) != "HTTP/1.1 431" {
		t.Errorf("%q, %v", start, err)
	}
}

func TestStatuses(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{errors.New("something"), 500},
		{&http.MaxBytesError{Limit: 1}, 413},
		{fmt.Errorf("%w: %w", rules.ErrRequest, endpoint.ErrUnknown), 400},
		{endpoint.ErrGrammar, 400},
		{fmt.Errorf("%w: x", rules.ErrNotAllowed), 403},
		{ErrNoContainer, 404},
		{endpoint.ErrUnknown, 404},
		{container.ErrExists, 409},
		{policy.ErrRule, 409},
		{container.HostError{Err: errors.New("x")}, 409},
		{fmt.Errorf("%w: 8", ErrTraces), 429},
		{fmt.Errorf("%w: full", ErrState), 507},
		{os.ErrClosed, 503},
		{errors.Join(ErrState, container.HostError{Err: errors.New("x")}), 409},
	} {
		w := httptest.NewRecorder()
		Refuse(w, tt.err)
		var f api.Failure
		if err := json.Unmarshal(w.Body.Bytes(), &f); err != nil || w.Code != tt.want || f.Error != OneLine(tt.err) || strings.Contains(f.Error, "\n") {
			t.Errorf("%v: %d %s, %v; want %d", tt.err, w.Code, w.Body, err, tt.want)
		}
	}
}

// A socket takes the place of what a killed process left, and only its owner may connect.
func TestListenAt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40)) // longer than an address
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "x.sock")
	for _, left := range []string{path, path + ".new"} {
		if err := os.WriteFile(left, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := ListenAt(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
	if _, err := Listen(filepath.Join(dir, "nothing", "x.sock"), nil); err == nil || !strings.Contains(err.Error(), "--run-dir") {
		t.Errorf("in no directory: %v", err)
	}
}

func TestPeer(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if err := checkPeer(a); err == nil || err.Error() != "not a unix socket" {
		t.Errorf("a pipe: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for name, tt := range map[string]struct {
		attr *syscall.SysProcAttr
		may  bool
	}{
		"as we are":                {&syscall.SysProcAttr{}, true},
		"another user":             {&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, false},
		"root of a user namespace": {&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}, false},
	} {
		cmd := exec.Command("cat")
		cmd.SysProcAttr = tt.attr
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if may, err := mayConfigure(cmd.Process.Pid); err != nil || may != tt.may {
			t.Errorf("%s: %v, %v", name, may, err)
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	if _, err := mayConfigure(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nobody: %v", err)
	}
}

// The caller of a request hangs up while it is answered.
func TestHungUp(t *testing.T) {
	asked, gone := make(chan bool), make(chan bool)
	path := filepath.Join(t.TempDir(), "x.sock")
	s, err := Listen(path, New(Routes{"GET /": func(_ http.ResponseWriter, r *http.Request) {
		asked <- HungUp(r.Context())
		<-gone
		asked <- HungUp(r.Context())
	}}, slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if <-asked {
		t.Error("it has hung up before")
	}
	conn.Close()
	gone <- true
	if !<-asked {
		t.Error("it has not hung up")
	}
	if HungUp(context.Background()) {
		t.Error("nobody has hung up")
	}
}

// fakeListener gives connections, or errors.
type fakeListener struct{ next func() (net.Conn, error) }

func (l *fakeListener) Accept() (net.Conn, error) { return l.next() }
func (l *fakeListener) Close() error              { return nil }
func (l *fakeListener) Addr() net.Addr            { return nil }

// As many connections as may be are accepted; the next one after one of them has ended.
func TestLimit(t *testing.T) {
	fails := false
	s := &http.Server{}
	l := Limit(&fakeListener{func() (net.Conn, error) {
		if fails {
			return nil, net.ErrClosed
		}
		a, _ := net.Pipe()
		return a, nil
	}}, s, 2)
	accept := func() (net.Conn, error) { return l.Accept() }
	for range 2 {
		if _, err := accept(); err != nil {
			t.Fatal(err)
		}
	}
	third := make(chan error)
	go func() { _, err := accept(); third <- err }()
	select {
	case <-third:
		t.Error("one too many")
	default:
	}
	s.ConnState(nil, http.StateActive)
	s.ConnState(nil, http.StateClosed)
	if err := <-third; err != nil {
		t.Error(err)
	}
	fails = true
	s.ConnState(nil, http.StateHijacked)
	for range 3 { // an error takes no place
		if _, err := accept(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
}

// A limit that somebody has lowered is raised again, and the connection is accepted then.
func TestGuard(t *testing.T) {
	limit, err := CurrentFileLimit()
	if err != nil {
		t.Fatal(err)
	}
	list := []error{unix.EMFILE, nil}
	var told error
	l := Guard(&fakeListener{func() (net.Conn, error) {
		err := list[0]
		list = list[1:]
		return nil, err
	}}, limit, slog.New(slog.DiscardHandler), func(err error) { told = err })
	if _, err := l.Accept(); !errors.Is(err, unix.EMFILE) || told != nil {
		t.Errorf("with the whole limit in use: %v, %v", err, told)
	}
	list = []error{unix.EMFILE, nil}
	lower := unix.Rlimit{Cur: limit.Cur - 1, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lower); err != nil {
		t.Fatal(err)
	}
	_, err = l.Accept()
	if now, lerr := CurrentFileLimit(); err != nil || lerr != nil || now != limit || told != nil {
		t.Errorf("lowered: %v, then %v of %v, %v, %v", err, now, limit, lerr, told)
	}
}
