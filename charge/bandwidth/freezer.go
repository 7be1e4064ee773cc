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
// On a hybrid machine engines pause by the v1 freezer. Where the container has a v2
// group of its own, its cgroup.freeze is nobody else's business, and SIGKILL ends a
// process that it has stopped. Else the engine's own freezer serves: then somebody
// else's pause may come between Freeze and Thaw, and it is for the caller to notice.
type Freezer struct {
	group   *Group
	dir     string // of the group that is frozen, absolute
	rel     string
	file    *os.File
	state   *os.File // what tells of this group's own order
	v2      bool
	private bool
	checked time.Time // that nobody else is in it
}

// recheck is how long a look at who is in the frozen group is trusted.
const recheck = 10 * time.Second

// Freezer finds the group's freezer. ErrNoFreezer: there is none, or others would be
// stopped too. ErrEmpty: it cannot be known which it is. Close it when it is done with.
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

// File is what Freeze and Thaw write.
func (f *Freezer) File() string { return f.file.Name() }

// Texts are what File says.
func (f *Freezer) Texts() (thawed string, frozen []string) {
	if f.v2 {
		return "0", []string{"1"}
	}
	return "THAWED", []string{"FROZEN", "FREEZING"}
}

// Private tells whether nobody but this program has a reason to use it.
func (f *Freezer) Private() bool { return f.private }

// Freeze orders all processes in the group to stop, and does not wait for the last.
// ErrNoFreezer: by now others are in the group, who would be stopped too.
func (f *Freezer) Freeze() error {
	if now := time.Now(); now.Sub(f.checked) > recheck {
		// In v2 they are the cpu group's by definition.
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

// Thaw lets them go on.
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

// Frozen tells whether somebody has ordered this group to stop, whoever it was. A
// parent's order is not seen: it is none of this group's.
func (f *Freezer) Frozen() (bool, error) {
	var text [1]byte
	if _, err := f.state.ReadAt(text[:], 0); err != nil {
		return false, f.group.fault("read freezer", err)
	}
	return text[0] == '1', nil
}

// Close gives the descriptors back, and thaws nothing.
func (f *Freezer) Close() error {
	var errs []error
	for _, file := range []*os.File{f.file, f.state} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	return errors.Join(errs...)
}
