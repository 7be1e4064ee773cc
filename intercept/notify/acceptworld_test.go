package notify

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
	"github.com/tsugiki/tsugiki/internal/sys/seccomp"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/sys/tracee"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// Programs that wait in accept(2) on a listener of two network namespaces. But for "once", signals interrupt calls
// that are trapped (no WAIT_KILLABLE_RECV).

// acceptEnv makes the test's program such a program. Its value is what the program does.
const acceptEnv = "NOTIFY_TEST_ACCEPT"

// acceptListener is the number of the listener in the program.
const acceptListener = 3

// acceptUnderFilter has accept4(2), or socket(2) or connect(2), trapped, writes the number of the filter's listener, and begins once
// it hears that this was taken.
func acceptUnderFilter(what string) int {
	runtime.LockOSThread()
	if what == "worker" {
		return acceptAlways(nil)
	}
	code := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_ACCEPT4, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	switch what {
	case "sockets":
		code[1].K = unix.SYS_SOCKET
	case "connect":
		code[1].K = unix.SYS_CONNECT
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	flags := uintptr(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	if what == "once" && waitsKillably() {
		flags |= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return 2
	}
	fmt.Println(fd)
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return 3
	}
	unix.Close(int(fd))
	var workers int
	switch n, _ := fmt.Sscanf(what, "workers %d", &workers); {
	case n == 1:
		return startWorkers(workers)
	case what == "full":
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: 1024})
		acceptOnce()
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: 1024})
		return acceptAlways(nil)
	case what == "once":
		acceptOnce()
		return 0
	case what == "sockets":
		return makeSockets(interrupt)
	case what == "connect":
		return connectOnce()
	case what == "again":
		acceptOnce()
		return acceptAlways(nil)
	}
	return acceptAlways(interrupt)
}

// acceptOnce writes how accept4(2) ends.
func acceptOnce() {
	c, _, err := unix.Accept4(acceptListener, 0)
	fmt.Println(c, err)
}

// waitsKillably tells whether the kernel knows WAIT_KILLABLE_RECV. With flags that it knows, the call fails at the
// missing filter.
func waitsKillably() bool {
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, 0)
	return errno == unix.EFAULT
}

// startWorkers starts processes under the filter of the calling thread, and waits for them.
func startWorkers(n int) int {
	var workers []*exec.Cmd
	for range n {
		c := exec.Command("/proc/self/exe")
		c.Env = []string{acceptEnv + "=worker"}
		c.ExtraFiles = []*os.File{os.NewFile(acceptListener, "listener")}
		c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := c.Start(); err != nil {
			return 4
		}
		workers = append(workers, c)
	}
	for _, c := range workers {
		_ = c.Wait()
	}
	return 0
}

// acceptAlways writes a byte to each connection and closes it. beside, which may be nil, runs
// meanwhile. After the last connection, whose client says so, it writes how many sockets are left.
func acceptAlways(beside func(tid int, accepted *atomic.Int64)) int {
	var accepted atomic.Int64
	before := socketsOpen()
	if beside != nil {
		go beside(unix.Gettid(), &accepted)
	}
	for {
		c, _, err := unix.Accept4(acceptListener, 0)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		accepted.Add(1)
		said := make([]byte, 1)
		if n, _ := unix.Read(c, said); n != 1 {
			fmt.Println("a client said nothing")
			return 1
		}
		if _, err := unix.Write(c, []byte("x")); err != nil {
			fmt.Println(err)
			return 1
		}
		unix.Close(c)
		if said[0] == 'e' {
			fmt.Println(socketsOpen()-before, "are left")
			return 0
		}
	}
}

// makeSockets makes sockets and closes them. Then it writes how many are left.
func makeSockets(beside func(tid int, made *atomic.Int64)) int {
	var made atomic.Int64
	before := socketsOpen()
	go beside(unix.Gettid(), &made)
	for made.Load() < 1000 {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		unix.Close(s)
		made.Add(1)
	}
	fmt.Println(socketsOpen()-before, "are left")
	return 0
}

