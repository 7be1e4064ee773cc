package bandwidth

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Freezer stops and resumes all of a container's processes.
//
// On a hybrid machine engines pause a container by its v1 freezer. If the container has a v2 group
// of its own, Freezer uses the cgroup.freeze of that group: nobody else writes it, and SIGKILL ends
// the processes that it has stopped. Otherwise Freezer uses the engine's own freezer. Then somebody
// else may pause the container between Freeze and Thaw, and the caller must notice that.
type Freezer struct {
	group   *Group
	dir     string // absolute directory of the group that is frozen
	rel     string
	file    *os.File
	state   *os.File // has the order to this group, without those to its parents
	v2      bool
	private bool
	checked time.Time // when the group was last seen to have no other processes
}

// recheck is how long the result of a check for other processes is trusted.
const recheck = 10 * time.Second

// Freezer finds the group's freezer. ErrNoFreezer: there is none, or it would stop others too.
// ErrEmpty: the group has no process that shows which freezer it is. The caller closes the freezer.
func (g *Group) Freezer() (*Freezer, error) {
	if g.Root() {
		return nil, fmt.Errorf("%s: %w: it is the root", g.path, ErrNoFreezer)
	}
	if g.all.cpu.v2 {
		f, err := g.freezer(&g.all.cpu, g.rel(), false)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoFreezer, err)
		}
		return f, nil
	}
	reason := ErrNoFreezer
	for _, h := range []*hierarchy{&g.all.unified, &g.all.freezer} {
		if h.mount == "" {
			continue
		}
		rel, err := g.counterpart(h)
		if err == nil {
			var f *Freezer
			if f, err = g.freezer(h, rel, h.v2); err == nil {
				return f, nil
			}
		}
		if errors.Is(err, ErrEmpty) {
			return nil, err
		}
		reason = fmt.Errorf("%w: %w", reason, err)
	}
	return nil, reason
}

func (g *Group) freezer(h *hierarchy, rel string, private bool) (*Freezer, error) {
	f := &Freezer{group: g, dir: filepath.Join(h.mount, rel), rel: rel, v2: h.v2, private: private}
	name, state := "freezer.state", "freezer.self_freezing"
	if f.v2 {
		name, state = "cgroup.freeze", "cgroup.freeze"
	}
	var err, stateErr error
	f.file, err = os.OpenFile(filepath.Join(f.dir, name), os.O_RDWR, 0)
	f.state, stateErr = os.Open(filepath.Join(f.dir, state))
	if err := errors.Join(err, stateErr); err != nil {
		return nil, errors.Join(fmt.Errorf("open freezer: %w", err), f.Close())
	}
	return f, nil
}

// File returns the path of the file that Freeze and Thaw write.
func (f *Freezer) File() string { return f.file.Name() }

// Texts returns the texts that File can contain.
func (f *Freezer) Texts() (thawed string, frozen []string) {
	if f.v2 {
		return "0", []string{"1"}
	}
	return "THAWED", []string{"FROZEN", "FREEZING"}
}

// Private tells whether this program alone has a reason to use the freezer.
func (f *Freezer) Private() bool { return f.private }

// Freeze orders all processes in the group to stop. It does not wait until they have. ErrNoFreezer:
// the group now has other processes, which would be stopped too.
func (f *Freezer) Freeze() error {
	if now := time.Now(); now.Sub(f.checked) > recheck {
		// In v2 the frozen group is the cpu group itself.
		if !f.group.all.cpu.v2 {
			if err := f.group.alone(f.dir, f.rel); err != nil {
				return fmt.Errorf("freeze: %w: %w", ErrNoFreezer, err)
			}
		}
		f.checked = now
	}
	_, frozen := f.Texts()
	return f.write(frozen[0])
}

// Thaw lets the group's processes run again.
func (f *Freezer) Thaw() error {
	thawed, _ := f.Texts()
	return f.write(thawed)
}

func (f *Freezer) write(text string) error {
	if _, err := f.file.WriteAt([]byte(text), 0); err != nil {
		return f.group.fault(fmt.Sprintf("write %q to %s", text, f.File()), err)
	}
	return nil
}

// Frozen tells whether anybody has ordered this group to stop. It does not see an order to a parent
// of the group.
func (f *Freezer) Frozen() (bool, error) {
	var text [1]byte
	if _, err := f.state.ReadAt(text[:], 0); err != nil {
		return false, f.group.fault("read freezer", err)
	}
	return text[0] == '1', nil
}

// Close closes the descriptors. It thaws nothing.
func (f *Freezer) Close() error {
	var errs []error
	for _, file := range []*os.File{f.file, f.state} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	return errors.Join(errs...)
}
