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

	"github.com/tsugiki/tsugiki/internal/sys/fdpass"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// Porter is a process that keeps gates while they have nothing to do (gate/c/porter.c).
// It outlives us as long as it has any. Its methods may be called by several goroutines.
type Porter struct {
	conn  *net.UnixConn
	pid   int
	ended chan struct{} // closed when the process has ended
}

// RestAfter is for how long a gate has nothing to do before it rests, where nobody has
// measured otherwise: to wake it takes some tenths of a millisecond.
const RestAfter = 3 * time.Second

// StartPorter starts one in the network namespace of the host, nil for the caller's. Its gates
// rest when they have had nothing to do for a time, in milliseconds; what they need to find
// that out, a tenth of a second, comes first. Why it cannot start it says to standard error. binary
// is as in Config. It needs what Start does.
func StartPorter(binary string, host *netns.NS, rest time.Duration) (*Porter, error) {
	p, err := startPorter(binary, host, rest)
	if err != nil {
		return nil, fmt.Errorf("start porter of gates: %w", err)
	}
	return p, nil
}

func startPorter(binary string, host *netns.NS, rest time.Duration, more ...string) (*Porter, error) {
	path, err := find(binary)
	if err != nil {
		return nil, err
	}
	conn, theirs, err := fdpass.Pair("porter")
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(path, append([]string{"--porter", strconv.FormatInt(rest.Milliseconds(), 10)}, more...)...)
	apart(cmd, theirs)
	cmd.Stderr = os.Stderr
	if err := startIn(host, cmd); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	p := &Porter{conn, cmd.Process.Pid, make(chan struct{})}
	pidfd.OnEnd(cmd.Process.Pid, func() {
		_ = cmd.Wait() // why it ended, it has said
		close(p.ended)
	})
	return p, nil
}

// Ended tells whether the process has ended; then another one is needed for new gates.
func (p *Porter) Ended() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Close lets go of it. It ends when it has no gate any more, or at once.
func (p *Porter) Close() error { return p.conn.Close() }

// start has it keep a new gate.
func (p *Porter) start(c Config) (*Gate, error) {
	door, err := makeDoor(c.Door)
	if err != nil {
		return nil, err
	}
	defer door.Close()
	g, err := p.admit(c, door)
	if err != nil {
		_ = os.Remove(c.Door)
		return nil, err
	}
	return g, nil
}

func (p *Porter) admit(c Config, door *os.File) (*Gate, error) {
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
	err = p.send(encodeAdmission(c), writer, theirs, c.Listener, door, c.Own.File(), c.CgroupDir)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	theirs.Close()
	writer.Close()
	g := &Gate{control: newControl(conn), door: c.Door}
	g.process = kept{g.control}
	return g, g.begin(c, func() string { return said(complaints) })
}

// said is what a gate that has ended complained of.
func said(complaints *os.File) string {
	_ = complaints.SetReadDeadline(time.Now().Add(endPatience)) // or it is a pipe that blocks
	text, _ := io.ReadAll(io.LimitReader(complaints, 1<<10))
	return string(text)
}

func (p *Porter) send(message []byte, files ...*os.File) error {
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	// A porter that somebody has stopped takes nothing once its queue is full.
	if err := p.conn.SetWriteDeadline(time.Now().Add(helloWait)); err != nil {
		return err
	}
	if _, _, err := p.conn.WriteMsgUnix(message, unix.UnixRights(fds...), nil); err != nil {
		return fmt.Errorf("ask porter to keep it: %w", err)
	}
	return nil
}
