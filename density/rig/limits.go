package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/internal/sys/mounts"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cni"
)

// limit is a limit of the machine.
type limit struct {
	what, remedy string
	need, have   int64
	bytes        bool
}

func (l limit) print(n int64) string {
	if l.bytes {
		return size(n)
	}
	return strconv.FormatInt(n, 10)
}

// share returns the used part of the limit.
func (l limit) share() float64 { return float64(l.need) / max(1, float64(l.have)) }

// limits returns the limits that containers meet, with the free amount of each.
func (r *Rig) limits(containers int, network string, need Room) (list []limit, err error) {
	for _, look := range []func() ([]limit, error){
		func() ([]limit, error) { return r.storageLimits(need, r.inGroup("memory", containers, network, need)) },
		func() ([]limit, error) { return r.processLimits(need, r.inGroup("pids", containers, network, need)) },
		func() ([]limit, error) { return namespaceLimits(containers) },
	} {
		more, err := look()
		if err != nil {
			return nil, fmt.Errorf("look at the machine's limits: %w", err)
		}
		list = append(list, more...)
	}
	if network != Bridge {
		return list, nil
	}
	list = append(list, limit{what: "links of a bridge", remedy: "the kernel has no more", need: int64(containers), have: cni.LinksMax})
	tracked, err := readLimit("/proc/sys/net/netfilter/nf_conntrack_max")
	list = append(list, limit{
		what: "tracked connections", remedy: "sysctl -w net.netfilter.nf_conntrack_max=N",
		need: int64(need.Connections), have: tracked,
	})
	return list, err
}

// inGroup returns the limits of the group of the rig's own processes. In v1, runtimes make the
// containers' groups elsewhere.
func (r *Rig) inGroup(controller string, containers int, network string, need Room) Room {
	switch {
	case r.v1[controller] == "":
		return need
	case network == Graft:
		return rigRoom.plus(graftRoom, containers)
	}
	return rigRoom
}

func (r *Rig) storageLimits(need, inGroup Room) ([]limit, error) {
	info, err := readFields("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	group, err := r.groupLimit("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max", "memory.current")
	if err != nil {
		return nil, err
	}
	free, inodes, err := r.disk()
	if err != nil {
		return nil, err
	}
	return []limit{
		{what: "memory", remedy: "end other programs that use it", need: need.Memory, have: info["MemAvailable"] << 10, bytes: true},
		{what: "memory of the cgroup", remedy: "raise its limit", need: inGroup.Memory, have: group, bytes: true},
		{what: "disk in " + r.Options.Dir, remedy: "choose another folder with --work-dir", need: need.Disk, have: free, bytes: true},
		{what: "inodes in " + r.Options.Dir, remedy: "choose another folder with --work-dir", need: int64(need.Inodes), have: inodes},
	}, nil
}

// disk returns the free space of the containers' disk, in bytes and in inodes.
func (r *Rig) disk() (free, inodes int64, err error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(r.dir, &disk); err != nil {
		return 0, 0, fmt.Errorf("disk of %s: %w", r.dir, err)
	}
	inodes = int64(disk.Ffree)
	if disk.Files == 0 { // the file system makes inodes as needed
		inodes = math.MaxInt64
	}
	return int64(disk.Bavail) * disk.Bsize, inodes, nil
}

func (r *Rig) processLimits(need, inGroup Room) ([]limit, error) {
	running, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	ids, err := readLimit("/proc/sys/kernel/pid_max")
	if err != nil {
		return nil, err
	}
	threads, err := readLimit("/proc/sys/kernel/threads-max")
	if err != nil {
		return nil, err
	}
	group, err := r.groupLimit("pids", "pids.max", "pids.current", "pids.max", "pids.current")
	if err != nil {
		return nil, err
	}
	files, err := raiseFiles()
	if err != nil {
		return nil, err
	}
	now, want := int64(len(running)), int64(need.Processes)
	return []limit{
		{what: "process ids", remedy: "sysctl -w kernel.pid_max=N", need: want, have: ids - now},
		{what: "threads", remedy: "sysctl -w kernel.threads-max=N", need: want, have: threads - now},
		{what: "processes of the cgroup", remedy: "raise its pids.max, or systemd's TasksMax", need: int64(inGroup.Processes), have: group},
		{what: "open files", remedy: "raise the hard limit, ulimit -Hn N", need: int64(need.Files), have: files},
	}, nil
}

// namespaceLimits returns the limits of namespaces and mounts. Each container has one namespace of
// each kind. Its mounts start as a copy of all mounts.
func namespaceLimits(containers int) (list []limit, err error) {
	for _, kind := range []string{"net", "mnt", "pid", "ipc", "uts"} {
		name := "max_" + kind + "_namespaces"
		most, err := readLimit("/proc/sys/user/" + name)
		if err != nil {
			return nil, err
		}
		list = append(list, limit{
			what: kind + " namespaces", remedy: "sysctl -w user." + name + "=N", need: int64(containers + rigNamespaces), have: most,
		})
	}
	all, err := mounts.Read(mounts.Self, mounts.Any)
	if err != nil {
		return nil, err
	}
	most, err := readLimit("/proc/sys/fs/mount-max")
	return append(list, limit{
		what: "mounts", remedy: "sysctl -w fs.mount-max=N",
		need: int64(len(all) + containers + rigMounts), have: most,
	}), err
}

// readLimit reads a limit. The kernel may have none.
func readLimit(file string) (int64, error) {
	n, err := readNumber(file)
	if errors.Is(err, fs.ErrNotExist) {
		return math.MaxInt64, nil
	}
	return n, err
}

// groupLimit returns what the groups of the rig's own processes still allow for one controller. In
// v1 these are the groups of this process, which it has inherited.
func (r *Rig) groupLimit(controller, maxV1, nowV1, maxV2, nowV2 string) (int64, error) {
	root, group, most, now := filepath.Dir(r.group), r.group, maxV2, nowV2
	if mount, v1 := r.v1[controller]; v1 {
		own, err := ownGroup(controller)
		if err != nil {
			return 0, err
		}
		root, group, most, now = mount, filepath.Join(mount, own), maxV1, nowV1
	}
	left := int64(math.MaxInt64)
	for ; strings.HasPrefix(group, root); group = filepath.Dir(group) {
		text, err := os.ReadFile(filepath.Join(group, most))
		if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(text)) == "max" {
			continue // the root group has no limit; or a cgroup namespace shows the machine's root here
		}
		if err != nil {
			return 0, err
		}
		allowed, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s of %s: %w", most, group, err)
		}
		taken, err := readNumber(filepath.Join(group, now))
		if err != nil {
			return 0, err
		}
		left = min(left, allowed-taken)
	}
	return left, nil
}

// ownGroup returns the group of this process below the mount of a v1 controller.
func ownGroup(controller string) (string, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && strings.Contains(","+fields[1]+",", ","+controller+",") {
			return fields[2], nil
		}
	}
	return "/", nil
}

// raiseFiles raises this process's limit of open files to the largest allowed value, for its
// children too.
func raiseFiles() (int64, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0, fmt.Errorf("limit of open files: %w", err)
	}
	// The Go runtime raises only its own limit: children get the old one until it is set here.
	files.Cur = files.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0, fmt.Errorf("raise the limit of open files: %w", err)
	}
	return int64(min(files.Cur, 1<<30)), nil
}