func socketsOpen() (n int) {
	list, _ := filepath.Glob("/proc/self/fd/*")
	for _, file := range list {
		if to, _ := os.Readlink(file); strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// interrupt sends a thread a signal at some time of each of its calls; not more, else no call ends on a
// slow machine.
func interrupt(tid int, accepted *atomic.Int64) {
	for last := int64(-1); ; {
		time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		if now := accepted.Load(); now != last {
			_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
			last = now
		}
	}
}

// acceptPlace makes sockets in this process.
type acceptPlace struct{ *netns.NS }

func (p acceptPlace) Maker() (graft.SocketMaker, error) { return p, nil }

func (p acceptPlace) Socket(k keeper.Kind) (file int, err error) {
	err = p.Do(func() error {
		file, err = unix.Socket(k.Family, k.Type|unix.SOCK_CLOEXEC, k.Protocol)
		return err
	})
	return file, err
}

func (acceptPlace) EpollAdd(int, int, int, uint32, uint64) error { return unix.ENOSYS }
func (acceptPlace) EpollDel(int, int, int) error                 { return unix.ENOSYS }

// acceptEnforcer knows one server, at serverAt. It counts how often the engine handles accept(2).
type acceptEnforcer struct {
	graft.Enforcer
	netns, cgroup uint64
	passes        atomic.Int64
}

var serverAt = netip.MustParseAddrPort("127.0.0.1:80")

// pathAt leads to a server at a path.
var pathAt = netip.MustParseAddrPort("203.0.113.9:80")

func (e *acceptEnforcer) BoundTo(int) (netip.AddrPort, bool) {
	e.passes.Add(1)
	return serverAt, true
}

func (e *acceptEnforcer) Services() ([]policy.Service, error) {
	return []policy.Service{{Protocol: unix.IPPROTO_TCP, Port: serverAt.Port(), Is4: true, Host: serverAt, Netns: e.netns}}, nil
}
func (e *acceptEnforcer) Published() ([]netip.AddrPort, error) { return nil, nil }
func (e *acceptEnforcer) AFGraft(int) (afgraft.State, bool, error) {
	return afgraft.State{}, false, nil
}
func (e *acceptEnforcer) SetAFGraft(int, afgraft.State) error { return nil }
func (e *acceptEnforcer) Cgroup() uint64                      { return e.cgroup }
func (e *acceptEnforcer) Mark() uint32                        { return 0 }
func (e *acceptEnforcer) Sourced() bool                       { return false }

// acceptWorld is a program under a filter, and who supervises it without a gate.
type acceptWorld struct {
	t         *testing.T
	s         *Supervisor
	enforcer  *acceptEnforcer
	host, own *netns.NS
	listener  int // of the server
	said      *bufio.Scanner
	process   *os.Process
	released  time.Time                    // when the program was told to begin
	fault     atomic.Pointer[error]        // of the next call that needs the program's memory
	last      atomic.Pointer[gate.Request] // the latest call
	log       *pausingLog                  // of the supervisor, if the program connects
}

func (w *acceptWorld) openMemory(tid int) (*tracee.Memory, error) {
	if fault := w.fault.Swap(nil); fault != nil {
		return nil, *fault
	}
	return tracee.OpenMemory(tid)
}

func newAcceptWorld(t *testing.T, what string, limit time.Duration) *acceptWorld {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	w := &acceptWorld{t: t, enforcer: &acceptEnforcer{}}
	for _, ns := range []**netns.NS{&w.host, &w.own} {
		var err error
		*ns, err = netns.New()
		w.must(err)
		t.Cleanup(func() { (*ns).Close() })
	}
	dir, err := cgroup.Own()
	w.must(err)
	var st unix.Stat_t
	w.must(unix.Stat(dir, &st))
	w.enforcer.cgroup, w.enforcer.netns = st.Ino, w.host.Cookie()
	w.listener, err = acceptPlace{w.host}.Socket(keeper.Kind{Family: unix.AF_INET, Type: unix.SOCK_STREAM})
	w.must(err)
	t.Cleanup(func() { unix.Close(w.listener) })
	w.must(errors.Join(unix.Bind(w.listener, sockaddr.Of(serverAt)), unix.Listen(w.listener, 100)))
	tv := unix.NsecToTimeval(limit.Nanoseconds())
	w.must(unix.SetsockoptTimeval(w.listener, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
	parser := policy.Parser{Endpoints: &endpoint.Set{}}
	at := filepath.Join(t.TempDir(), "s")
	server, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	w.must(err)
	t.Cleanup(func() { unix.Close(server) })
	w.must(errors.Join(unix.Bind(server, &unix.SockaddrUnix{Name: at}), unix.Listen(server, 1)))
	path, err := endpoint.Parse("path type unix path " + at)
	w.must(err)
	w.must(parser.Endpoints.Add(path))
	in, err := parser.Ingress("0.0.0.0:80+own=127.0.0.1:80")
	w.must(err)
	out, err := parser.Egress(pathAt.String() + "=path")
	w.must(err)
	table, err := policy.NewTable(in, out)
	w.must(err)
	engine := graft.New(graft.Config{
		Enforcer: w.enforcer, Own: acceptPlace{w.own}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Know: func(graft.Hint) {}, Serves: func(uint16) {},
	}, graft.Rules{Table: table, Host: map[string]graft.Place{"": acceptPlace{w.host}}})
	w.must(engine.Recover())
	t.Cleanup(engine.CloseOwn)
	var log slog.Handler = slog.NewTextHandler(t.Output(), nil)
	if what == "connect" {
		w.log = &pausingLog{Handler: log, answered: make(chan struct{}), goOn: make(chan struct{})}
		log = w.log
	}
	w.s = &Supervisor{engine: engine, slots: NewPool().NewSlots(), log: slog.New(log), threads: newThreads(), stop: make(chan struct{}), openMemory: w.openMemory}
	w.start(what)
	return w
}

func (w *acceptWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// start starts the program, and serves its calls until the test ends.
func (w *acceptWorld) start(what string) {
	w.t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), acceptEnv+"="+what)
	inherited, err := unix.FcntlInt(uintptr(w.listener), unix.F_DUPFD_CLOEXEC, 0)
	w.must(err)
	c.ExtraFiles = []*os.File{os.NewFile(uintptr(inherited), "listener")}
	out, err := c.StdoutPipe()
	w.must(err)
	in, err := c.StdinPipe()
	w.must(err)
	w.must(c.Start())
	w.must(c.ExtraFiles[0].Close())
	w.process = c.Process
	w.said = bufio.NewScanner(out)
	var number int
	_, err = fmt.Sscan(w.hears(), &number)
	w.must(err)
	process, err := pidfd.OpenFD(c.Process.Pid)
	w.must(err)
	defer process.Close()
	file, err := process.File(number)
	w.must(err)
	w.s.listener = seccomp.Listener(file)
	var serving sync.WaitGroup
	serving.Go(w.serve)
	w.t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		serving.Wait() // all processes under the filter have ended
		w.s.End()
		<-w.s.Handled()
		unix.Close(file)
	})
	w.released = time.Now()
	_, err = in.Write([]byte{0})
	w.must(err)
}

// hears returns a line of the program.
func (w *acceptWorld) hears() string {
	w.t.Helper()
	if !w.said.Scan() {
		w.t.Fatalf("the program ends: %v", w.said.Err())
	}
	return strings.TrimSpace(w.said.Text())
}

func (w *acceptWorld) serve() {
	for {
		n, err := w.s.listener.Receive()
		if err != nil {
			return
		}
		r := gate.Request{Call: gate.GetName, Name: gate.AcceptName, ID: n.ID, Thread: int(n.Thread), Number: int(int32(n.Args[0])), Args: n.Args}
		switch n.Number {
		case unix.SYS_SOCKET:
			r.Call = gate.Socket
		case unix.SYS_CONNECT:
			r.Call, r.Address = gate.Connect, sockaddr.Bytes(pathAt)
		}
		w.last.Store(&r)
		w.s.begin(r, time.Now(), nil)
	}
}

// asks is a client of the server, which says something and has to hear something.
func (w *acceptWorld) asks(from *netns.NS, word string) error {
	return from.Do(func() error {
		c, err := net.DialTimeout("tcp", serverAt.String(), testkit.Patience)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
			return err
		}
		if _, err := io.WriteString(c, word); err != nil {
			return err
		}
		got, err := io.ReadAll(c)
		if err == nil && string(got) != "x" {
			err = fmt.Errorf("the server says %q", got)
		}
		return err
	})
}

// waiters waits until so many calls wait.
func (w *acceptWorld) waiters(n int) {
	w.t.Helper()
	testkit.Eventually(w.t, func() error {
		if got := len(w.s.waiting.all()); got != n {
			return fmt.Errorf("%d calls wait, want %d", got, n)
		}
		return nil
	})
}

// counts checks how many calls the supervisor has counted.
func (w *acceptWorld) counts(answered, refused uint64) {
	w.t.Helper()
	if c := w.s.Stats().Calls[gate.GetName]; c.Answered != answered || c.Refused != refused {
		w.t.Errorf("%d calls are counted, %d refused; want %d, %d", c.Answered, c.Refused, answered, refused)
	}
}
