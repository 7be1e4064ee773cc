package shared

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
)

// ownAnonymous makes work on eventfds and similar files overhead. A Go program wakes its own
// threads by them. All of these files share one inode.
func (m *Meter) ownAnonymous() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	return m.overhead(File{st.Dev, st.Ino})
}

func (m *Meter) overhead(f File) error {
	return m.objects.SlotByFile.Put(key(f), uint32(bpf.SharedOwnerSlotSLOT_OVERHEAD))
}

// ownPipes makes work on pipes overhead if the process has both ends. Programs wake their own
// threads by such pipes, as Go's runtime did before 1.23. The caller holds m.mu.
func (m *Meter) ownPipes(p *process) error {
	dir := fmt.Sprintf("/proc/%d/fd/", p.pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	const both = 0o600 // permissions of the links to both ends together
	ends := map[string]os.FileMode{}
	for _, fd := range fds {
		path := dir + fd.Name()
		link, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(link, "pipe:[") {
			continue // no pipe, or closed meanwhile
		}
		info, err := os.Lstat(path)
		before := ends[link]
		if err != nil || before == both {
			continue
		}
		if ends[link] = before | info.Mode().Perm()&both; ends[link] != both {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			continue
		}
		f := File{st.Dev, st.Ino}
		if _, owned := m.files[f]; owned {
			continue
		}
		if err := m.overhead(f); err != nil {
			return err
		}
		p.wakes = append(p.wakes, f)
	}
	return nil
}

// forgetPipes undoes ownPipes. The caller holds m.mu.
func (m *Meter) forgetPipes(p *process) (err error) {
	for _, f := range p.wakes {
		if _, owned := m.files[f]; owned {
			continue
		}
		if e := m.objects.SlotByFile.Delete(key(f)); !errors.Is(e, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
