package vm

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// node is an agent that has guests with hybrid vsock, at dir/NAME.
type node struct {
	*hostProcess
	*api.Client
	top  *testkit.Topology
	dir  string
	args []string
}

// newNode starts an agent. Its configuration has guests, each with its port of the host for its port 80.
func newNode(t *testing.T, guests map[string]int) *node {
	t.Helper()
	n := &node{top: testkit.Build(t, testkit.Options{}), dir: t.TempDir()}
	n.configure(t, guests)
	n.args = []string{"agent", "--config", n.file(), "--run-dir", filepath.Join(n.dir, "run"), "--state-dir", filepath.Join(n.dir, "state")}
	n.start(t)
	return n
}

func (n *node) file() string { return filepath.Join(n.dir, "agent.toml") }

func (n *node) path(guest string) string { return filepath.Join(n.dir, guest) }

// configure writes the configuration.
func (n *node) configure(t *testing.T, guests map[string]int) {
	t.Helper()
	text := "[charge]\ndiscovery = false\n"
	for name, port := range guests {
		text += fmt.Sprintf("[[container]]\nmatch = %q\negress = [\"0.0.0.0/0=0.0.0.0\"]\ningress = [\"0.0.0.0:80=%s:%d\"]\n", name, testkit.HostAddr4, port)
		text += fmt.Sprintf("[[guest]]\nname = %q\nvsock = %q\n", name, "hybrid:"+n.path(name))
	}
	if err := os.WriteFile(n.file(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start starts the agent, and waits until it serves.
func (n *node) start(t *testing.T) {
	t.Helper()
	n.hostProcess = serve(t, n.top.Host, n.args...)
	n.Client = api.Dial(api.SocketIn(filepath.Join(n.dir, "run")))
	testkit.Eventually(t, func() error {
		_, err := n.Containers()
		return err
	})
}

func (n *node) guests(t *testing.T) (names []string) {
	t.Helper()
	var list []api.Guest
	if err := n.Do(http.MethodGet, "/v1/guests", nil, &list); err != nil {
		t.Fatal(err)
	}
	for _, g := range list {
		names = append(names, g.Name)
	}
	return names
}

func (n *node) guest(t *testing.T, name string) (g api.Guest) {
	t.Helper()
	if err := n.Do(http.MethodGet, "/v1/guests/"+name, nil, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// TestAgent has guests of the configuration and of the API, over two restarts of the agent.
func TestAgent(t *testing.T) {
	n := newNode(t, map[string]int{"a": 8081, "b": 8082})
	at := echoes(t, n.top)
	third := api.Guest{Name: "c", VSock: "hybrid:" + n.path("c"), Rules: &api.Rules{Egress: []string{"0.0.0.0/0=0.0.0.0"}}}
	var made api.Guest
	if err := n.Do(http.MethodPost, "/v1/guests", third, &made); err != nil || made.Name != "c" || made.Configured {
		t.Fatalf("%+v, %v", made, err)
	}
	if err := n.Do(http.MethodPost, "/v1/guests", third, nil); err == nil || !strings.Contains(err.Error(), "a container c runs") {
		t.Errorf("the same guest again: %v", err)
	}
	for text, want := range map[string]string{"": "write PATH", "v": "not absolute", "2": "context id 2"} {
		if err := n.Do(http.MethodPost, "/v1/guests", api.Guest{Name: "d", VSock: text, Rules: &api.Rules{}}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("vsock %q: %v", text, err)
		}
	}
	if err := n.Do(http.MethodPost, "/v1/guests", api.Guest{Name: "d", VSock: "hybrid:" + n.path("d")}, nil); err == nil || !strings.Contains(err.Error(), "has no rules") {
		t.Errorf("no rules: %v", err)
	}
	if err := n.Do(http.MethodPost, "/v1/guests", api.Guest{Name: "d", VSock: "hybrid:/proc/none/v", Rules: &api.Rules{}}, nil); err == nil {
		t.Error("a guest in a folder that is not there")
	}
	if err := n.Do(http.MethodDelete, "/v1/guests/a", nil, nil); err == nil || !strings.Contains(err.Error(), "the configuration has the virtual machine") {
		t.Errorf("remove a guest of the configuration: %v", err)
	}
	if got := n.guests(t); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("guests %v", got)
	}

	guests := map[string]*fakeGuest{}
	for _, name := range []string{"a", "b", "c"} {
		guests[name] = newFake(t, n.path(name))
	}
	check := func() {
		t.Helper()
		for name, g := range guests {
			c, errno := g.connect(at)
			if c == nil {
				t.Fatalf("%s: %v", name, errno)
			}
			if err := works(c); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			c.Close()
		}
		server := guests["a"].listen("0.0.0.0:80")
		client, err := reach(n.top, fmt.Sprintf("%s:8081", testkit.HostAddr4))
		if err != nil {
			t.Fatal(err)
		}
		guests["a"].next(server)
		client.Close()
	}
	check()
	testkit.Eventually(t, func() error { // the host may know a little later
		state := n.guest(t, "a").State
		if state == nil || state.VMM != os.Getpid() || state.Boots != 1 || state.Opened != 2 || state.Dialed != 1 ||
			state.FromGuest == 0 || state.ToGuest == 0 || state.Faults != 0 {
			return fmt.Errorf("state of a: %+v", state)
		}
		return nil
	})
	n.shows(t)

	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		n.end(sig)
		for name, g := range guests {
			<-g.ended
			if _, err := net.Dial("unix", fmt.Sprintf("%s_%d", n.path(name), 1)); err == nil {
				t.Error("somebody listens")
			}
		}
		n.start(t)
		if got := n.guests(t); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Fatalf("guests after %v: %v", sig, got)
		}
		for _, g := range guests {
			g.connectControl()
		}
		check()
	}

	if err := n.Do(http.MethodDelete, "/v1/guests/c", nil, nil); err != nil {
		t.Error(err)
	}
	<-guests["c"].ended
	// The configuration changes: a is gone, and d is new.
	n.configure(t, map[string]int{"b": 8082, "d": 8084})
	if err := n.cmd.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	<-guests["a"].ended
	awaitSockets(t, n.path("d"))
	if got := n.guests(t); !slices.Equal(got, []string{"b", "d"}) {
		t.Errorf("guests %v", got)
	}
	if c, errno := guests["b"].connect(at); c == nil {
		t.Error(errno)
	}
}

// shows looks at what the agent shows of guests besides.
func (n *node) shows(t *testing.T) {
	t.Helper()
	out, err := n.top.Host.Command(context.Background(), tsugiki(t), "ps", "--agent", api.SocketIn(filepath.Join(n.dir, "run"))).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "guest") || !strings.Contains(string(out), fmt.Sprintf("%s:8081->0.0.0.0:80", testkit.HostAddr4)) {
		t.Errorf("ps: %v\n%s", err, out)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", api.SocketIn(filepath.Join(n.dir, "run")))
	}}}
	resp, err := client.Get("http://tsugiki/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	for _, want := range []string{
		`tsugiki_guest_connections_total{by="guest",container="a"} 2`, `tsugiki_guest_connections_total{by="host",container="a"} 1`,
		`tsugiki_guest_boots_total{container="b"} 1`, `tsugiki_guest_faults_total{container="c"} 0`, `tsugiki_containers{state="running"} 3`,
	} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("metrics have no %s: %v", want, err)
		}
	}
}

