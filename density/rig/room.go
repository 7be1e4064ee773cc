package rig

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Room is the largest amount of each resource that a container uses.
type Room struct {
	Memory      int64 // bytes
	Disk        int64 // bytes
	Inodes      int   // files and folders on that disk
	Processes   int
	Files       int // open files of this process or the agent
	Connections int // from outside to the containers, within a second
}

// The resources of a container besides its program: for the runtime that starts it, its file
// system, and its network.
var (
	anyRoom = Room{Memory: 1 << 20, Disk: 64 << 10, Inodes: 16, Processes: 1, Files: 6}
	// The descriptors of two gates or keepers and of the kernel's maps; the agent's files.
	graftRoom  = Room{Memory: 3 << 20, Disk: 64 << 10, Processes: 3, Files: 40}
	bridgeRoom = Room{Memory: 1 << 20, Disk: 8 << 10, Inodes: 2, Files: 1}
	// The processes of the agent, and of one runtime with its helpers at a time.
	rigRoom = Room{Memory: 256 << 20, Disk: 16 << 20, Inodes: 1000, Processes: 40, Files: 200}
	// The namespaces of each kind that a rig itself has, and its mounts.
	rigNamespaces, rigMounts = 4, 64
	// shownLimits is the number of limits that are shown: those with the largest used part.
	shownLimits = 4
)

func (a Room) plus(b Room, times int) Room {
	n := int64(times)
	return Room{a.Memory + b.Memory*n, a.Disk + b.Disk*n, a.Inodes + b.Inodes*times, a.Processes + b.Processes*times, a.Files + b.Files*times, a.Connections + b.Connections*times}
}

// CheckRoom compares the machine's resources with the need of n containers: each needs the
// resources of its program, its network and its storage. It returns one line with both. An ErrRoom
// has a line for each limit that is too low, with the way to raise it. CheckRoom also raises this
// process's limit of open files to the largest allowed value.
func (r *Rig) CheckRoom(containers int, network, storage string, program Room) (string, error) {
	need, err := r.need(containers, network, storage, program)
	if err != nil {
		return "", err
	}
	limits, err := r.limits(containers, network, need)
	if err != nil {
		return "", err
	}
	slices.SortStableFunc(limits, func(a, b limit) int { return cmp.Compare(b.share(), a.share()) })
	var short, all []string
	for _, l := range limits {
		if l.need > l.have {
			short = append(short, fmt.Sprintf("%d containers (%s, %s) take %s of %s, there are %s: %s",
				containers, network, storage, l.print(l.need), l.what, l.print(l.have), l.remedy))
		}
		all = append(all, fmt.Sprintf("%s of %s of %s", l.print(l.need), l.print(l.have), l.what))
	}
	if len(short) > 0 {
		return "", fmt.Errorf("%w: %s; or take fewer containers", ErrRoom, strings.Join(short, "; "))
	}
	return fmt.Sprintf("%d containers (%s, %s) take at most %s; that is most of %d limits", containers, network, storage,
		strings.Join(all[:shownLimits], ", "), len(limits)), nil
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
		copied, err := treeRoom(r.rootfs())
		if err != nil {
			return Room{}, err
		}
		each = each.plus(copied, 1)
	}
	return rigRoom.plus(each, containers), nil
}

// treeRoom returns the resources that the files in a folder use.
func treeRoom(dir string) (sum Room, err error) {
	const block = 4096
	err = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum.Disk += (info.Size() + block - 1) / block * block
			sum.Inodes++
		}
		return err
	})
	return sum, err
}

// size formats a number of bytes.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
}

// BlameDisk adds to an error that the containers' disk is full, if it has less free space than the
// rig needs at its start. The messages of programs are often misleading then.
func (r *Rig) BlameDisk(err error) error {
	if free, _, unknown := r.disk(); unknown != nil || free >= rigRoom.Disk {
		return err
	}
	return fmt.Errorf("%w; %s: %w", err, r.dir, unix.ENOSPC)
}

// DiskFull tells whether a full disk caused an error, here or in a program.
func DiskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) ||
		err != nil && strings.Contains(strings.ToLower(err.Error()), unix.ENOSPC.Error())
}
