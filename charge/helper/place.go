package helper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/journal"
)

// ErrNotPlaceable means that a helper cannot be put under the container's quota by
// the kernel; its time has to be taken from the quota instead. The text says why.
var ErrNotPlaceable = errors.New("helper cannot be placed")

const (
	// Who is ending cannot be moved and is gone soon, on an idle machine.
	undoRounds = 1000
	undoPause  = 2 * time.Millisecond
	undoTries  = 10 // of such rounds, after the end of a process
)

// Placement is a helper below a container's group, in the group
// tsugiki-helpers/PID there, which has no quota of its own.
type Placement struct {
	group, from string
	entry       *journal.Entry
	done        chan struct{}

	mu     sync.Mutex // held while it is undone
	undone bool
}

// Place puts a helper and what it will fork under the quota of a container's group,
// until Undo, or the end of the helper or of the container's init: runc retries the
// removal of the container's groups only for some tenths of a second, and an
// occupied one would stay. The journal knows how to undo it before it is done.
// Both processes stay the caller's, to be closed after Done.
func Place(j *journal.Journal, p, init *Process, container *bandwidth.Group) (*Placement, error) {
	if err := placeable(container); err != nil {
		return nil, err
	}
	from, err := bandwidth.OfProcess(p.pid)
	if err != nil {
		return nil, fmt.Errorf("place process %d: %w", p.pid, err)
	}
	defer from.Close()
	if strings.HasPrefix(from.Path()+"/", container.Path()+"/") {
		return nil, fmt.Errorf("place process %d: %w: it is in the container's group already", p.pid, ErrNotPlaceable)
	}
	// Where it was would be gone when it is put back there.
	if slices.Contains(strings.Split(from.Path(), "/"), bandwidth.HelperGroup) {
		return nil, fmt.Errorf("place process %d: %w: it is placed already, in %s", p.pid, ErrNotPlaceable, from.Path())
	}
	l := &Placement{
		group: filepath.Join(container.Path(), bandwidth.HelperGroup, strconv.Itoa(p.pid)),
		from:  from.Path(),
		done:  make(chan struct{}),
	}
	// A group that is left without an entry is empty: the engine removes it along
	// with the container's.
	if err := os.MkdirAll(l.group, 0o755); err != nil {
		return nil, fmt.Errorf("place process %d: %w", p.pid, err)
	}
	if l.entry, err = j.Move(l.group, l.from); err != nil {
		return nil, errors.Join(fmt.Errorf("place process %d: %w", p.pid, err), l.remove())
	}
	if err := l.move(p); err != nil {
		return nil, errors.Join(fmt.Errorf("place process %d: %w: %w", p.pid, ErrNotPlaceable, err), l.Undo())
	}
	for _, end := range []*Process{p, init} {
		go func() {
			end.Await()
			for range undoTries {
				if l.Undo() == nil {
					return
				}
			} // the journal still knows of it
		}()
	}
	return l, nil
}

// placeable says why no helper can be placed below a group, if that is so.
func placeable(g *bandwidth.Group) error {
	switch {
	case g.Root():
		return fmt.Errorf("place below %s: %w: it has no quota", g.Path(), ErrNotPlaceable)
	case g.Version() == "v2":
		return placeableInV2(g.Path())
	}
	return nil
}

// placeableInV2: a group with a child of its own for the container. Below that of
// the container itself, a pause would stop the helper as well.
func placeableInV2(path string) error {
	own, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("place below %s: %w", path, err)
	}
	if len(own) > 0 {
		return fmt.Errorf("place below %s: %w: cgroup v2, and it has processes of its own", path, ErrNotPlaceable)
	}
	delegated, err := os.ReadFile(filepath.Join(path, "cgroup.subtree_control"))
	if err != nil {
		return fmt.Errorf("place below %s: %w", path, err)
	}
	for _, c := range strings.Fields(string(delegated)) {
		if c == "cpu" {
			return nil
		}
	}
	return fmt.Errorf("place below %s: %w: cgroup v2, and it does not delegate cpu", path, ErrNotPlaceable)
}

// move moves the helper, which the pidfd proves to have been itself.
func (l *Placement) move(p *Process) error {
	if err := enter(l.group, p.pid); err != nil {
		return err
	}
	_, err := p.Elapsed()
	return err
}

func enter(group string, pid int) error {
	return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// Done is closed when it has been undone.
func (l *Placement) Done() <-chan struct{} { return l.done }

// Undo moves the helper and its descendants back to where it was (or, if that is
// gone, to the nearest group above), and removes their group. After an error it may
// be called again; after it has been done it does nothing.
func (l *Placement) Undo() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.undone {
		return nil
	}
	if err := l.remove(); err != nil {
		return fmt.Errorf("undo placement in %s: %w", l.group, err)
	}
	l.undone = true
	l.entry.Done()
	close(l.done)
	return nil
}

// remove empties the group until it can be removed: what is moved may be forking.
func (l *Placement) remove() error {
	to := l.from
	for round := 0; ; round++ {
		procs, err := os.ReadFile(filepath.Join(l.group, "cgroup.procs"))
		if gone(err) {
			break
		}
		if err != nil {
			return err
		}
		for text := range strings.FieldsSeq(string(procs)) {
			pid, _ := strconv.Atoi(text)
			if to, err = moveBack(to, pid); err != nil {
				return err
			}
		}
		err = unix.Rmdir(l.group)
		if err == nil || gone(err) {
			break
		}
		if !errors.Is(err, unix.EBUSY) || round == undoRounds {
			return err
		}
		if round > 0 {
			time.Sleep(undoPause)
		}
	}
	// Unless there are other helpers.
	if err := unix.Rmdir(filepath.Dir(l.group)); err != nil && !gone(err) && !errors.Is(err, unix.EBUSY) {
		return err
	}
	return nil
}

// moveBack moves a process to a group, or the nearest above it that takes it, and
// returns which that was.
func moveBack(to string, pid int) (string, error) {
	for pid > 0 { // not one of a pid namespace that is not ours
		err := enter(to, pid)
		switch {
		case err == nil || errors.Is(err, unix.ESRCH):
			return to, nil
		case !gone(err) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EOPNOTSUPP):
			return to, err
		}
		above := filepath.Dir(to)
		if _, err := os.Stat(filepath.Join(above, "cgroup.procs")); err != nil {
			return to, fmt.Errorf("no group takes process %d back: %w", pid, err)
		}
		to = above
	}
	return to, nil
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }
