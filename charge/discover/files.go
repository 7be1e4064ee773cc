package discover

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// logsPerScan is the number of containers whose log files a scan checks for rotation. With more
// containers it takes several scans to notice a rotation.
const logsPerScan = 64

type identity struct{ device, inode uint64 }

// identify returns the identity of the file at a path, and whether the file is a FIFO.
func identify(path string) (id identity, fifo bool, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return identity{}, false, err
	}
	return identity{uint64(st.Dev), st.Ino}, st.Mode&unix.S_IFMT == syscall.S_IFIFO, nil
}

// addFiles finds the files of all containers, unless they are known already. A file that several
// containers claim belongs to none of them.
func (s *Scanner) addFiles(next map[string]*found) {
	if !s.stale {
		for id, f := range next {
			f.stdio, f.pod, f.Files = s.containers[id].stdio, s.containers[id].pod, s.containers[id].Files
		}
		return
	}
	s.stale = false
	for id, f := range next {
		if old := s.containers[id]; old != nil && old.Init == f.Init && old.stdio != nil {
			f.stdio, f.pod = old.stdio, old.pod
		} else {
			f.stdio, f.pod = s.stdio(f.Init), s.podOf(f)
		}
		f.Files = slices.Clone(f.stdio)
	}
	pods := byLogs(next)
	for _, pid := range sortedKeys(s.table) {
		if p := s.table[pid]; p.role == daemon {
			s.daemonFiles(p, next, pods)
		}
	}
	claims := map[identity]map[string]bool{}
	for id, f := range next {
		for _, file := range f.Files {
			key := identity{file.Device, file.Inode}
			if claims[key] == nil {
				claims[key] = map[string]bool{}
			}
			claims[key][id] = true
		}
	}
	for _, f := range next {
		f.Files = slices.DeleteFunc(f.Files, func(file File) bool {
			return len(claims[identity{file.Device, file.Inode}]) > 1
		})
		slices.SortFunc(f.Files, func(a, b File) int {
			return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Inode, b.Inode), cmp.Compare(a.Daemon.PID, b.Daemon.PID))
		})
		f.Files = slices.Compact(f.Files)
	}
}

// stdio returns the pipes at a container's first three descriptors. It ignores a file or a device
// there, because others may use that as well.
func (s *Scanner) stdio(init Process) []File {
	files := []File{}
	for fd := range 3 {
		path := "/proc/" + strconv.Itoa(init.PID) + "/fd/" + strconv.Itoa(fd)
		id, fifo, err := identify(path)
		link, linkErr := os.Readlink(path)
		if err != nil || linkErr != nil || !fifo || !strings.HasPrefix(link, "pipe:[") {
			continue
		}
		files = append(files, File{Device: id.device, Inode: id.inode, Path: link})
	}
	return files
}

// daemonFiles finds the files that a daemon has open for containers: the FIFOs of a container's
// output, its log, and the logs of pods' containers.
func (s *Scanner) daemonFiles(p *proc, next map[string]*found, pods map[identity][]*found) {
	dir := p.path("fd")
	fds, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, fd := range fds {
		path := dir + "/" + fd.Name()
		link, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(link, "/") {
			continue
		}
		var some []*found
		var directory bool
		if f := containerIn(link, next); f != nil {
			some, directory = []*found{f}, filepath.Base(filepath.Dir(link)) == f.ID
		} else if some, directory = loggedTo(p.path("root"), link, pods); len(some) == 0 {
			continue
		}
		id, _, err := identify(path)
		if err != nil {
			continue
		}
		for _, f := range some {
			f.Files = append(f.Files, File{id.device, id.inode, p.Process, link, directory})
		}
	}
}

// containerIn finds the container whose id is the name of a directory in a path. Only daemons of
// root make such paths.
func containerIn(path string, next map[string]*found) *found {
	for part := range strings.SplitSeq(path, "/") {
		if f := next[part]; f != nil && part != "" {
			return f
		}
	}
	return nil
}

// rotated tells whether a container's log path now leads to another file. The log may have been
// rotated, or not have existed before.
func (s *Scanner) rotated() bool {
	ids := slices.Sorted(maps.Keys(s.containers))
	for range min(logsPerScan, len(ids)) {
		s.nextLog = (s.nextLog + 1) % len(ids)
		f := s.containers[ids[s.nextLog]]
		for _, file := range f.Files {
			if !strings.HasSuffix(file.Path, ".log") {
				continue
			}
			id, _, err := identify("/proc/" + strconv.Itoa(file.Daemon.PID) + "/root" + file.Path)
			if err == nil && id != (identity{file.Device, file.Inode}) {
				return true
			}
		}
	}
	return false
}
