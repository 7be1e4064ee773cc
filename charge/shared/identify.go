package shared

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Identify returns what the kernel programs know a file by. That is what stat(2)
// tells, but for btrfs and overlayfs, which tell programs the device of a subvolume
// or of a layer. The last component may be a link of /proc/PID/fd.
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

// identifyMounted asks what does not go by the file system's own stat: fdinfo has the
// kernel's inode number (since 5.14), and the list of mounts the device.
func identifyMounted(fd int) (File, error) {
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
	mounts, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return File{}, err
	}
	defer mounts.Close()
	file.Dev, err = mountDevice(mounts, mount)
	return file, err
}

// mountDevice looks a mount's device up. The names in the list are whoever mounted's
// choice; the kernel escapes white space in them.
func mountDevice(mounts io.Reader, id string) (uint64, error) {
	lines := bufio.NewScanner(mounts)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || fields[0] != id {
			continue
		}
		var major, minor uint32
		if _, err := fmt.Sscanf(fields[2], "%d:%d", &major, &minor); err != nil {
			return 0, fmt.Errorf("device %q of mount %s: %w", fields[2], id, err)
		}
		return unix.Mkdev(major, minor), nil
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("mount %s is of another namespace", id)
}
