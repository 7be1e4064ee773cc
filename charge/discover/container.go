package discover

// Process is one life of a process: its number, and when it began, in clock ticks
// since the boot (field 22 of /proc/PID/stat).
type Process struct {
	PID   int
	Start uint64
}

// Kind is what a helper does.
type Kind string

const (
	// Shim is a containerd-shim, which may serve several containers.
	Shim Kind = "shim"
	// Logger is a logging driver, or what works for it: a child of a shim that was told
	// for which container it is.
	Logger Kind = "logger"
	// Monitor is conmon, of podman and CRI-O.
	Monitor Kind = "monitor"
)

// Helper is a process that works for containers and for nobody else.
type Helper struct {
	Process
	Kind Kind
	// Name is that of its executable.
	Name string
	// Containers are those that it works for, sorted. The time of a helper with
	// several, a pod's shim, is to be split among them by their own: for which one
	// it works cannot be seen from outside.
	Containers []string
}

// File is what a shared daemon reads or writes for one container.
type File struct {
	// Device and Inode are as stat(2) has them.
	Device, Inode uint64
	// Daemon has the file open; its PID is 0 for the pipes of init's first three
	// descriptors, whoever is at their other end.
	Daemon Process
	// Path is what the daemon has opened, or pipe:[INODE].
	Path string
	// Directory says that what else is in its directory is for the container, too.
	Directory bool
}

// Container is a running container.
type Container struct {
	ID   string
	Init Process
	// Helpers and Files are in order of pid, and of device and inode.
	Helpers []Helper
	Files   []File
}

// Changes are what a scan has found to be otherwise than the one before. A
// container that was restarted between the two is in Ended and in Started.
type Changes struct {
	Started, Changed, Ended []Container
}

// Any says whether there are any.
func (c Changes) Any() bool { return len(c.Started)+len(c.Changed)+len(c.Ended) > 0 }
