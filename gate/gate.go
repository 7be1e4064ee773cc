// Package gate starts tsugiki-gate processes, receives their requests, and gives them orders.
//
// A gate answers the simple notifications of one container's seccomp filter (see gate/c) and passes
// the others on as Requests. This package owns the process and its control socket. It answers no
// Requests and restarts no gates.
//
// When its supervisor has gone, a gate either kills its container (Config.Kill), or goes on and
// waits for the next supervisor (Config.AdoptSocket, Adopt). A gate of the second kind belongs to a
// Pool, and has a process only while it is not idle.
//
// Start needs root (CAP_SETPCAP, CAP_SYS_PTRACE, and write access to the
// cgroup), and Linux 5.14.
package gate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tsugiki/tsugiki/internal/sys/fdpass"
	"github.com/tsugiki/tsugiki/internal/sys/forks"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/programs"
)

// Program is the gate's file name.
const Program = "tsugiki-gate"

// helloWait limits the start of a gate on a loaded machine.
const helloWait = 10 * time.Second

var (
	// ErrProtocol says that the process is not a gate of this version.
	ErrProtocol = errors.New("gate speaks another protocol; it was started by another version")
	// ErrEnded says that the gate has ended because the last process of its container has ended.
	ErrEnded = fmt.Errorf("the container has ended: %w", io.EOF)
)

// Config has the cgroup, the namespaces, the files and the options of a gate. The caller keeps the
// files and namespaces, and may close them after Start.
type Config struct {
	Binary    string    // "" looks in the usual places
	Netns     *netns.NS // the host's; nil: the caller's
	Own       *netns.NS // the program's
	CgroupDir *os.File  // cgroup2 directory it starts in; nil: the caller's
	Listener  *os.File  // of the container's seccomp filter
	// Kill is cgroup.kill of the container. The gate uses it if this process dies. Without Kill,
	// the following fields count:
	Kill *os.File
	// AdoptSocket is the path of the adoption socket, which Start makes. The gate waits there for
	// the next supervisor when this one has gone.
	AdoptSocket string
	Pool        *Pool  // with an AdoptSocket; Binary and Netns then come from the pool
	Rules       []byte // policy.Table.Snapshot; nil: the gate asks about each call
	HostFirst4  bool   // AF_INET sockets are made on the host at socket(2)
	HostFirst6  bool   // AF_INET6 sockets are made on the host at socket(2)
	UID, GID    int    // of the program
	Datagrams   bool   // each datagram with an address needs a decision
	// Untrapped says that the kernel programs decide about connect, sends and listen.
	// UntrappedPort0 says that they also decide about a bind to port 0 of a wildcard or a loopback
	// address.
	Untrapped, UntrappedPort0 bool
	// Translated is the pool of virtual addresses, of 15 bits, if IPv4 is translated: the supervisor
	// decides about what the gate and the kernel programs do not know.
	Translated netip.Prefix
	// Relayed says that the supervisor relays connections that a program accepts. It needs Translated.
	Relayed bool
	Report  bool // from the start, report also calls that the gate answers itself
}

// Gate is a running gate process whose supervisor is this process. Many goroutines may call its
// methods at once.
type Gate struct {
	*control
	process     process
	adoptSocket string // "": none; else the gate belongs to a pool

	// Only of an adopted gate.
	listener *os.File
	own      *netns.NS
}

// process is the process of a gate: a child, or the present process of a pool's gate.
type process interface {
	kill()
	wait()      // until it has ended
	well() bool // after the end: whether it ended with status 0, if that is known
}

// child is a gate that this process has started.
type child struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when cmd has ended
}

func (c *child) kill()      { _ = c.cmd.Process.Kill() } // or it has ended
func (c *child) wait()      { <-c.ended }
func (c *child) well() bool { return c.cmd.ProcessState.Success() }

// pooled is a gate of a pool, whose processes come and go. The gate ends with its end of the
// control socket, which nobody else has.
type pooled struct{ *control }

// kill sends an order, which also reaches an idle gate. A stopped gate is killed with its cgroup,
// which is the caller's task.
func (p pooled) kill() { _ = p.tell(opEnd, 0) }

// endPatience limits the wait for the end of a gate that was ordered to end.
const endPatience = 5 * time.Second

func (p pooled) wait() { <-p.read }

// well is unknown, because the process is another's child. Its GATE_BYE message tells instead.
func (p pooled) well() bool { return false }

// Start starts a gate and waits until it serves. If the program has ended by then, the error is
// ErrEnded.
func Start(c Config) (*Gate, error) {
	g, err := start(c)
	if err != nil {
		return nil, fmt.Errorf("start gate: %w", err)
	}
	return g, nil
}

