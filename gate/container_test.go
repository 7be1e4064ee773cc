package gate

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/enforcer"
)

// What the test's program is, by its environment; else it is the test.
const (
	programEnv    = "GATE_TEST_PROGRAM"    // the program of a container, see program
	supervisorEnv = "GATE_TEST_SUPERVISOR" // see supervise
)

func TestMain(m *testing.M) {
	switch {
	case launch.IsChild():
		launch.Child()
	case os.Getenv(supervisorEnv) != "":
		os.Exit(supervise(strings.Fields(os.Getenv(supervisorEnv))))
	case os.Getenv(programEnv) != "":
		os.Exit(program(strings.Fields(os.Getenv(programEnv))))
	}
	os.Exit(m.Run())
}

// answered is what bind(2) returns in a container of these tests: the kernel never
// says so, only a supervisor does.
const answered = 7

// progress is what a container's program has done, in memory that it shares with the
// test.
type progress struct {
	started atomic.Uint64 // threads that are about to call
	asked   atomic.Uint64 // calls that a supervisor has answered
	own     atomic.Uint64 // calls that the gate alone has answered
	wrong   atomic.Uint64 // calls that were not answered as they should
	stop    atomic.Uint64
	quiet   atomic.Uint64 // no calls,
	once    atomic.Uint64 // but one
	took    atomic.Uint64 // nanoseconds, of the last call of the gate's own
	idle    atomic.Int64  // threads that make no call because it is quiet
}

func openProgress(path string) (*progress, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*progress)(unsafe.Pointer(&mem[0])), nil
}

// program makes calls that need a supervisor, on as many threads as args[1] says, and
// on one such that do not, until it is told to stop.
func program(args []string) int {
	p, err := openProgress(args[0])
	if err != nil {
		return 2
	}
	threads, err := strconv.Atoi(args[1])
	if err != nil {
		return 2
	}
	ended := make(chan struct{})
	run := func(call func() bool, count *atomic.Uint64) {
		p.started.Add(1)
		for p.stop.Load() == 0 {
			for p.quiet.Load() != 0 && !p.awaitsCalls() {
			}
			if p.stop.Load() != 0 {
				break
			}
			if call() {
				count.Add(1)
			} else {
				p.wrong.Add(1)
			}
		}
		ended <- struct{}{}
	}
	for range threads {
		go run(callAsked, &p.asked)
	}
	go run(p.callOwn, &p.own)
	for range threads + 1 {
		<-ended
	}
	return 0
}

