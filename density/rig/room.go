package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Room is what a container takes at most.
type Room struct {
	Memory    int64 // bytes
	Disk      int64 // bytes
	Processes int
	Files     int // that this process, or the agent, has open
}

// What containers take besides their programs: the runtime while it starts one, its
// file system, and what connects it.
var (
	anyRoom = Room{Memory: 1 << 20, Disk: 64 << 10, Processes: 1, Files: 6}
	// Two gates or keepers and the kernel's maps; the agent's files.
	graftRoom  = Room{Memory: 3 << 20, Disk: 64 << 10, Processes: 3, Files: 40}
	bridgeRoom = Room{Memory: 1 << 20, Disk: 4 << 10, Files: 1}
	// The agent, and one runtime with its helpers at a time.
	rigRoom = Room{Memory: 256 << 20, Disk: 16 << 20, Processes: 40, Files: 200}
)

func (a Room) plus(b Room, times int) Room {
	n := int64(times)
	return Room{a.Memory + b.Memory*n, a.Disk + b.Disk*n, a.Processes + b.Processes*times, a.Files + b.Files*times}
}

// CheckRoom compares what the machine has with what so many containers take, each with
// what its program takes, and for its network and storage; it says both in one line. An
// error is an ErrRoom, with the same line. It also raises this process's limit of open
// files to what it may be.
func (r *Rig) CheckRoom(containers int, network, storage string, program Room) (string, error) {
	need, err := r.need(containers, network, storage, program)
	if err != nil {
		return "", err
	}
	have, err := r.room()
	if err != nil {
		return "", err
	}
	said := fmt.Sprintf("%d containers (%s, %s) take at most %s of memory, %s of disk, %d processes and %d files; there are %s, %s, %d and %d",
		containers, network, storage, size(need.Memory), size(need.Disk), need.Processes, need.Files,
		size(have.Memory), size(have.Disk), have.Processes, have.Files)
	var short []string
	for _, s := range []struct {
		what  string
		short bool
	}{
		{"memory", need.Memory > have.Memory},
		{"disk in " + r.Options.Dir, need.Disk > have.Disk},
		{"processes", need.Processes > have.Processes},
		{"open files", need.Files > have.Files},
		{fmt.Sprintf("links of a bridge, %d", bridgeMax), network == Bridge && containers > bridgeMax},
	} {
		if s.short {
			short = append(short, s.what)
		}
	}
	if len(short) > 0 {
		return "", fmt.Errorf("%w for %s: %s; choose a smaller --max", ErrRoom, strings.Join(short, " and "), said)
	}
	return said, nil
}

func (r *Rig) need(containers int, network, storage string, program Room) (Room, error) {
	each := anyRoom.plus(program, 1)
	switch network {
	case Graft:
		each = each.plus(graftRoom, 1)
	case Bridge:
		each = each.plus(bridgeRoom, 1)
	}
	if storage == Dir {
		copied, err := treeSize(r.rootfs())
		if err != nil {
			return Room{}, err
		}
		each.Disk += copied
	}
	return rigRoom.plus(each, containers), nil
}

// room is what the machine has left.
func (r *Rig) room() (have Room, err error) {
	info, err := readFields("/proc/meminfo")
	if err != nil {
		return have, err
	}
	have.Memory = info["MemAvailable"] << 10
	if have.Processes, err = freeProcesses(); err != nil {
		return have, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(r.dir, &fs); err != nil {
		return have, fmt.Errorf("look at the disk of %s: %w", r.dir, err)
	}
	have.Disk = int64(fs.Bavail) * fs.Bsize
	have.Files, err = raiseFiles()
	return have, err
}

// freeProcesses is what is left of the machine's process ids.
func freeProcesses() (int, error) {
	most, err := readNumber("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0, err
	}
	threads, err := readNumber("/proc/sys/kernel/threads-max")
	if err != nil {
		return 0, err
	}
	running, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	return int(min(most, threads)) - len(running), nil
}

// raiseFiles raises the limit of open files to the highest that this process may have,
// for its children too.
func raiseFiles() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("look at the limit of open files: %w", err)
	}
	// Go has done so, but only for us: children get what was before, until it is set.
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("raise the limit of open files: %w", err)
	}
	return int(min(limit.Cur, 1<<30)), nil
}

// treeSize is how much the files in a folder take.
func treeSize(dir string) (sum int64, err error) {
	const block = 4096
	err = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += (info.Size() + block - 1) / block * block
		}
		return err
	})
	return sum, err
}

// size prints bytes.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
}

// DiskFull tells whether an error comes from a disk without room.
func DiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
