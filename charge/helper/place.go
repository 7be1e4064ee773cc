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

// ErrNotPlaceable means that the kernel cannot hold a helper to the container's quota. Its CPU time
// must be measured and taken from the quota instead. The text has the reason.
var ErrNotPlaceable = errors.New("helper cannot be placed")

const (
	// An exiting process cannot be moved. On an idle machine it is gone soon.
	undoRounds = 1000
	undoPause  = 2 * time.Millisecond
	undoTries  = 10 // times undoRounds, after the end of a process
)

// Placement is a helper that was moved to the group tsugiki-helpers/PID below a container's group.
// That group has no quota of its own.
type Placement struct {
	group, from string
	entry       *journal.Entry
	done        chan struct{}

	mu     sync.Mutex // held during Undo
	undone bool
}

// Place moves a helper, with its future children, under the quota of a container's group. Undo ends
// the placement. So does the end of the helper, or of the container's init: runc tries only for
// some tenths of a second to remove the container's groups, and cannot remove an occupied one. The
// journal knows how to undo the move before it happens. The caller still owns both processes, and
// closes them after Done.
func Place(j *journal.Journal, p, init *Process, container *bandwidth.Group) (*Placement, error) {
	if err := placeable(container); err != nil {
		return nil, err
	}
	from, err := bandwidth.PathOfProcess(p.pid)
	if err != nil {
		return nil, fmt.Errorf("place process %d: %w", p.pid, err)
	}
	if strings.HasPrefix(from+"/", container.Path()+"/") {
		return nil, fmt.Errorf("place process %d: %w: it is in the container's group already", p.pid, ErrNotPlaceable)
	}
	// Its present group will be removed, so it could not be moved back there.
	if slices.Contains(strings.Split(from, "/"), bandwidth.HelperGroup) {
		return nil, fmt.Errorf("place process %d: %w: it is placed already, in %s", p.pid, ErrNotPlaceable, from)
	}
	l := &Placement{
		group: filepath.Join(container.Path(), bandwidth.HelperGroup, strconv.Itoa(p.pid)),
		from:  from,
		done:  make(chan struct{}),
	}
	// If the agent dies before the entry is made, the group is empty. The engine then removes it
	// together with the container's group.
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
			} // the journal still has the entry
		}()
	}
	return l, nil
}

// placeable returns an error with the reason if no helper can be placed below a group.
func placeable(g *bandwidth.Group) error {
	switch {
	case g.Root():
		return fmt.Errorf("place below %s: %w: it has no quota", g.Path(), ErrNotPlaceable)
	case g.Version() == "v2":
		return placeableInV2(g.Path())
	}
	return nil
}

// placeableInV2 allows a group in which the container has a child group of its own. If the group
// were the container's own, a pause of the container would also stop the helper.
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

// move moves the helper into the group. The pidfd then shows that the pid was still the helper's.
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

// Done returns a channel that is closed after the placement was undone.
func (l *Placement) Done() <-chan struct{} { return l.done }

// Undo moves the helper and its descendants back to the helper's former group, and removes the
// placement's group. If the former group was removed, they move to the nearest group above it.
// After an error Undo may be called again. After a success it does nothing.
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

// remove moves the processes out and removes the group. It repeats this, because a process may fork
// meanwhile.
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
	// The parent stays if it has other helpers.
	if err := unix.Rmdir(filepath.Dir(l.group)); err != nil && !gone(err) && !errors.Is(err, unix.EBUSY) {
		return err
	}
	return nil
}

// moveBack moves a process to a group, or to the nearest group above it that accepts the process.
// It returns that group.
func moveBack(to string, pid int) (string, error) {
	for pid > 0 { // 0: in a pid namespace that is not ours
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
