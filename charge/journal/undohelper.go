package journal

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/tsugiki/tsugiki/internal/sys/fdpass"
	"github.com/tsugiki/tsugiki/internal/sys/forks"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"

	"github.com/tsugiki/tsugiki/internal/programs"
)

// Program is the undo helper's file name.
const Program = "tsugiki-undo"

const (
	undoHelperVersion = 1
	restartPause      = 100 * time.Millisecond
)

// guard is the undo helper that is there for the agent's end.
type guard struct {
	mu      sync.Mutex  // guards what follows
	process *undoHelper // nil before Guard
	closing bool
	watched chan struct{} // closed when nobody watches any more
}

// undoHelper is a running undo helper.
type undoHelper struct {
	cmd    *exec.Cmd
	conn   *net.UnixConn
	pidfd  *os.File
	waited sync.Once
}

// report is struct undo_helper_report of charge/journal/c/undo_helper.h.
type report struct{ Version, Undone, Failed uint32 }

// start starts an undo helper and waits until it is ready.
func (j *Journal) start(stderr *os.File) (*undoHelper, error) {
	path := j.UndoHelper
	if path == "" {
		var err error
		if path, err = programs.Find(Program); err != nil {
			return nil, fmt.Errorf("start undo helper: %w", err)
		}
	}
	ours, theirs, err := fdpass.Pair("undo helper control")
	if err != nil {
		return nil, fmt.Errorf("start undo helper: make control socket: %w", err)
	}
	defer theirs.Close()
	cmd := exec.Command(path)
	cmd.Dir = "/"
	cmd.Env = []string{}
	cmd.Stderr = stderr
	cmd.ExtraFiles = []*os.File{theirs, j.file.File} // fds 3 and 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := forks.Start(cmd.Start); err != nil {
		ours.Close()
		return nil, fmt.Errorf("start undo helper: %w", err)
	}
	theirs.Close() // or its death would not end the wait for its greeting
	g := &undoHelper{cmd: cmd, conn: ours}
	g.pidfd, _ = pidfd.Open(cmd.Process.Pid) // without, a thread waits
	if _, err := g.hear(helloWait); err != nil {
		_ = cmd.Process.Kill()
		g.wait()
		return nil, fmt.Errorf("start undo helper: wait for its greeting: %w", err)
	}
	return g, nil
}

// hear reads what the undo helper says.
func (g *undoHelper) hear(wait time.Duration) (report, error) {
	var r report
	if err := g.conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return r, err
	}
	var buf [13]byte // one byte more than a report
	n, err := g.conn.Read(buf[:])
	if err != nil {
		return r, err
	}
	if _, err := binary.Decode(buf[:n], binary.NativeEndian, &r); err != nil || n != binary.Size(r) || r.Version != undoHelperVersion {
		return r, fmt.Errorf("it is of another version: said %d bytes, version %d", n, r.Version)
	}
	return r, nil
}

// wait waits for the undo helper's end.
func (g *undoHelper) wait() {
	g.waited.Do(func() {
		pidfd.Await(g.pidfd)
		g.pidfd.Close()
		_ = g.cmd.Wait() // how it ended is in ProcessState
		g.conn.Close()
	})
}

// finish lets the undo helper undo what there is, and end.
func (g *undoHelper) finish() (int, error) {
	err := g.conn.CloseWrite()
	var r report
	if err == nil {
		r, err = g.hear(workWait)
	}
	if err != nil {
		_ = g.cmd.Process.Kill() // it is of no use any more
	}
	g.wait()
	if err == nil && r.Failed > 0 {
		err = fmt.Errorf("%d things could not be undone", r.Failed)
	}
	return int(r.Undone), err
}

