package notify

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/enforcer"
)

// programEnv makes the test's program that of a container, see listenForEver.
const programEnv = "NOTIFY_TEST_PROGRAM"

func TestMain(m *testing.M) {
	switch {
	case launch.IsChild():
		launch.Child()
	case os.Getenv(acceptEnv) != "":
		os.Exit(acceptUnderFilter(os.Getenv(acceptEnv)))
	case os.Getenv(programEnv) != "":
		os.Exit(listenForEver(os.Getenv(programEnv)))
	}
	os.Exit(m.Run())
}

// listenForEver calls listen(2), which a supervisor has to answer, and writes a byte
// for each that works.
func listenForEver(path string) int {
	done, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 1
	}
	for {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return 2
		}
		if err := unix.Listen(s, 1); err != nil {
			return 3
		}
		if on, err := unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || on != 1 {
			return 4
		}
		unix.Close(s)
		if _, err := done.WriteString("."); err != nil {
			return 5
		}
	}
}

// ownPlace is that of a container whose sockets nobody moves.
type ownPlace struct{ *netns.NS }

func (ownPlace) Maker() (graft.SocketMaker, error) { return nil, errors.New("no keeper") }

// world is a container that this process and its own successors supervise.
type world struct {
	t           *testing.T
	adoptSocket string
	pool        *gate.Pool
	done        string
	group       *cgroup.Group
	engine      *graft.Engine
	gate        *gate.Gate
	process     *launch.Process
	listener    *os.File
	gone        chan error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	dir := t.TempDir()
	w := &world{t: t, adoptSocket: filepath.Join(dir, "adopt"), done: filepath.Join(dir, "done"), gone: make(chan error, 1)}
	parent, err := cgroup.Own()
	w.must(err)
	w.group, err = cgroup.Create(parent, fmt.Sprintf("notify-test-%d", os.Getpid()))
	w.must(err)
	t.Cleanup(func() { w.must(w.group.Remove()) })
	group, err := w.group.Open()
	w.must(err)
	t.Cleanup(func() { group.Close() })
	table, err := policy.NewTable(nil, nil)
	w.must(err)
	enforced, err := enforcer.Enforce(group, table, func(*endpoint.Endpoint) uint64 { return 0 })
	w.must(err)
	t.Cleanup(func() { enforced.Close() })
	host, err := netns.Current()
	w.must(err)
	t.Cleanup(func() { host.Close() })
	own, err := netns.New()
	w.must(err)
	t.Cleanup(func() { own.Close() })
	w.engine = graft.New(graft.Config{Enforcer: enforced, Own: ownPlace{own}, Log: slog.New(slog.DiscardHandler)},
		graft.Rules{Table: table, Host: map[string]graft.Place{"": ownPlace{host}}})
	w.start(own, group)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) start(own *netns.NS, group *os.File) {
	w.t.Helper()
	prog, err := filter.Build(runtime.GOARCH, filter.Options{})
	w.must(err)
	exe, err := os.Executable()
	w.must(err)
	w.must(os.Setenv(programEnv, w.done))
	defer os.Unsetenv(programEnv)
	w.process, err = launch.Start(launch.Spec{
		Path: exe, Args: []string{"program"}, Netns: own.File(), CgroupDir: group, Filter: prog, Caps: launch.Default,
	}, func(listener *os.File, _ int) (err error) {
		w.listener = listener
		binary := filepath.Join(testkit.BuildTsugiki(w.t), gate.Program)
		if w.pool, err = gate.StartPool(binary, nil, gate.IdleAfter, nil); err != nil {
			return err
		}
		w.t.Cleanup(func() { w.pool.Close() })
		w.gate, err = gate.Start(gate.Config{
			Binary: binary, Own: own, CgroupDir: group,
			Listener: listener, AdoptSocket: w.adoptSocket, Pool: w.pool,
		})
		return err
	})
	w.must(err)
}

func (w *world) supervise(listener *os.File, g *gate.Gate) *Supervisor {
	s := New(listener, g, w.engine, NewPool().NewSlots(), slog.New(slog.DiscardHandler), func(err error) { w.gone <- err }, nil)
	s.Start()
	return s
}

// works waits until some more calls were answered.
func (w *world) works() {
	w.t.Helper()
	size := func() int64 {
		st, err := os.Stat(w.done)
		if err != nil {
			return 0
		}
		return st.Size()
	}
	want := size() + 20
	testkit.Eventually(w.t, func() error {
		if n := size(); n < want {
			return fmt.Errorf("%d calls were answered, want %d", n, want)
		}
		return nil
	})
}

func TestRelease(t *testing.T) {
	testkit.CheckLeaks(t)
	w := newWorld(t)
	s := w.supervise(w.listener, w.gate)
	w.works()
	w.must(s.Release())
	<-s.Handled()
	w.must(w.listener.Close())
	var g *gate.Gate
	for i := range 20 {
		var err error
		g, err = gate.Adopt(w.adoptSocket, testkit.Patience)
		w.must(err)
		listener := g.TakeListener()
		defer listener.Close()
		s = w.supervise(listener, g)
		w.works()
		if i < 19 {
			w.must(s.Release())
			<-s.Handled()
		}
	}
	w.must(unix.Kill(w.process.PID, unix.SIGKILL))
	var status unix.WaitStatus
	_, err := unix.Wait4(w.process.PID, &status, 0, nil)
	w.must(err)
	if !status.Signaled() {
		t.Errorf("the program ended by itself with status %d", status.ExitStatus())
	}
	if err := <-w.gone; !errors.Is(err, gate.ErrEnded) {
		t.Errorf("the gate ended with %v, want %v", err, gate.ErrEnded)
	}
	if !g.EndedWell() {
		t.Error("the gate did not end with its container")
	}
	w.must(s.Close())
	<-s.Handled()
}
