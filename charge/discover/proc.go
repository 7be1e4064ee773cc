package discover

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
	procfile "github.com/tsugiki/tsugiki/internal/sys/proc"
)

// textMax bounds what is read of a process's arguments and environment.
const textMax = 32 << 10

// role is what a process is found to be.
type role int

const (
	nobody  role = iota
	shim         // containerd-shim
	monitor      // conmon
	daemon       // dockerd, containerd: they work for many
)

// executables are what may have a role, by what the kernel calls it (15 bytes).
var executables = map[string]struct {
	role  role
	names []string
}{
	"containerd-shim": {shim, []string{"containerd-shim", "containerd-shim-runc-v1", "containerd-shim-runc-v2"}},
	"conmon":          {monitor, []string{"conmon"}},
	"dockerd":         {daemon, []string{"dockerd"}},
	"containerd":      {daemon, []string{"containerd"}},
}

// proc is a process in the table.
type proc struct {
	Process
	stat
	scan    uint64 // in which it was last seen
	role    role
	id      string   // of the container that a shim was started for, or conmon's
	name    string   // of its executable, once verified
	where   *groups  // once settled
	fd      pidfd.FD // of one with a role and of a container's init and loggers; pidfd.None
	settled bool     // read when it was old enough not to become another by exec
}

func (p *proc) path(name string) string { return "/proc/" + strconv.Itoa(p.PID) + "/" + name }

// read reads a file of /proc into the scanner's buffer, which the next read
// overwrites. What is longer is cut.
func (s *Scanner) read(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	total := 0
	for total < len(s.buffer) {
		n, err := unix.Read(fd, s.buffer[total:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		total += n
	}
	return s.buffer[:total], nil
}

// pids lists the processes there are.
func (s *Scanner) pids(each func(pid int)) error {
	dir, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	for {
		n, err := unix.ReadDirent(dir, s.buffer)
		if err != nil || n == 0 {
			return err
		}
		for entries := s.buffer[:n]; len(entries) >= 19; {
			length := int(entries[16]) | int(entries[17])<<8 // d_reclen
			if length < 19 || length > len(entries) {
				return errors.New("list /proc: broken directory entry")
			}
			if pid := number(entries[19:length]); pid > 0 {
				each(pid)
			}
			entries = entries[length:]
		}
	}
}

// number is that of a directory entry's name, or 0.
func number(name []byte) int {
	n := 0
	for _, c := range name {
		if c == 0 {
			return n
		}
		if c < '0' || c > '9' || n > 1<<30/10 {
			return 0
		}
		n = n*10 + int(c-'0')
	}
	return 0
}

// verify says whether a process is what its name says. Anybody can call itself
// containerd-shim, or run a copy of it: a process counts only if
//   - it is in our pid and user namespaces, and root in all its ids;
//   - no shim or monitor is above it: they are subreapers, so that all that
//     comes from a container, also what daemonizes or shares the host's
//     pid namespace, has one for an ancestor;
//   - it is in no container's cgroup, in no hierarchy;
//   - its executable has the name, is root's, and can be written by nobody else.
//
// What root on the host does outside of containers is not looked through.
func (s *Scanner) verify(p *proc, names []string) bool {
	if !s.isHosts(p) || s.inContainer(p) {
		return false
	}
	for up, steps := s.table[p.ppid], 0; up != nil; up, steps = s.table[up.ppid], steps+1 {
		if up.role == shim || up.role == monitor || steps > 1000 {
			return false
		}
	}
	return slices.Contains(names, p.name)
}

// isHosts says whether a process is root's in the host's namespaces with an executable
// that only root can have written, and learns its name.
func (s *Scanner) isHosts(p *proc) bool {
	for i, ns := range namespaces {
		if own, err := os.Readlink(p.path(ns)); err != nil || own != s.namespaces[i] {
			return false
		}
	}
	status, err := s.read(p.path("status"))
	if err != nil {
		return false
	}
	if ids, err := procfile.Fields(status).Numbers("Uid"); err != nil || !slices.Equal(ids, []int{0, 0, 0, 0}) {
		return false
	}
	exe, err := os.Stat(p.path("exe"))
	if err != nil || !exe.Mode().IsRegular() || exe.Mode().Perm()&0o022 != 0 {
		return false
	}
	if st, ok := exe.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 {
		return false
	}
	link, err := os.Readlink(p.path("exe"))
	if err != nil {
		return false
	}
	p.name = filepath.Base(strings.TrimSuffix(link, " (deleted)")) // replaced by an update
	return true
}

var namespaces = []string{"ns/pid", "ns/user"}

// groupsOf reads where a process is. What it does later, within its container or by
// being placed, changes nothing of what that says here.
func (s *Scanner) groupsOf(p *proc) (groups, error) {
	if p.where != nil {
		return *p.where, nil
	}
	text, err := s.read(p.path("cgroup"))
	if err != nil {
		return groups{}, err
	}
	g := parseGroups(text)
	if p.settled {
		p.where = &g
	}
	return g, nil
}

// inContainer says whether a process is in a container's group. Where it has been
// placed as a helper, that of the cpu controller says nothing.
func (s *Scanner) inContainer(p *proc) bool {
	g, err := s.groupsOf(p)
	if err != nil {
		return true
	}
	for _, path := range g.telling(p.PID) {
		if idIn(path, "") != "" {
			return true
		}
		for _, c := range s.containers {
			if c.group != "/" && strings.HasPrefix(path+"/", c.group+"/") {
				return true
			}
		}
	}
	return false
}

// telling are those groups of a process that say whose it is: not that of the cpu
// controller, if it has been placed there.
func (g groups) telling(pid int) []string {
	if placed(g.cpu, pid) {
		return g.others
	}
	return append([]string{g.cpu}, g.others...)
}

// placed says whether a group is one that a helper was placed in: see charge/helper.
func placed(group string, pid int) bool {
	return strings.HasSuffix(group, "/tsugiki-helpers/"+strconv.Itoa(pid))
}

// watch makes the end of a process known to the next scan.
func (p *proc) watch() {
	if p.fd != pidfd.None {
		return
	}
	// Where that fails it is gone, or will be noticed to be by the next full scan.
	if fd, err := pidfd.OpenFD(p.PID); err == nil {
		p.fd = fd
	}
}

func (p *proc) close() {
	if p.fd != pidfd.None {
		p.fd.Close()
		p.fd = pidfd.None
	}
}
