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

// textMax is the number of bytes that are read of a process's arguments and environment.
const textMax = 32 << 10

// role is the verified role of a process.
type role int

const (
	nobody  role = iota
	shim         // containerd-shim
	monitor      // conmon
	daemon       // dockerd, containerd, or named by Daemon: works for many
)

// executables lists the programs that can have a role, by the name that the kernel gives their
// processes (15 bytes).
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
	scan    uint64 // the number of the scan that last saw the process
	role    role
	id      string   // the id argument of a shim or conmon
	name    string   // of the executable; set by isHosts
	where   *groups  // read after the process was settled
	fd      pidfd.FD // of a process with a role, and of a container's init and loggers; or pidfd.None
	settled bool     // the process is old enough not to become another program by exec
}

func (p *proc) path(name string) string { return "/proc/" + strconv.Itoa(p.PID) + "/" + name }

// read reads a file of /proc into the scanner's buffer. The next read overwrites the buffer. A
// longer file is cut off.
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

// pids calls each for every process in /proc.
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

// number returns the number that a directory entry's name is, or 0.
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

// verify tells whether a process is the program that its name says. Anybody can call itself
// containerd-shim, or run a copy of it: a process counts only if
//   - it is in our pid and user namespaces, and root in all its ids;
//   - no shim or monitor is above it: they are subreapers, so that all that
//     comes from a container, also what daemonizes or shares the host's
//     pid namespace, has one for an ancestor;
//   - it is in no container's cgroup, in no hierarchy;
//   - its executable has the name, is root's, and can be written by nobody else.
//
// Processes that root starts on the host, outside of containers, are trusted.
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

// isHosts tells whether a process runs as root in the host's namespaces, with an executable that
// only root can have written. It sets the process's name.
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
	p.name = filepath.Base(strings.TrimSuffix(link, " (deleted)")) // an update replaces the file
	return true
}

var namespaces = []string{"ns/pid", "ns/user"}

// groupsOf returns the groups of a process. The result of a settled process is kept: a later move,
// within the container or by placing, does not change it.
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

// inContainer tells whether a process is in a container's group. The cpu group of a placed helper
// does not count.
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

// telling returns the groups that show which container a process belongs to. The cpu group of a
// placed helper is not among them.
func (g groups) telling(pid int) []string {
	if placed(g.cpu, pid) {
		return g.others
	}
	return append([]string{g.cpu}, g.others...)
}

// placed tells whether a group was made for a placed helper: see charge/helper.
func placed(group string, pid int) bool {
	return strings.HasSuffix(group, "/tsugiki-helpers/"+strconv.Itoa(pid))
}

// watch makes the next scan see the end of a process.
func (p *proc) watch() {
	if p.fd != pidfd.None {
		return
	}
	// An error means that the process has ended. The next scan that lists /proc notices it.
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