func start(c Config) (*Gate, error) {
	if (c.Kill == nil) == (c.AdoptSocket == "") || (c.Pool == nil) != (c.AdoptSocket == "") {
		return nil, errors.New("it needs either cgroup.kill, or an adoption socket and a pool")
	}
	if c.AdoptSocket != "" {
		return c.Pool.start(c)
	}
	path, err := find(c.Binary)
	if err != nil {
		return nil, err
	}
	return startProcess(path, c)
}

func find(binary string) (string, error) {
	if binary != "" {
		return binary, nil
	}
	return programs.Find(Program)
}

// makeAdoptSocket binds the socket. The pool listens on it later; until then nobody can connect.
func makeAdoptSocket(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "adoption socket of gate")
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		f.Close()
		return nil, fmt.Errorf("make adoption socket %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	return f, nil
}

func startProcess(path string, c Config) (*Gate, error) {
	conn, theirs, err := fdpass.Pair("gate control")
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := command(path, c, theirs)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = startIn(c.Netns, cmd)
	theirs.Close()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	p := &child{cmd, make(chan struct{})}
	pidfd.OnEnd(cmd.Process.Pid, func() {
		_ = cmd.Wait() // ProcessState says how it ended
		close(p.ended)
	})
	g := &Gate{control: newControl(conn), process: p}
	return g, g.begin(c, stderr.String)
}

func startIn(ns *netns.NS, cmd *exec.Cmd) error {
	if ns != nil {
		return ns.Do(func() error { return forks.Start(cmd) })
	}
	return forks.Start(cmd)
}

// begin waits until a new gate serves. If the gate does not serve, begin closes it. complaint then
// returns the gate's message why it could not serve, once the gate has ended.
func (g *Gate) begin(c Config, complaint func() string) error {
	_, err := g.awaitHello(helloWait)
	g.control.start()
	if err == nil {
		err = g.prepare(c)
	}
	if err == nil {
		return nil
	}
	_ = g.Close()
	if g.EndedWell() {
		return ErrEnded
	}
	if text := strings.TrimSpace(complaint()); text != "" {
		return errors.New(text)
	}
	return err
}

func command(path string, c Config, control *os.File) *exec.Cmd {
	cmd := exec.Command(path, "--own", strconv.FormatUint(c.Own.Inode(), 10),
		"--cookie", strconv.FormatUint(c.Own.Cookie(), 10),
		"--uid", strconv.Itoa(c.UID), "--gid", strconv.Itoa(c.GID))
	for _, flag := range []struct {
		is   bool
		name string
	}{
		{c.HostFirst4, "--host-first4"},
		{c.HostFirst6, "--host-first6"},
		{c.Datagrams, "--datagrams"},
		{c.Untrapped, "--untrapped"},
		{c.UntrappedPort0, "--untrapped-port-0"},
		{c.Relayed, "--relayed"},
	} {
		if flag.is {
			cmd.Args = append(cmd.Args, flag.name)
		}
	}
	if c.Translated.IsValid() {
		cmd.Args = append(cmd.Args, "--translated", strconv.FormatUint(uint64(firstOf(c.Translated)), 10))
	}
	apart(cmd, control, c.Listener, c.Kill)
	if c.CgroupDir != nil {
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(c.CgroupDir.Fd())
	}
	return cmd
}

// apart gives a process nothing of this process except files, from number 3 on.
func apart(cmd *exec.Cmd, files ...*os.File) {
	cmd.Dir = "/"
	cmd.Env = []string{}
	cmd.ExtraFiles = files
	// Not a session of its own: the scheduler would treat it as a separate group (autogroup,
	// sched(7)), but it takes turns with the program.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// awaitHello reads the gate's greeting and the files that come with it.
func (g *Gate) awaitHello(patience time.Duration) ([]*os.File, error) {
	if err := g.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	buf, space := make([]byte, messageMax+1), make([]byte, unix.CmsgSpace(4*2)+unix.CmsgSpace(unix.SizeofUcred))
	n, oobn, _, err := fdpass.ReadMsg(g.conn, buf, space)
	files := fdpass.Files(space[:oobn], "file from gate")
	if err == nil {
		err = g.conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		closeAll(files)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = ErrSilent
		}
		return nil, fmt.Errorf("wait for its greeting: %w", err)
	}
	a, err := parse(buf[:n])
	if err == nil {
		switch a.Call {
		case hello:
			if len(files) == 0 && a.Number != 0 {
				return borrow(a, space[:oobn])
			}
			return files, nil
		case taken:
			err = ErrTaken
		case refused:
			err = ErrRefused
		default:
			err = ErrProtocol
		}
	}
	closeAll(files)
	return nil, err
}

