package shared

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/mounts"
)

// Identify returns the numbers by which the kernel programs know a file. They are the numbers of
// stat(2), except on btrfs and overlayfs, where stat(2) returns the device of a subvolume or of a
// layer. The last component of the path may be a link in /proc/PID/fd.
func Identify(path string) (File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return File{}, fmt.Errorf("identify %s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(fd, &st); err != nil {
		return File{}, fmt.Errorf("identify %s: %w", path, err)
	}
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return File{}, fmt.Errorf("identify %s: %w", path, err)
	}
	if fs.Type != unix.BTRFS_SUPER_MAGIC && fs.Type != unix.OVERLAYFS_SUPER_MAGIC {
		return File{st.Dev, st.Ino}, nil
	}
	file, err := identifyMounted(fd)
	if err != nil {
		return File{}, fmt.Errorf("identify %s: %w", path, err)
	}
	return file, nil
}

// identifyMounted uses sources other than the file system's own stat: fdinfo has the kernel's inode
// number (since 5.14), and the list of mounts has the device.
func identifyMounted(fd int) (File, error) {
	runtime.LockOSThread() // the thread of the files below may not end before they are read
	defer runtime.UnlockOSThread()
	info, err := os.ReadFile(fmt.Sprintf("/proc/thread-self/fdinfo/%d", fd))
	if err != nil {
		return File{}, err
	}
	var mount string
	var file File
	for line := range strings.Lines(string(info)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch name {
		case "mnt_id":
			mount = value
		case "ino":
			if file.Ino, err = strconv.ParseUint(value, 10, 64); err != nil {
				return File{}, err
			}
		}
	}
	list, err := mounts.Read("/proc/thread-self/mountinfo", mounts.ID(mount))
	if err != nil {
		return File{}, err
	}
	if len(list) == 0 {
		return File{}, fmt.Errorf("mount %s is of another namespace", mount)
	}
	file.Dev = unix.Mkdev(uint32(list[0].Major), uint32(list[0].Minor))
	return file, nil
}
