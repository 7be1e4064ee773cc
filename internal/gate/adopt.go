package gate

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/programs"
)

var (
	// ErrGone says that the gate of a door has ended, and its container with it.
	ErrGone = errors.New("the gate is gone")
	// ErrTaken says that a gate has a supervisor.
	ErrTaken = errors.New("the gate has a supervisor already")
	// ErrRefused says that the gate takes this process for none of its supervisors.
	ErrRefused = errors.New("the gate lets in only root, in the network namespace that is the container's host")
)

// Adopt becomes the supervisor of a gate whose former one is gone, or has released
// it. What that one has left unanswered is asked again.
func Adopt(door string) (*Gate, error) {
	g, err := adopt(door)
	if err != nil {
		return nil, fmt.Errorf("adopt gate at %s: %w", door, err)
	}
	return g, nil
}

func adopt(door string) (*Gate, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: door})
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, err
	}
	g := &Gate{control: newControl(conn), door: door}
	process, err := openPeer(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	g.process = process
	files, err := g.awaitHello()
	go g.run()
	if err == nil {
		err = g.takeFiles(files)
	}
	// Whose id it was when the process was opened has ended since, or answers now.
	if err == nil {
		_, err = g.Stats()
	}
	if err == nil {
		return g, nil
	}
	if cerr := g.letGo(); cerr != nil {
		err = errors.Join(err, cerr)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return nil, ErrGone
	}
	return nil, err
}

// takeFiles takes the listener and the program's namespace.
func (g *Gate) takeFiles(files []*os.File) (err error) {
	if len(files) != 2 {
		closeAll(files)
		return fmt.Errorf("%w: %d files, want 2", ErrProtocol, len(files))
	}
	g.listener = files[0]
	g.own, err = netns.FromFile(files[1])
	return err
}

func receivedFiles(space []byte) []*os.File {
	messages, err := unix.ParseSocketControlMessage(space)
	if err != nil {
		return nil
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "file from gate"))
		}
	}
	return files
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// peer is a gate that another process has started.
type peer struct {
	id    int
	pidfd *os.File
}

// openPeer opens the process that listens at the door.
func openPeer(conn *net.UnixConn) (*peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(cerr, err); err != nil {
		return nil, err
	}
	process, err := programs.Open(int(cred.Pid))
	if errors.Is(err, unix.ESRCH) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", cred.Pid, err)
	}
	return &peer{int(cred.Pid), process}, nil
}

func (p *peer) pid() int { return p.id }

func (p *peer) kill() {
	if raw, err := p.pidfd.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) // or it has ended
		})
	}
}

func (p *peer) wait() { programs.Await(p.pidfd) }

// well is not known of another's child: it says good-bye.
func (p *peer) well() bool { return false }

func (p *peer) close() { p.pidfd.Close() }
