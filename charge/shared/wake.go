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

// ownAnonymous makes work on eventfds and the like overhead. They share one inode;
// a Go program wakes its own threads by them.
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

// ownPipes makes work on the pipes that a process has both ends of overhead: programs, and
// Go's runtime before 1.23, wake their own threads by them. m.mu is held.
func (m *Meter) ownPipes(p *process) error {
	dir := fmt.Sprintf("/proc/%d/fd/", p.pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	const both = 0o600 // as the permissions of the link say
	ends := map[string]os.FileMode{}
	for _, fd := range fds {
		path := dir + fd.Name()
		link, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(link, "pipe:[") {
			continue // or it was closed meanwhile
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

// forgetPipes undoes that. m.mu is held.
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