// prepare gives a new gate the configuration that is not on its command line.
func (g *Gate) prepare(c Config) error {
	if c.Report {
		g.SetTraced(true)
	}
	if c.Rules == nil {
		return nil
	}
	return g.SetRules(c.Rules)
}

// TakeListener returns the file of the container's seccomp filter from an adopted gate; nil for
// other gates. The caller owns the file from then on, because calls may be answered for longer than
// the Gate is open.
func (g *Gate) TakeListener() *os.File {
	l := g.listener
	g.listener = nil
	return l
}

// Own returns the program's network namespace from an adopted gate; nil for other gates. It is
// closed with the Gate.
func (g *Gate) Own() *netns.NS { return g.own }

// Serve calls take for each Request, one after the other, including earlier ones. If many have not
// been taken yet, Serve forgets those whose callers do not wait any more, as waits tells
// (SECCOMP_IOCTL_NOTIF_ID_VALID). Then it calls ended once: with ErrEnded if the gate has ended
// with its container, with io.EOF if the gate was killed or closed, and with os.ErrClosed after
// Stop or Release. After these two, it calls take only for Requests that the gate has answered
// before.
func (g *Gate) Serve(take func(Request), waits func(id uint64) bool, ended func(error)) {
	g.serve(take, waits, ended)
}

// Ended returns a channel that is closed when the gate has ended or this end is closed: no more
// messages come from the gate.
func (g *Gate) Ended() <-chan struct{} { return g.read }

// Set tells the gate and the shims that w is true from now on. It takes effect before it returns.
func (g *Gate) Set(w Word) { g.set(w) }

// SetTraced begins or ends tracing. While a container is traced, the gate also reports the calls that
// it answers itself, and the shims decide nothing. It takes effect before it returns, and ends with
// this supervisor.
func (g *Gate) SetTraced(on bool) {
	var value uint32
	if on {
		value = 1
	}
	_, _ = g.order(order{op: opSet, word: uint32(traced), value: value}) // a gate that has gone reports nothing
}

// SetRules changes the rules, a policy.Table.Snapshot. It takes effect before it returns; or, if
// the error is ErrSilent, when the gate goes on. On another error, the gate asks about each call
// that rules would decide.
func (g *Gate) SetRules(image []byte) error {
	if err := g.setRules(image); err != nil {
		return fmt.Errorf("change rules of gate: %w", err)
	}
	return nil
}

// Stats asks the gate for its counters. For a gate that has ended with its container, it returns
// the last ones.
func (g *Gate) Stats() (Stats, error) {
	a, err := g.order(order{op: opStats})
	if last := g.last.Load(); err != nil && last != nil {
		return *last, nil
	}
	if err == nil && a.stats == nil {
		err = ErrProtocol
	}
	if err != nil {
		return Stats{}, fmt.Errorf("ask gate for statistics: %w", err)
	}
	return *a.stats, nil
}

// EndedWell waits for the end of the process and tells whether it ended because the last process of
// its container had ended.
func (g *Gate) EndedWell() bool {
	g.process.wait()
	<-g.read // its last messages may be on the way
	return g.bye.Load() || g.process.well()
}

// Stop ends the Requests with os.ErrClosed. The gate still carries out orders. It sends Requests
// that nobody has taken to the next supervisor.
func (g *Gate) Stop() { g.stop(os.ErrClosed) }

// Release lets go of a gate that has an adoption socket. The gate goes on, and waits there.
func (g *Gate) Release() error {
	if g.adoptSocket == "" {
		return errors.New("release gate: it has no adoption socket, and would kill its container")
	}
	return g.letGo()
}

// Close ends the process and removes its adoption socket. Present and later calls wait for ever:
// the caller has to kill the container's processes before Close or immediately after. Requests that
// have come by then are taken.
func (g *Gate) Close() error {
	g.process.kill()
	err := g.awaitEnd()
	err = errors.Join(err, g.letGo())
	if g.adoptSocket != "" {
		if rerr := os.Remove(g.adoptSocket); !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// awaitEnd waits for the end of a gate that was ordered to end or killed, and for its last
// messages.
func (g *Gate) awaitEnd() error {
	ended := make(chan struct{})
	go func() {
		g.process.wait()
		<-g.read
		close(ended)
	}()
	late := time.NewTimer(endPatience)
	defer late.Stop()
	select {
	case <-ended:
		return nil
	case <-late.C:
		return fmt.Errorf("gate does not end %s", g.adoptSocket)
	}
}

func (g *Gate) letGo() error {
	g.stop(os.ErrClosed)
	err := g.control.close()
	if g.listener != nil {
		err = errors.Join(err, g.listener.Close())
	}
	if g.own != nil {
		err = errors.Join(err, g.own.Close())
	}
	return err
}