// TestFolderComesLater has the folder of a guest's VMM not be there when the agent starts. The guest is attached
// once it is; unless it is removed before.
func TestFolderComesLater(t *testing.T) {
	n := newNode(t, nil)
	dir, away := n.path("folder"), n.path("away")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	vm := api.Guest{Name: "vm", VSock: "hybrid:" + filepath.Join(dir, "v"), Rules: &api.Rules{Egress: []string{"0.0.0.0/0=0.0.0.0"}}}
	if err := n.Do(http.MethodPost, "/v1/guests", vm, nil); err != nil {
		t.Fatal(err)
	}
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	startWithout := func() {
		t.Helper()
		n.end(unix.SIGTERM)
		move(dir, away)
		n.start(t)
		if got := n.guests(t); len(got) > 0 {
			t.Fatalf("guests %v", got)
		}
	}
	startWithout()
	move(away, dir)
	awaitSockets(t, filepath.Join(dir, "v"))
	if got := n.guests(t); !slices.Equal(got, []string{"vm"}) {
		t.Fatalf("guests %v", got)
	}
	startWithout()
	if err := n.Do(http.MethodDelete, "/v1/guests/vm", nil, nil); err != nil {
		t.Error(err)
	}
	move(away, dir)
	n.end(unix.SIGTERM)
	n.start(t)
	if got := n.guests(t); len(got) > 0 {
		t.Errorf("guests %v", got)
	}
}

