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

// guard is the undo helper that waits for the agent's end.
type guard struct {
	mu      sync.Mutex  // guards the fields below
	process *undoHelper // nil before Guard
	closing bool
	watched chan struct{} // closed when watch has returned
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
	cmd.ExtraFiles = []*os.File{theirs, j.file.File} // descriptors 3 and 4 of the undo helper
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := forks.Start(cmd); err != nil {
		ours.Close()
		return nil, fmt.Errorf("start undo helper: %w", err)
	}
	theirs.Close() // while this end is open, the helper's death does not end the wait for its greeting
	g := &undoHelper{cmd: cmd, conn: ours}
	g.pidfd, _ = pidfd.Open(cmd.Process.Pid) // without a pidfd, a thread waits
	if _, err := g.hear(helloWait); err != nil {
		_ = cmd.Process.Kill()
		g.wait()
		return nil, fmt.Errorf("start undo helper: wait for its greeting: %w", err)
	}
	return g, nil
}

// hear reads a report from the undo helper.
func (g *undoHelper) hear(wait time.Duration) (report, error) {
	var r report
	if err := g.conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return r, err
	}
	var buf [13]byte // one byte more than a report
	n, _, _, err := fdpass.ReadMsg(g.conn, buf[:], nil)
	if err != nil {
		return r, err
	}
	if _, err := binary.Decode(buf[:n], binary.NativeEndian, &r); err != nil || n != binary.Size(r) || r.Version != undoHelperVersion {
		return r, fmt.Errorf("the undo helper has another version: it sent %d bytes, version %d", n, r.Version)
	}
	return r, nil
}

// wait waits until the undo helper has ended.
func (g *undoHelper) wait() {
	g.waited.Do(func() {
		pidfd.Await(g.pidfd)
		g.pidfd.Close()
		_ = g.cmd.Wait() // ProcessState has the result
		g.conn.Close()
	})
}

// finish makes the undo helper undo all entries and end. It returns the number of undone entries.
func (g *undoHelper) finish() (int, error) {
	err := g.conn.CloseWrite()
	var r report
	if err == nil {
		r, err = g.hear(workWait)
	}
	if err != nil {
		_ = g.cmd.Process.Kill() // a helper without a report is of no use
	}
	g.wait()
	if err == nil && r.Failed > 0 {
		err = fmt.Errorf("%d entries could not be undone", r.Failed)
	}
	return int(r.Undone), err
}

// Restore undoes the entries that a killed agent left, and returns their number. It does not count
// an entry whose file was removed or changed by somebody else. An entry that cannot be undone is
// logged, returned as an error, and tried again the next time. Call Restore at the start, before
// Guard and before the first entry.
func (j *Journal) Restore(log *slog.Logger) (int, error) {
	if j.file.Aside != "" {
		log.Warn("undo journal could not be read: its entries are not undone", "aside", j.file.Aside)
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

// pending returns the number of valid entries.
func (j *Journal) pending() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return int(j.used().Load()) - len(j.free)
}

// Guard starts the undo helper. Until Close, it starts another one whenever the undo helper ends.
func (j *Journal) Guard(log *slog.Logger) error {
	j.guard.mu.Lock()
	defer j.guard.mu.Unlock()
	if j.guard.process != nil || j.guard.closing {
		return errors.New("start undo helper: the journal has an undo helper, or is closed")
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

// watch starts a new undo helper whenever one ends, until Close.
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

// replace starts an undo helper after one has ended. It returns nil if Close was called.
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

// PID returns the undo helper's process id, or 0 if there is none.
func (j *Journal) PID() int {
	j.guard.mu.Lock()
	defer j.guard.mu.Unlock()
	if j.guard.process == nil {
		return 0
	}
	return j.guard.process.cmd.Process.Pid
}

// Close makes the undo helper undo every valid entry and end, and closes the file. After Close only
// Done may be called on an entry.
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

// undo makes the undo helper undo every entry. If the undo helper was killed, undo starts another
// one.
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