// awaitsCalls waits while it is quiet. It tells whether the caller is to go on even if it is
// quiet again: to make the one call, or to end.
func (p *progress) awaitsCalls() bool {
	p.idle.Add(1)
	defer p.idle.Add(-1)
	for p.quiet.Load() != 0 {
		if p.stop.Load() != 0 || p.once.CompareAndSwap(1, 0) {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

func callAsked() bool {
	s, err := datagramSocket(unix.AF_INET6)
	if err != nil {
		return false
	}
	defer unix.Close(s)
	addr := unix.RawSockaddrInet6{Family: unix.AF_INET6}
	r, _, errno := unix.Syscall(unix.SYS_BIND, uintptr(s), uintptr(unsafe.Pointer(&addr)), unsafe.Sizeof(addr))
	return errno == 0 && r == answered
}

// datagramSocket makes a socket, and not by unix.Socket: Go takes that for a call that never waits,
// and runs nothing else on the thread's processor until the gate has answered.
func datagramSocket(family uintptr) (int, error) {
	s, _, errno := unix.Syscall(unix.SYS_SOCKET, family, unix.SOCK_DGRAM, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(s), nil
}

// callOwn has a socket made on the host first, which the gate finds in place.
func (p *progress) callOwn() bool {
	began := time.Now()
	s, err := datagramSocket(unix.AF_INET)
	if err != nil {
		return false
	}
	defer unix.Close(s)
	p.took.Store(uint64(time.Since(began)))
	if unix.Connect(s, &unix.SockaddrInet4{Port: 9, Addr: testkit.RemoteAddr4.As4()}) != nil {
		return false
	}
	return cookie(s) != 0 && cookie(s) != ownCookie()
}

func cookie(s int) uint64 {
	n, err := unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return n
}

// ownCookie is of a socket that nobody is asked about.
var ownCookie = sync.OnceValue(func() uint64 {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(s)
	return cookie(s)
})

// container is a program under a filter, with what its gate needs.
type container struct {
	t           testing.TB
	top         *testkit.Topology
	dir         string
	adoptSocket string
	group       *cgroup.Group
	programs    *cgroup.Group
	keepers     *cgroup.Group
	host        *netns.NS
	own         *netns.NS
	rules       []byte
	pool        *Pool
	idleAfter   time.Duration
	flags       []string // of the pool
	threads     int64    // of the program
	progress    *progress
	process     *launch.Process
	listener    *os.File      // of the process's filter
	ended       chan struct{} // closed when the program is gone
}

func newContainer(t testing.TB) *container {
	t.Helper()
	c := &container{t: t, idleAfter: IdleAfter, top: testkit.Build(t, testkit.Options{}), dir: t.TempDir()}
	c.adoptSocket = filepath.Join(c.dir, "adopt")
	own, err := cgroup.Own()
	c.must(err)
	c.group, err = cgroup.Create(own, fmt.Sprintf("gate-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	c.must(err)
	t.Cleanup(func() {
		for _, g := range []*cgroup.Group{c.programs, c.keepers, c.group} {
			if g != nil {
				err = errors.Join(err, g.Remove())
			}
		}
		c.must(err)
	})
	c.programs, err = cgroup.Create(c.group.Path(), "programs")
	c.must(err)
	c.keepers, err = cgroup.Create(c.group.Path(), "keepers")
	c.must(err)
	c.host, err = netns.Open(c.top.Host.Path())
	c.must(err)
	t.Cleanup(func() { c.host.Close() })
	c.own, err = netns.New()
	c.must(err)
	t.Cleanup(func() { c.own.Close() })
	c.enforce()
	return c
}

func (c *container) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// enforce lets the container's host sockets reach the remote.
func (c *container) enforce() {
	var set endpoint.Set
	ep, err := endpoint.Parse("ep type ipv4 addr " + testkit.HostAddr4.String() + " port dynamic")
	c.must(err)
	c.must(set.Add(ep))
	rule, err := policy.ParseEgress("198.51.100.0/24=ep", &set)
	c.must(err)
	table, err := policy.NewTable(nil, []policy.Egress{rule})
	c.must(err)
	netnsOf := func(*endpoint.Endpoint) uint64 { return c.host.Cookie() }
	dir, err := c.keepers.Open()
	c.must(err)
	defer dir.Close()
	enforced, err := enforcer.Enforce(dir, table, netnsOf)
	c.must(err)
	c.t.Cleanup(func() { enforced.Close() })
	c.rules = table.Snapshot(netnsOf)
}

// start starts the program with a gate, whose first supervisor is this process.
func (c *container) start(threads int, edit func(*Config)) *Gate {
	c.t.Helper()
	path := filepath.Join(c.dir, "progress")
	c.must(os.WriteFile(path, make([]byte, 4096), 0o600))
	var err error
	c.progress, err = openProgress(path)
	c.must(err)
	c.threads = int64(threads) + 1
	prog, err := filter.Build(runtime.GOARCH, filter.Options{Mode: filter.Seccomp})
	c.must(err)
	exe, err := os.Executable()
	c.must(err)
	dir, err := c.programs.Open()
	c.must(err)
	defer dir.Close()
	c.must(os.Setenv(programEnv, fmt.Sprint(path, " ", threads)))
	defer os.Unsetenv(programEnv)
	// Before Linux 5.19 a signal interrupts a trapped call, which is then made and counted again. Go
	// sends its own threads signals to preempt them.
	c.must(os.Setenv("GODEBUG", "asyncpreemptoff=1"))
	defer os.Unsetenv("GODEBUG")
	var g *Gate
	c.process, err = launch.Start(launch.Spec{
		Path: exe, Args: []string{"program"}, Netns: c.own.File(), CgroupDir: dir, Filter: prog, Caps: launch.Default,
	}, func(listener *os.File, _ int) (err error) {
		c.listener = listener
		g, err = Start(c.config(listener, edit))
		return err
	})
	c.must(err)
	c.ended = make(chan struct{})
	go func() {
		_, _ = unix.Wait4(c.process.PID, nil, 0, nil)
		close(c.ended)
	}()
	c.t.Cleanup(func() {
		if err := c.group.Kill(); err != nil {
			c.t.Error(err)
		}
		<-c.ended
		c.listener.Close()
	})
	return g
}

func (c *container) config(listener *os.File, edit func(*Config)) Config {
	dir, err := c.keepers.Open()
	c.must(err)
	c.t.Cleanup(func() { dir.Close() })
	binary := filepath.Join(testkit.BuildTsugiki(c.t), Program)
	if c.pool == nil {
		c.pool, err = startPool(binary, c.host, c.idleAfter, nil, 0, c.flags...)
		c.must(err)
		c.t.Cleanup(func() { c.pool.Close() })
	}
	config := Config{
		Binary: binary, Netns: c.host, Own: c.own, CgroupDir: dir,
		Listener: listener, AdoptSocket: c.adoptSocket, Pool: c.pool, Rules: c.rules, HostFirst4: true, Datagrams: true,
	}
	if edit != nil {
		edit(&config)
	}
	return config
}

// releaseListener lets the listener be the gate's alone: with its last holder, all
// waiting calls fail.
func (c *container) releaseListener() { c.must(c.listener.Close()) }

func (c *container) eventually(what string, check func() bool) {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		if !check() {
			p := c.progress
			return fmt.Errorf("%s: started %d, asked %d, own %d, wrong %d", what, p.started.Load(), p.asked.Load(), p.own.Load(), p.wrong.Load())
		}
		return nil
	})
}

// moves waits until a count has grown by n.
func (c *container) moves(what string, count *atomic.Uint64, n uint64) {
	c.t.Helper()
	want := count.Load() + n
	c.eventually(what, func() bool { return count.Load() >= want })
}

func (c *container) allRight() {
	c.t.Helper()
	if n := c.progress.wrong.Load(); n != 0 {
		c.t.Errorf("%d calls were answered wrongly", n)
	}
}

// helper is another process that wants to supervise, in a namespace.
type helper struct {
	c     *container
	cmd   *testkit.Cmd
	lines *bufio.Scanner
}

// helper starts one; it says what becomes of it.
func (c *container) helper(ns *testkit.Namespace, words ...string) *helper {
	c.t.Helper()
	cmd := ns.Command(c.t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), supervisorEnv+"="+strings.Join(append([]string{c.adoptSocket}, words...), " "))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	c.must(err)
	c.must(cmd.Start())
	return &helper{c, cmd, bufio.NewScanner(out)}
}

func (h *helper) says(want string) {
	h.c.t.Helper()
	if !h.lines.Scan() || h.lines.Text() != want {
		h.c.t.Fatalf("supervisor says %q, want %q", h.lines.Text(), want)
	}
}

func (h *helper) kill() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

// supervise adopts the gate of the socket args[0], writes down in the file args[2] what
// it is asked, and answers, unless args[1] says that it is to be mute, or is to hold what it is
// asked first. One that is "older" has calls go on, and tells the gate what versions told that knew no
// SetServed.
func supervise(args []string) int {
	g, err := Adopt(args[0], testkit.Patience)
	for name, target := range map[string]error{"taken": ErrTaken, "refused": ErrRefused, "gone": ErrGone} {
		if errors.Is(err, target) {
			fmt.Println(name)
			return 0
		}
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	value, flags := int64(answered), uint32(0)
	if args[1] == "older" {
		value, flags = 0, unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
		g.Set(Services)
	}
	fmt.Println("adopted")
	journal, err := os.OpenFile(args[2], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if args[1] == "mute" {
		for {
			s, err := g.Stats()
			if err != nil || s.Full > 0 {
				fmt.Println("full", s.Calls[Bind].Passed, err)
				select {}
			}
			time.Sleep(time.Millisecond)
		}
	}
	listener := g.TakeListener()
	defer listener.Close()
	ended := make(chan error)
	g.Serve(func(a Request) {
		// Lines that end where pages do: a write may be cut there by a kill.
		fmt.Fprintf(journal, "%-63s\n", fmt.Sprint(os.Getpid(), a.ID, a.Again, " ", a.Call))
		if args[1] == "hold" {
			fmt.Println("holds")
			select {}
		}
		go func() {
			runtime.Gosched() // others are taken meanwhile
			if err := reply(listener, a.ID, value, flags); err != nil && !errors.Is(err, unix.ENOENT) {
				fmt.Println(err)
			}
		}()
	}, nil, func(err error) { ended <- err })
	if err := <-ended; !errors.Is(err, ErrEnded) {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ended", g.EndedWell())
	return 0
}
