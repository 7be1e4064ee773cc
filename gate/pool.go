package gate

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/fdpass"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
	"github.com/tsugiki/tsugiki/internal/sys/poll"
)

// Pool is the process that holds the descriptors of idle gates (gate/c/gatepool.c), with a spare
// that replaces it if it is killed (gate/c/spare.c). It outlives this process as long as it has a
// gate. Several goroutines may call its methods.
type Pool struct {
	conn  *net.UnixConn
	group int // process group of its processes and those of its gates
}

// IdleAfter is how long a gate is idle before its process exits. To start the process again takes
// some tenths of a millisecond.
const IdleAfter = 3 * time.Second

// keepFor is how long a pool keeps a file without a supervisor and gates. Docker waits at most a
// minute before it restarts a container that has ended.
const keepFor = 2 * time.Minute

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// StartPool starts a pool in the network namespace of the host; nil stands for the caller's. The
// process of a gate exits after it has been idle for idle, in milliseconds. (The gate first needs a
// tenth of a second to find out that it is idle.) If the pool cannot start, it says why on standard
// error. keep is a file that the pool keeps for the next process that asks for it (Kept); nil:
// none. binary is as in Config. StartPool needs the privileges of Start.
func StartPool(binary string, host *netns.NS, idle time.Duration, keep *os.File) (*Pool, error) {
	p, err := startPool(binary, host, idle, keep, keepFor)
	if err != nil {
		return nil, fmt.Errorf("start gate pool: %w", err)
	}
	return p, nil
}

func startPool(binary string, host *netns.NS, idle time.Duration, keep *os.File, keepFor time.Duration, more ...string) (*Pool, error) {
	path, err := find(binary)
	if err != nil {
		return nil, err
	}
	conn, theirs, err := fdpass.Pair("gate pool")
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	if keep == nil {
		keepFor = 0
	}
	cmd := exec.Command(path, append([]string{"--pool", milliseconds(idle), milliseconds(keepFor)}, more...)...)
	apart(cmd, theirs)
	if keep != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, keep)
	}
	cmd.Stderr = os.Stderr
	if err := startIn(host, cmd); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	pidfd.OnEnd(cmd.Process.Pid, func() { _ = cmd.Wait() }) // it has said why it ended
	return &Pool{conn, cmd.Process.Pid}, nil
}

// Ended tells whether both processes have ended. Then new gates need another pool.
func (p *Pool) Ended() bool { return poll.HungUp(p.conn) }

// KeepNothing makes the pool drop its file once no gate needs the pool.
func (p *Pool) KeepNothing() error {
	if err := p.conn.SetWriteDeadline(time.Now().Add(helloWait)); err != nil {
		return err
	}
	_, err := p.conn.Write([]byte{0})
	return err
}

// Close lets go of the pool. The process ends when it has no gate any more, or at once.
func (p *Pool) Close() error { return p.conn.Close() }

// admitTries is the number of attempts to get a gate from a pool, if the gate's process is killed
// or the pool is killed during the start.
const admitTries = 3

// start makes the pool start a new gate.
func (p *Pool) start(c Config) (g *Gate, err error) {
	for range admitTries {
		g, err = p.tryStart(c)
		killed := errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)
		if !killed || errors.Is(err, ErrEnded) {
			break
		}
	}
	return g, err
}

func (p *Pool) tryStart(c Config) (*Gate, error) {
	socket, err := makeAdoptSocket(c.AdoptSocket)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	g, err := p.admit(c, socket)
	if err != nil {
		_ = os.Remove(c.AdoptSocket)
		return nil, err
	}
	return g, nil
}

func (p *Pool) admit(c Config, socket *os.File) (*Gate, error) {
	conn, theirs, err := fdpass.Pair("gate control")
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	complaints, writer, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	defer complaints.Close()
	defer writer.Close()
	err = p.send(encodeAdmission(c), writer, theirs, c.Listener, socket, c.Own.File(), c.CgroupDir)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	theirs.Close()
	writer.Close()
	g := &Gate{control: newControl(conn), adoptSocket: c.AdoptSocket}
	g.process = pooled{g.control}
	return g, g.begin(c, func() string { return said(complaints) })
}

// said returns the error message of a gate that has ended.
func said(complaints *os.File) string {
	_ = complaints.SetReadDeadline(time.Now().Add(endPatience)) // or it is a pipe that blocks
	text, _ := io.ReadAll(io.LimitReader(complaints, 1<<10))
	return string(text)
}

func (p *Pool) send(message []byte, files ...*os.File) error {
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	// A stopped pool receives nothing once its queue is full.
	if err := p.conn.SetWriteDeadline(time.Now().Add(helloWait)); err != nil {
		return err
	}
	if _, _, err := p.conn.WriteMsgUnix(message, unix.UnixRights(fds...), nil); err != nil {
		return fmt.Errorf("ask gate pool to start it: %w", err)
	}
	return nil
}
