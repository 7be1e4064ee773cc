package gate

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
)

var (
	// ErrGone says that the gate of an adoption socket has ended with its container.
	ErrGone = errors.New("the gate is gone")
	// ErrTaken says that a gate has a supervisor already.
	ErrTaken = errors.New("the gate has a supervisor already")
	// ErrRefused says that the gate does not accept this process as a supervisor.
	ErrRefused = errors.New("the gate lets in only root, in the network namespace that is the container's host")
)

// Adopt makes this process the supervisor of a gate whose former supervisor has gone or has
// released it. The gate repeats requests that the former supervisor has not answered. If the gate
// does not greet within patience, Adopt leaves it alone and returns ErrSilent.
//
// A gate that closes the connection may lack memory for its greeting, so Adopt connects again. Only
// a gate that has ended refuses that.
func Adopt(socket string, patience time.Duration) (*Gate, error) {
	deadline := time.Now().Add(patience)
	for {
		g, err := adopt(socket, time.Until(deadline))
		if err == nil {
			return g, nil
		}
		if !hungUp(err) {
			return nil, fmt.Errorf("adopt gate at %s: %w", socket, err)
		}
		time.Sleep(adoptAgain) // a gate that ends takes a moment, too
	}
}

// adoptAgain is the pause before the next connection to a gate that has closed one.
const adoptAgain = 5 * time.Millisecond

// hungUp tells whether an error says that the gate has closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// adopt tries it once. When patience is over, it connects and returns ErrGone or ErrSilent.
func adopt(socket string, patience time.Duration) (*Gate, error) {
	conn, err := dial(socket)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		return nil, ErrGone
	}
	if errors.Is(err, unix.EAGAIN) { // the backlog is full: a gate that does not answer
		return nil, ErrSilent
	}
	if err != nil {
		return nil, err
	}
	g := &Gate{control: newControl(conn), adoptSocket: socket}
	g.process = pooled{g.control}
	files, err := g.awaitHello(patience)
	if raw, rerr := conn.SyscallConn(); rerr == nil {
		_ = passCredentials(raw, 0) // later messages need none
	}
	g.control.start()
	if err == nil {
		err = g.takeFiles(files)
	}
	// The gate may close the connection after its greeting.
	if err == nil {
		_, err = g.Stats()
	}
	if err == nil {
		return g, nil
	}
	return nil, errors.Join(err, g.letGo())
}

// dial connects to an adoption socket. The gate's process id comes with its answer
// (SCM_CREDENTIALS). It differs from that of the process that listens.
func dial(socket string) (*net.UnixConn, error) {
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error { return passCredentials(raw, 1) }}
	conn, err := d.Dial("unixpacket", socket)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

func passCredentials(raw syscall.RawConn, on int) error {
	var err error
	cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, on) })
	return errors.Join(cerr, err)
}

// borrow takes files by their numbers out of a gate that could not send them. It needs
// CAP_SYS_PTRACE.
func borrow(a Request, space []byte) ([]*os.File, error) {
	pid, err := senderOf(space)
	if err != nil {
		return nil, err
	}
	process, err := pidfd.OpenFD(pid)
	if err != nil {
		return nil, err
	}
	defer process.Close()
	var files []*os.File
	for _, number := range []int{a.Number, a.Backlog} {
		fd, err := process.File(number)
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("take file %d out of process %d: %w", number, pid, err)
		}
		files = append(files, os.NewFile(uintptr(fd), "file of gate"))
	}
	return files, nil
}

func senderOf(space []byte) (pid int, err error) {
	messages, err := unix.ParseSocketControlMessage(space)
	if err != nil {
		return 0, err
	}
	for i := range messages {
		if cred, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			return int(cred.Pid), nil
		}
	}
	return 0, fmt.Errorf("%w: nobody has sent it", ErrProtocol)
}

// takeFiles takes the listener and the program's namespace. A process that has no room for them gets
// the greeting without them.
func (g *Gate) takeFiles(files []*os.File) (err error) {
	if len(files) != 2 {
		closeAll(files)
		return fmt.Errorf("%d files came with its greeting, want 2", len(files))
	}
	g.listener = files[0]
	g.own, err = netns.FromFile(files[1])
	return err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