// Restore undoes what a killed agent left, and returns how many things that were.
// What has gone meanwhile, or was changed by somebody else, is not counted; what
// cannot be undone is logged, makes an error, and is tried again the next time.
// It is for the start, before Guard and before the first entry.
func (j *Journal) Restore(log *slog.Logger) (int, error) {
	if j.file.Aside != "" {
		log.Warn("undo journal could not be used: what it says is not undone", "aside", j.file.Aside)
	}
	if j.pending() == 0 {
		return 0, nil
	}
	said, stderr, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("restore cgroups: %w", err)
	}
	defer said.Close()
	g, err := j.start(stderr)
	stderr.Close()
	if err != nil {
		return 0, fmt.Errorf("restore cgroups: %w", err)
	}
	undone, err := g.finish()
	for lines := bufio.NewScanner(io.LimitReader(said, 4096)); lines.Scan(); {
		log.Warn("restore cgroups", "undo helper", lines.Text())
	}
	j.sweep()
	if err != nil {
		return undone, fmt.Errorf("restore cgroups: %w", err)
	}
	return undone, nil
}

// pending is how many entries there are.
func (j *Journal) pending() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return int(j.used().Load()) - len(j.free)
}

// Guard starts the undo helper, and another one whenever it is killed, until Close.
func (j *Journal) Guard(log *slog.Logger) error {
	j.guard.mu.Lock()
	defer j.guard.mu.Unlock()
	if j.guard.process != nil || j.guard.closing {
		return errors.New("start undo helper: the journal has one, or is closed")
	}
	g, err := j.start(os.Stderr)
	if err != nil {
		return err
	}
	j.guard.process = g
	j.guard.watched = make(chan struct{})
	go j.watch(g, log)
	return nil
}

// watch replaces the undo helper until Close wants none.
func (j *Journal) watch(g *undoHelper, log *slog.Logger) {
	defer close(j.guard.watched)
	for {
		g.wait()
		next := j.replace(g, log)
		if next == nil {
			return
		}
		g = next
	}
}

// replace starts another undo helper in the place of one that has ended; nil: Close
// has been called.
func (j *Journal) replace(ended *undoHelper, log *slog.Logger) *undoHelper {
	for first := true; ; first = false {
		j.guard.mu.Lock()
		if j.guard.closing {
			j.guard.mu.Unlock()
			return nil
		}
		g, err := j.start(os.Stderr)
		if err == nil {
			j.guard.process = g
			j.guard.mu.Unlock()
			log.Warn("undo helper ended; another one was started", "pid", g.cmd.Process.Pid, "state", ended.cmd.ProcessState.String())
			return g
		}
		j.guard.mu.Unlock()
		if first {
			log.Error("undo helper ended, and another one does not start: a killed agent will leave quotas lowered until its next start", "error", err)
		}
		time.Sleep(restartPause)
	}
}

// PID is the undo helper's process id, 0 while there is none.
func (j *Journal) PID() int {
	j.guard.mu.Lock()
	defer j.guard.mu.Unlock()
	if j.guard.process == nil {
		return 0
	}
	return j.guard.process.cmd.Process.Pid
}

// Close ends the undo helper, which first undoes what is not Done, and lets go of the
// file. No entry may be used after it, but for Done.
func (j *Journal) Close() error {
	j.guard.mu.Lock()
	if j.guard.closing {
		j.guard.mu.Unlock()
		return nil
	}
	j.guard.closing = true
	g, watched := j.guard.process, j.guard.watched
	err := j.undo(g)
	j.guard.mu.Unlock()
	if g != nil {
		<-watched
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	if err = errors.Join(err, j.file.Close()); err != nil {
		return fmt.Errorf("close undo journal: %w", err)
	}
	return nil
}

// undo lets the undo helper undo everything, and another one if it has been killed.
func (j *Journal) undo(g *undoHelper) error {
	if g != nil {
		_, err := g.finish()
		j.sweep()
		if err == nil {
			return nil
		}
	}
	if j.pending() == 0 {
		return nil
	}
	g, err := j.start(os.Stderr)
	if err != nil {
		return err
	}
	_, err = g.finish()
	return err
}
