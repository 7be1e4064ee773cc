package gate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
)

// keptFile is the number of the file that a pool keeps (POOL_FD_KEPT of gate/c/idle.h).
const keptFile = 7

// Kept returns the socket that a pool of an earlier process keeps, and nil if there is none. The
// socket listens, and Kept knows it by its inode, which the earlier process has recorded. Kept asks
// only pools in the network and PID namespaces of the caller, so it asks no container. Kept needs
// CAP_SYS_PTRACE.
func Kept(inode uint64) (*os.File, error) {
	pids, err := proc.All()
	if err != nil {
		return nil, fmt.Errorf("find the file that a pool keeps: %w", err)
	}
	for _, pid := range pids {
		if !isPool(pid) {
			continue
		}
		f, err := takeKept(pid, inode)
		if f != nil || err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EBADF) {
			return f, err
		}
	}
	return nil, nil
}

// isPool tells whether a process of the host has the name of a pool or of its spare.
func isPool(pid int) bool {
	stat, err := proc.ReadStat(pid)
	if err != nil || stat.Comm != "tsugiki-pool" && stat.Comm != "tsugiki-spare" {
		return false
	}
	for _, ns := range []string{"net", "pid"} {
		theirs, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "ns", ns))
		ours, own := os.Stat(filepath.Join("/proc/self/ns", ns))
		if err != nil || own != nil || !os.SameFile(theirs, ours) {
			return false
		}
	}
	return true
}

func takeKept(pid int, inode uint64) (*os.File, error) {
	process, err := pidfd.OpenFD(pid)
	if err != nil {
		return nil, err
	}
	defer process.Close()
	fd, err := process.File(keptFile)
	if err != nil {
		return nil, fmt.Errorf("take the file that pool %d keeps: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "kept by pool")
	if is, err := Inode(f); err != nil || is != inode || !listens(f) {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// listens tells whether a file is a socket that listens. Any user of the host can give a process the
// name of a pool, and make files until one of them has the inode. Only one socket has it.
func listens(f *os.File) bool {
	is, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && is == 1
}

// Inode returns the inode of a file, by which Kept knows it.
func Inode(f *os.File) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return 0, fmt.Errorf("find inode of %s: %w", f.Name(), err)
	}
	return stat.Ino, nil
}