// pooled is how many sockets of a guest, that nobody has used, the agent may keep.
const pooled = 96

// TestGuestsShareAProcess has a guest that reads nothing and takes no connection. Another guest of the same
// process works, and the process keeps nothing of a guest that dies.
func TestGuestsShareAProcess(t *testing.T) {
	n := newNode(t, map[string]int{"a": 8081, "b": 8082})
	at := echoes(t, n.top)
	b := newFake(t, n.path("b"))
	server := b.listen("0.0.0.0:80")
	check := func() {
		t.Helper()
		c, errno := b.connect(at)
		if c == nil {
			t.Fatal(errno)
		}
		if err := works(c); err != nil {
			t.Error(err)
		}
		c.Close()
		client, err := reach(n.top, fmt.Sprintf("%s:8082", testkit.HostAddr4))
		if err != nil {
			t.Fatal(err)
		}
		b.next(server).Close()
		client.Close()
	}
	quiet := func() error { // nothing but the control stream of b
		if a, b := n.guest(t, "a").State.Open, n.guest(t, "b").State.Open; a != 0 || b != 1 {
			return fmt.Errorf("%d connections of a, and %d of b", a, b)
		}
		return nil
	}
	check()
	testkit.Eventually(t, quiet)
	before := socketsOf(t, n.hostProcess)

	a := newFake(t, n.path("a"))
	a.listen("0.0.0.0:80")
	var conns []net.Conn
	for range 4 * pooled {
		c, errno := a.connect(at)
		if c == nil {
			t.Fatal(errno)
		}
		if _, err := io.WriteString(c, "all\n"); err != nil {
			t.Fatal(err)
		}
		go func() { // what comes back is not read, so this waits until the guest dies
			for err := error(nil); err == nil; {
				_, err = c.Write(make([]byte, 1<<16))
			}
		}()
		conns = append(conns, c)
	}
	client, err := reach(n.top, fmt.Sprintf("%s:8081", testkit.HostAddr4))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	check()

	a.listener.Close()
	a.control.Close()
	(<-a.dialed).Close()
	for _, c := range conns {
		c.Close()
	}
	testkit.Eventually(t, func() error {
		if now := socketsOf(t, n.hostProcess); now > before+pooled {
			return fmt.Errorf("%d sockets, and %d before", now, before)
		}
		if open := listening(t, n.top.Host); !slices.Equal(open, []string{"8082"}) {
			return fmt.Errorf("the host listens at %v", open)
		}
		return quiet()
	})
	check()
}

// socketsOf is the number of sockets that a process has open.
func socketsOf(t *testing.T, p *hostProcess) (sockets int) {
	t.Helper()
	open, err := testkit.OpenFiles(p.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range open {
		if strings.HasPrefix(target, "socket:") {
			sockets++
		}
	}
	return sockets
}

// TestBadGuests has configurations with guests that cannot be. The agent says so, with the line.
func TestBadGuests(t *testing.T) {
	const rules = "[[container]]\nmatch = \"vm*\"\negress = [\"0.0.0.0/0=0.0.0.0\"]\n"
	for text, want := range map[string]string{
		"[[guest]]\nname = \"vm\"\n":                        ":4: [[guest]] has no vsock",
		"[[guest]]\nvsock = \"/run/v\"\n":                   ":4: [[guest]] has no name",
		"[[guest]]\nname = \"vm\"\nvsock = \"v\"\n":         "not absolute",
		"[[guest]]\nname = \"vm/1\"\nvsock = \"/run/v\"\n":  "vm/1",
		"[[guest]]\nname = \"other\"\nvsock = \"/run/v\"\n": "has no rules",
		"[[guest]]\nname = \"vm\"\nvsock = \"/run/v\"\n[[guest]]\nname = \"vm\"\nvsock = \"hybrid:/run/w\"\n": ":7: virtual machine vm is there twice, first on line 4",
	} {
		file := filepath.Join(t.TempDir(), "agent.toml")
		if err := os.WriteFile(file, []byte(rules+text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := onHost(t, "agent", "--check-config", "--config", file)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s\n%v: %s", text, err, out)
		}
	}
}

// onHost runs tsugiki in a host's namespace.
func onHost(t *testing.T, args ...string) (string, error) {
	t.Helper()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	out, err := top.Host.Command(context.Background(), tsugiki(t), args...).CombinedOutput()
	return string(out), err
}
