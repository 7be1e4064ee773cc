// Package gate starts tsugiki-gate processes and hears what they ask.
//
// A gate answers the notifications of one container's seccomp filter that need
// no thought (see native/gate) and passes the others on as Asks. This package
// owns the process and its control socket; it answers nothing and restarts
// nothing.
//
// Start needs root (CAP_SETPCAP, CAP_SYS_PTRACE, and write access to the
// cgroup), and Linux 5.14.
package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/programs"
)

// Program is the gate's file name.
const Program = "tsugiki-gate"

// helloWait is for a start on a loaded machine.
const helloWait = 10 * time.Second

// ErrProtocol says that the process is not the gate of this version.
var ErrProtocol = errors.New("gate speaks another protocol")

// Call is what a program called.
type Call uint32

// The calls, enum gate_call of native/gate/gate.h.
const (
	hello Call = iota
	Socket
	Connect
	Bind
	Listen
	Send
	SetOption
	GetOption
	GetName
)

func (c Call) String() string {
	if int(c) < len(callNames) {
		return callNames[c]
	}
	return "call " + strconv.Itoa(int(c))
}

var callNames = []string{
	"hello", "socket", "connect", "bind", "listen", "send", "setsockopt", "getsockopt", "getsockname",
}

// Ask is a call of a program that waits for an answer, or one that the gate has
// answered itself.
type Ask struct {
	Call     Call
	ID       uint64 // of the notification
	Thread   int    // the caller, as long as the notification is valid
	Number   int    // the descriptor; of Socket the address family
	Backlog  int    // of Listen
	Answered bool
	Address  []byte    // the sockaddr's beginning, as the program had it; may be cut short
	Args     [6]uint64 // of the call, as the program passed them
}

// The layout of struct gate_ask.
const (
	version    = 2
	askSize    = 112
	offAddress = 36
	offArgs    = 64
	addressMax = offArgs - offAddress
)

func parse(b []byte) (Ask, error) {
	e := binary.NativeEndian
	if len(b) != askSize || e.Uint32(b) != version {
		return Ask{}, fmt.Errorf("%w: message of %d bytes", ErrProtocol, len(b))
	}
	length := e.Uint32(b[32:])
	if length > addressMax {
		return Ask{}, fmt.Errorf("%w: address of %d bytes", ErrProtocol, length)
	}
	a := Ask{
		Call:     Call(e.Uint32(b[4:])),
		ID:       e.Uint64(b[8:]),
		Thread:   int(e.Uint32(b[16:])),
		Number:   int(int32(e.Uint32(b[20:]))),
		Backlog:  int(int32(e.Uint32(b[24:]))),
		Answered: e.Uint32(b[28:]) != 0,
		Address:  bytes.Clone(b[offAddress : offAddress+length]),
	}
	for i := range a.Args {
		a.Args[i] = e.Uint64(b[offArgs+8*i:])
	}
	return a, nil
}

// Config says where a gate lives and what it works with. The files and the
// namespace stay the caller's and may be closed after Start.
type Config struct {
	Netns     *netns.NS // the host's; nil: the caller's
	Own       *netns.NS // the program's
	CgroupDir *os.File  // cgroup2 directory it is born in; nil: the caller's
	Listener  *os.File  // of the container's seccomp filter
	Kill      *os.File  // cgroup.kill of the container, used if this process dies
	Rules     []byte    // policy.Table.Snapshot
	Born4     bool      // AF_INET sockets are made on the host at socket(2)
	Born6     bool      // AF_INET6 sockets likewise
	UID, GID  int       // of the program
	Datagrams bool      // each datagram with an address is decided about
	Report    bool      // also tell of calls that the gate answers itself
}

// Gate is a running gate process.
type Gate struct {
	cmd     *exec.Cmd
	ended   chan struct{} // closed when cmd has ended
	control *os.File
	board   *board
}

// Start starts a gate and waits until it serves.
func Start(c Config) (*Gate, error) {
	g, err := start(c)
	if err != nil {
		return nil, fmt.Errorf("start gate: %w", err)
	}
	return g, nil
}

