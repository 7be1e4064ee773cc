package discover

// Process identifies a process by its pid and its start time. The kernel uses a pid again after the
// process has ended. Start is in clock ticks since the boot (field 22 of /proc/PID/stat).
type Process struct {
	PID   int
	Start uint64
}

// Kind is the kind of a helper.
type Kind string

const (
	// Shim is a containerd-shim, which may serve several containers.
	Shim Kind = "shim"
	// Logger is a logging driver: a child of a shim whose environment names its container.
	Logger Kind = "logger"
	// Monitor is conmon, which podman and CRI-O start for each container.
	Monitor Kind = "monitor"
)

// Helper is a process that works only for containers.
type Helper struct {
	Process
	Kind Kind
	// Name is the name of the helper's executable.
	Name string
	// Containers are the ids of the containers that the helper works for, sorted. If there are
	// several (a pod's shim), divide the helper's time among them by the containers' own CPU times.
	// Nothing shows from outside which of them the helper works for.
	Containers []string
}

// File is a file that a shared daemon reads or writes for one container.
type File struct {
	// Device and Inode are the numbers that stat(2) returns.
	Device, Inode uint64
	// Daemon is the process that has the file open. Its PID is 0 for the pipes of init's first
	// three descriptors: any process may have the other end.
	Daemon Process
	// Path is the path of the open file, or pipe:[INODE].
	Path string
	// Directory says that the other files in the same directory are for the container, too.
	Directory bool
}

// Container is a running container.
type Container struct {
	ID   string
	Init Process
	// Helpers is in the order of pids. Files is in the order of devices and inodes.
	Helpers []Helper
	Files   []File
}

// Changes lists the differences between two scans. A container that was restarted between them is
// in both Ended and Started.
type Changes struct {
	Started, Changed, Ended []Container
}

// Any tells whether there is a change.
func (c Changes) Any() bool { return len(c.Started)+len(c.Changed)+len(c.Ended) > 0 }
