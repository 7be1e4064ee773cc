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

// Pool is the process that holds the descriptors of idle gates (gate/c/gatepool.c), with another
// one that goes on in its place (gate/c/spare.c). It outlives this process as long as it has a gate.
// Its methods may be called by several goroutines.
type Pool struct {
	conn  *net.UnixConn
	group int // its processes, and those of its gates
}

// IdleAfter is how long a gate has nothing to do before its process exits. To start the process
// again takes some tenths of a millisecond.
const IdleAfter = 3 * time.Second

// keepFor is how long a pool keeps a file without a supervisor and gates. Docker waits a minute, at
// most, before it starts a container again that has ended.
const keepFor = 2 * time.Minute

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// StartPool starts a pool in the network namespace of the host, nil for the caller's. The process
// of a gate exits after it has had nothing to do for idle, in milliseconds. (The gate first needs
// a tenth of a second to find out that it is idle.) The pool says on standard error why it cannot
// start. keep is a file that the pool keeps for the next process that asks for it (Kept); nil: none.
// binary is as in Config. StartPool needs what Start needs.
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
	pidfd.OnEnd(cmd.Process.Pid, func() { _ = cmd.Wait() }) // why it ended, it has said
	return &Pool{conn, cmd.Process.Pid}, nil
}

// Ended tells whether both processes have ended. Then new gates need another pool.
func (p *Pool) Ended() bool { return poll.HungUp(p.conn) }

// KeepNothing has the pool keep its file no more once nobody needs the pool for gates.
func (p *Pool) KeepNothing() error {
	if err := p.conn.SetWriteDeadline(time.Now().Add(helloWait)); err != nil {
		return err
	}
	_, err := p.conn.Write([]byte{0})
	return err
}

// Close lets go of the pool. The process ends when it has no gate any more, or at once.
func (p *Pool) Close() error { return p.conn.Close() }

// admitTries is how often a pool is asked for a gate whose process is killed, or that the pool was
// about to start when it was killed.
const admitTries = 3

// start has the pool start a new gate.
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

// said is what a gate that has ended complained of.
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
	// A stopped pool takes nothing once its queue is full.
	if err := p.conn.SetWriteDeadline(time.Now().Add(helloWait)); err != nil {
		return err
	}
	if _, _, err := p.conn.WriteMsgUnix(message, unix.UnixRights(fds...), nil); err != nil {
		return fmt.Errorf("ask gate pool to start it: %w", err)
	}
	return nil
}