func start(c Config) (*Gate, error) {
	path, err := programs.Find(Program)
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "gate control")
	defer theirs.Close()
	// Non-blocking, so that it can be waited for with a deadline and be closed.
	if err := unix.SetNonblock(pair[0], true); err != nil {
		unix.Close(pair[0])
		return nil, err
	}
	g := &Gate{control: os.NewFile(uintptr(pair[0]), "gate control"), ended: make(chan struct{})}
	if g.board, err = newBoard(c.Own.Cookie(), c.Rules); err != nil {
		return nil, errors.Join(err, g.control.Close())
	}
	if c.Report {
		g.board.set(wordTraced)
	}
	if c.Born4 {
		*g.board.word(wordBorn) |= 1
	}
	if c.Born6 {
		*g.board.word(wordBorn) |= 2
	}
	if c.Datagrams {
		g.board.set(wordDatagrams)
	}
	g.cmd = command(path, c, theirs, c.Listener, g.board.file, c.Kill)
	var stderr bytes.Buffer
	g.cmd.Stderr = &stderr
	if c.Netns != nil {
		err = c.Netns.Do(g.cmd.Start)
	} else {
		err = g.cmd.Start()
	}
	theirs.Close()
	if err != nil {
		return nil, errors.Join(err, g.control.Close(), g.board.close())
	}
	go func() {
		_ = g.cmd.Wait() // how it ended is in ProcessState
		close(g.ended)
	}()
	err = g.awaitHello()
	if err == nil {
		err = g.board.seal() // the gate has mapped it
	}
	if err != nil {
		_ = g.Close()
		if text := strings.TrimSpace(stderr.String()); text != "" {
			err = errors.New(text)
		}
		return nil, err
	}
	return g, nil
}

func command(path string, c Config, files ...*os.File) *exec.Cmd {
	cmd := exec.Command(path, "--own", strconv.FormatUint(c.Own.Inode(), 10),
		"--uid", strconv.Itoa(c.UID), "--gid", strconv.Itoa(c.GID))
	if c.Report {
		cmd.Args = append(cmd.Args, "--report")
	}
	cmd.Dir = "/"
	cmd.Env = []string{}
	cmd.ExtraFiles = files // from 3
	// Not a session of its own: the scheduler would take it for a group apart
	// (autogroup, sched(7)), and it takes turns with the program.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.CgroupDir != nil {
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(c.CgroupDir.Fd())
	}
	return cmd
}

func (g *Gate) awaitHello() error {
	if err := g.control.SetReadDeadline(time.Now().Add(helloWait)); err != nil {
		return err
	}
	a, err := g.Next()
	if err != nil {
		return fmt.Errorf("wait for its greeting: %w", err)
	}
	if a.Call != hello {
		return ErrProtocol
	}
	return g.control.SetReadDeadline(time.Time{})
}

// Next waits for the next Ask. It returns io.EOF once the gate has ended, and
// os.ErrClosed after Close.
func (g *Gate) Next() (Ask, error) {
	var buf [askSize + 1]byte
	n, err := g.control.Read(buf[:])
	if err != nil {
		return Ask{}, err
	}
	if n == 0 {
		return Ask{}, io.EOF
	}
	return parse(buf[:n])
}

// SetOwnSockets lets the gate know that from now on some sockets of the
// container are in its own namespace. It takes effect before it returns.
func (g *Gate) SetOwnSockets() { g.board.set(wordOwnSockets) }

// SetServices lets the gate know that from now on the container serves ports on
// the host. It takes effect before it returns.
func (g *Gate) SetServices() { g.board.set(wordServices) }

// SetBoundClients lets the gate and the shims know that from now on a client's
// socket that is bound may need another source. It takes effect before it returns.
func (g *Gate) SetBoundClients() { g.board.set(wordBound) }

// SetAPI lets the gate and the shims know that from now on the container has
// AF_GRAFT sockets. It takes effect before it returns.
func (g *Gate) SetAPI() { g.board.set(wordAPI) }

// SetRules changes the rules, a policy.Table.Snapshot. It takes effect before it
// returns.
func (g *Gate) SetRules(image []byte) error { return g.board.setRules(image) }

// PID is the gate's process id.
func (g *Gate) PID() int { return g.cmd.Process.Pid }

// EndedWell waits for the process to end and tells whether it did so because
// the last process of its container had.
func (g *Gate) EndedWell() bool {
	<-g.ended
	return g.cmd.ProcessState.Success()
}

// Close ends the process. Calls that wait for it, or come later, wait for ever:
// the container's processes are to be killed first, or at once after.
func (g *Gate) Close() error {
	_ = g.cmd.Process.Kill()
	<-g.ended
	return errors.Join(g.control.Close(), g.board.close())
}
