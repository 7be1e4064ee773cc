package container

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/policy"
)

// fakeOwner notes what it is asked for, and fails if it is told to.
type fakeOwner struct {
	reserved [][]ports.Reservation
	saved    []State
	fails    error // Save
	succeed  int   // so many saves do, before that
	refuses  error // Reserve
	pods     map[string]uint64
}

func (o *fakeOwner) Reserve(list []ports.Reservation) error {
	if o.refuses != nil {
		return o.refuses
	}
	o.reserved = append(o.reserved, list)
	return nil
}

func (o *fakeOwner) Save(s State) error {
	o.saved = append(o.saved, s)
	if o.succeed--; o.succeed >= 0 {
		return nil
	}
	return o.fails
}

func (o *fakeOwner) Pool() (*gate.Pool, error) { return nil, errors.ErrUnsupported }
func (o *fakeOwner) Entered()                  {}

func (o *fakeOwner) PodNetwork(uid string) (uint64, bool) {
	cookie, known := o.pods[uid]
	return cookie, known
}

func (o *fakeOwner) Ended() {}

// prepared is a container with its rules and nothing else.
func prepared(t *testing.T, texts api.Rules) (*Container, *fakeOwner, error) {
	t.Helper()
	given, err := rules.Parse(texts)
	if err != nil {
		t.Fatal(err)
	}
	o := &fakeOwner{}
	c := New(Spec{Name: "c", RunDir: t.TempDir(), Rules: given, Ports: ports.New().Holder("c"), Log: slog.New(slog.DiscardHandler)}, o)
	t.Cleanup(func() {
		if _, err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, o, c.Prepare()
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

var someRules = api.Rules{
	Endpoints: []string{"in type ipv4 addr 127.0.0.1 port 20180", "out type ipv4 addr 0.0.0.0 port dynamic", "u type unix path /run/u"},
	Ingress:   []string{"0.0.0.0:8080=in", "0.0.0.0:9000-9009=127.0.0.1", "0.0.0.0:70=u"},
	Egress:    []string{"198.51.100.0/24=out", "203.0.113.0/24=u"},
}

// The port of a rule is reserved; a range of ports is not, nor a path.
func TestPrepare(t *testing.T) {
	needRoot(t)
	c, o, err := prepared(t, someRules)
	if err != nil {
		t.Fatal(err)
	}
	want := []ports.Reservation{{Netns: c.host[""].Cookie(), At: netip.MustParseAddrPort("127.0.0.1:20180")}}
	if len(o.reserved) != 1 || !slices.Equal(o.reserved[0], want) || len(o.saved) != 0 {
		t.Errorf("reserved %v, want %v; saved %v", o.reserved, want, o.saved)
	}
	c.refresh()
	shown := Shown{
		Ports:  []string{"127.0.0.1:20180->0.0.0.0:8080", "127.0.0.1:9000-9009->0.0.0.0:9000-9009", "/run/u->0.0.0.0:70"},
		Egress: []string{"198.51.100.0/24->0.0.0.0", "203.0.113.0/24->/run/u"},
	}
	got := c.Show()
	slices.Sort(got.Ports)
	slices.Sort(shown.Ports)
	if diff := cmp.Diff(shown, got); diff != "" {
		t.Errorf("(-want +shown)\n%s", diff)
	}
	var listed []string
	for _, e := range c.ListEndpoints() {
		listed = append(listed, e.Name+" "+strings.Join(e.Rules, " "))
	}
	if want := "i-2 -i 0.0.0.0:9000-9009=i-2; in -i 0.0.0.0:8080=in; out -e 198.51.100.0/24=out; u -i 0.0.0.0:70=u -e 203.0.113.0/24=u"; strings.Join(listed, "; ") != want {
		t.Errorf("%s are listed, want %s", strings.Join(listed, "; "), want)
	}
}

func TestPrepareRefuses(t *testing.T) {
	needRoot(t)
	for name, tt := range map[string]struct {
		texts api.Rules
		says  string
		kind  error
	}{
		"rules that contradict each other": {api.Rules{Egress: []string{"198.51.100.0/24=0.0.0.0", "198.51.100.0/24=127.0.0.1"}}, "", policy.ErrRule},
		"an address that nobody has":       {api.Rules{Egress: []string{"198.51.100.0/24=203.0.113.77"}}, "the host has no address 203.0.113.77", nil},
		"a namespace that is not there":    {api.Rules{Endpoints: []string{"a type ipv4 addr 0.0.0.0 port dynamic netns /nothing/here"}}, "endpoint a: ", os.ErrNotExist},
	} {
		_, _, err := prepared(t, tt.texts)
		if err == nil || !strings.Contains(err.Error(), tt.says) || tt.kind != nil && !errors.Is(err, tt.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is about to be in force is saved with the ports of it; if it cannot be, all is as before.
func TestAnnounce(t *testing.T) {
	needRoot(t)
	c, o, err := prepared(t, someRules)
	if err != nil {
		t.Fatal(err)
	}
	before := o.reserved[0]
	set := c.endpoints.Load().Clone()
	if err := set.Remove("in"); err != nil {
		t.Fatal(err)
	}
	next, err := c.nextTable(c.given.Load(), &set)
	if err != nil {
		t.Fatal(err)
	}
	o.fails = errors.New("no room")
	if err := c.announce(next, &set); !errors.Is(err, o.fails) || len(o.reserved) != 3 || len(o.reserved[1]) != 0 || !slices.Equal(o.reserved[2], before) || c.state.Endpoints != nil {
		t.Errorf("%v: reserved %v, state %v", err, o.reserved, c.state)
	}
	o.fails, o.saved = nil, nil
	if err := c.announce(next, &set); err != nil || len(o.saved) != 1 || len(c.state.Endpoints) != 3 || len(c.state.Numbered) == 0 {
		t.Errorf("%v: saved %+v", err, o.saved)
	}
	o.refuses, o.saved = &ports.ReservedError{}, nil
	if err := c.announce(c.table, c.endpoints.Load()); !errors.Is(err, o.refuses) || len(o.saved) != 0 {
		t.Errorf("a port of another's: %v, saved %v", err, o.saved)
	}
}

// A change is refused before anything is asked of the owner, and of a container that is ending.
func TestEndpointsRefuse(t *testing.T) {
	needRoot(t)
	c, o, err := prepared(t, someRules)
	if err != nil {
		t.Fatal(err)
	}
	parse := func(line string) *endpoint.Endpoint {
		ep, err := endpoint.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		return ep
	}
	if err := c.AddEndpoint(parse("in type ipv4 addr 127.0.0.1 port 1")); !errors.Is(err, ErrExists) {
		t.Errorf("one that is there: %v", err)
	}
	var host HostError
	if err := c.AddEndpoint(parse("new type ipv4 addr 203.0.113.77 port 1")); !errors.As(err, &host) || !strings.Contains(err.Error(), "has no address") {
		t.Errorf("an address that nobody has: %v", err)
	}
	if err := c.AddEndpoint(parse("new type ipv4 addr 0.0.0.0 port dynamic netns /nothing/here")); !errors.As(err, &host) {
		t.Errorf("a namespace that is not there: %v", err)
	}
	if err := c.DeleteEndpoint("nobody"); !errors.Is(err, endpoint.ErrUnknown) {
		t.Errorf("one that is not there: %v", err)
	}
	if len(o.saved) != 0 || len(o.reserved) != 1 {
		t.Errorf("%v were saved", o.saved)
	}
	c.closing = true
	for _, err := range []error{c.AddEndpoint(parse("new type unix path /x")), c.DeleteEndpoint("in"), c.enter(os.Getpid())} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("while it ends: %v", err)
		}
	}
}

// The namespace of a program is its own, and not one that ip netns knows by the same number.
func TestEnterByProcess(t *testing.T) {
	needRoot(t)
	c, _, err := prepared(t, someRules)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(netns.RunDir, strconv.Itoa(os.Getpid()))
	if err := errors.Join(os.MkdirAll(netns.RunDir, 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path)
	if err := c.enter(os.Getpid()); err == nil || !strings.Contains(err.Error(), "has no seccomp filter") {
		t.Errorf("a program without a filter: %v", err)
	}
}

// What the filter has to see depends on the rules.
func TestFilterOptions(t *testing.T) {
	needRoot(t)
	for name, tt := range map[string]struct {
		texts    api.Rules
		want     filter.Options
		preloads bool
	}{
		"nothing":                     {api.Rules{}, filter.Options{Mode: filter.Auto, AFGraft: true}, false},
		"a rule":                      {api.Rules{Egress: []string{"0.0.0.0/0=0.0.0.0"}}, filter.Options{Mode: filter.Auto}, true},
		"seccomp alone":               {api.Rules{Mode: "seccomp", Egress: []string{"0.0.0.0/0=0.0.0.0"}}, filter.Options{Mode: filter.Seccomp}, false},
		"a nameable endpoint":         {api.Rules{Endpoints: []string{"x type unix path /x nameable"}}, filter.Options{Mode: filter.Auto, AFGraft: true}, true},
		"the container's own address": {api.Rules{Ingress: []string{"0.0.0.0:80+own=127.0.0.1:20180"}}, filter.Options{Mode: filter.Auto, Accepts: true}, true},
		"another endpoint":            {api.Rules{Endpoints: []string{"x type unix path /x"}}, filter.Options{Mode: filter.Auto, AFGraft: true}, true},
	} {
		c, _, err := prepared(t, tt.texts)
		if err != nil {
			t.Fatal(err)
		}
		got := c.FilterOptions()
		got.Datagrams = false
		if got != tt.want || c.Preloads() != tt.preloads {
			t.Errorf("%s: %+v %v", name, got, c.Preloads())
		}
	}
}

func TestProcess(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	p, err := OpenProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if again, err := reopenProcess(p.PID, p.started); err != nil {
		t.Error(err)
	} else if err := again.Close(); err != nil {
		t.Error(err)
	}
	if _, err := reopenProcess(p.PID, p.started+"0"); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("one that began at another time: %v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("1\n2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !p.IsOf(os.Getpid()) || !p.IsOf(p.PID) || p.IsOf(1) || p.IsOf(0) || p.IsIn(dir) || p.IsIn(dir+"x") || p.isFiltered() {
		t.Errorf("%v %v %v %v %v", p.IsOf(os.Getpid()), p.IsOf(p.PID), p.IsOf(1), p.IsIn(dir), p.isFiltered())
	}
	state := State{PID: p.PID, Started: p.started}
	if !livesWithoutRoom(t, state) || !state.Lives() || (State{PID: p.PID, Started: "0"}).Lives() || (State{}).Lives() {
		t.Error("of a process that lives, it is not known whether it does")
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if state.Lives() {
		t.Error("its state says that it lives")
	}
	if p.lives() || p.IsOf(p.PID) || p.IsOf(os.Getpid()) {
		t.Error("it is dead")
	}
	if err := errors.Join(p.Kill(), (*Process)(nil).Kill()); err != nil {
		t.Errorf("killed again: %v", err)
	}
	if _, err := OpenProcess(p.PID); !errors.Is(err, unix.ESRCH) && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("opened when it is dead: %v", err)
	}
}

// livesWithoutRoom asks whether a program lives when this process can open no more files.
func livesWithoutRoom(t *testing.T, s State) bool {
	t.Helper()
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	if err == nil {
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max})
	}
	lives := s.Lives()
	if err = errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)); err != nil {
		t.Fatal(err)
	}
	return lives
}
