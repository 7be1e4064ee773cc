// Package rig makes the containers of a density sweep: real OCI containers, made by
// an OCI runtime from a file system of the machine's own programs, without a daemon
// but the agent's, and with nothing downloaded.
//
// It owns two network namespaces, one that stands for the host and one for a remote
// side, a mount namespace, one cgroup, one folder, and the agent for grafted
// containers. It measures how long containers take to start and to stop, and reads what
// they use; what runs in them, and what it means, is the caller's. It does not touch the
// machine's own network, mounts or other groups. It needs root, cgroups (v1, v2 or
// both, v2 at least without controllers), Linux 5.14, a runtime, and for bridges the CNI
// plugins and iptables.
//
// Theory of operation: all commands of a rig are forked by one thread that is in the
// rig's mount namespace and in that of its network which stands for the host. So what
// is mounted is seen by nobody else, and goes with the last process; a bridge is a
// link of the namespace, and goes with it. All processes are in one cgroup of the v2
// hierarchy: to take a rig down is to kill that. What a killed rig leaves is that
// cgroup with what runs in it, groups of the same name in the v1 hierarchies, and the
// folder; it is written down in Registry before it is made, and the next rig, of
// whichever process, removes it (see leftover.go).
package rig

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Networks by which a container is connected.
const (
	Bridge = "bridge" // veth, bridge and address translation, by the CNI plugins as engines call them
	Host   = "host"   // the namespace that stands for the host
	Graft  = "graft"  // tsugiki-runtime, with an agent of the rig's
	None   = "none"   // a namespace with a loopback only
)

// Storages of a container's root file system.
const (
	Overlay = "overlay" // overlayfs over the rootfs that all share
	Dir     = "dir"     // a copy of that
)

var (
	// ErrMissing says that a program or a package is missing; its text names both.
	ErrMissing = errors.New("missing")
	// ErrRoom says that the machine has no room for so many containers.
	ErrRoom = errors.New("no room")
)

// Options say how a rig is made. Containers may differ from what they say of them.
type Options struct {
	Network string // of containers that do not say; None if empty
	Runtime string // runc, crun, or a path; runc if empty
	Storage string // Overlay if empty
	Dir     string // where the rig makes its folder; the system's folder for temporary files if empty
}

// Rig is a place for containers. Its methods may be called by several goroutines.
type Rig struct{}

// New makes a rig, after it has removed what killed ones have left.
func New(o Options, log *slog.Logger) (*Rig, error) { return nil, errors.New("not yet") }

// Close ends everything and removes it.
func (r *Rig) Close() error { return nil }

// Dir is the rig's folder, for files of the caller's; on the file system that the
// containers' storage is on.
func (r *Rig) Dir() string { return "" }

// Install copies programs of the machine into the rootfs that containers are made of,
// with the libraries that they load, each at the path that it has on the machine, and
// with a link in /bin. Busybox is there from the beginning, with links for its applets.
func (r *Rig) Install(programs ...string) error { return nil }

// Put writes a file into the rootfs that containers are made of.
func (r *Rig) Put(path string, data []byte, mode uint32) error { return nil }

// Spec says what a container is to be.
type Spec struct {
	Name    string // unique in the rig while it runs; letters, digits and "-"
	Args    []string
	Env     []string // added to PATH
	Network string   // the rig's if empty, and so the next two
	Storage string
	Runtime string
	Quota   float64 // CPUs that it may use; 0: no limit
	CPUs    string  // as in cpuset.cpus; empty: all
	Memory  int64   // bytes; 0: no limit
	Mounts  []Mount
	// Ports are those that its programs listen on, each TCP on 0.0.0.0. With Host and
	// Graft they are the host's: Address says where.
	Ports []uint16
	// Ready is a line that the program prints when it is up. Without it, a container
	// with Ports is up when the first of them accepts a connection, and others when the
	// runtime has returned.
	Ready string
}

// Mount is a folder or file of the machine's that a container sees.
type Mount struct {
	From, To string
	ReadOnly bool
}

// Container is one that was started.
type Container struct{}

// Start makes and starts a container, and waits until it is up.
func (r *Rig) Start(ctx context.Context, s Spec) (*Container, error) {
	return nil, errors.New("not yet")
}

// Name is that of its Spec.
func (c *Container) Name() string { return "" }

// Started is how long Start took, from its network to that the program was up.
func (c *Container) Started() time.Duration { return 0 }

// PID is the first process, as the machine numbers it.
func (c *Container) PID() int { return 0 }

// Cgroup is the path of its group below the mount of each hierarchy, with a slash first.
func (c *Container) Cgroup() string { return "" }

// Address is where its port is reached from the host and from the remote side, as
// ADDR:PORT; of a container without a network it is that in itself.
func (c *Container) Address(port uint16) string { return "" }

// Root is its file system, as Host's commands see it.
func (c *Container) Root() string { return "" }

// Say writes a line to the standard input of the container's program.
func (c *Container) Say(line string) error { return nil }

// Line reads the next line of what the program prints, after that of Spec.Ready.
func (c *Container) Line(ctx context.Context) (string, error) { return "", nil }

// Exec runs a program in the container, by the runtime, and returns what it printed.
func (c *Container) Exec(ctx context.Context, args ...string) ([]byte, error) { return nil, nil }

// Wait waits until the container's first process has ended.
func (c *Container) Wait(ctx context.Context) error { return nil }

// Stop kills the container and removes it, as engines do, and says how long that took,
// from the kill until it was removed with its network.
func (c *Container) Stop(ctx context.Context) (time.Duration, error) { return 0, nil }

// Stats is what a container has used, and uses.
type Stats struct {
	CPU         time.Duration // of all its processes
	Periods     int64         // in which it ran, if it has a quota
	Throttled   int64         // of those
	ThrottledBy time.Duration // how long it was held back
	Processes   int
	PSS         int64 // bytes, of its processes; what several share is divided among them
	HelpersPSS  int64 // bytes, of the processes that work for it alone: gate and keepers
}

// Stats reads what the container uses.
func (c *Container) Stats() (Stats, error) { return Stats{}, nil }

// Memory is what the machine's memory is used for, in bytes.
type Memory struct {
	Available, Free, Cached, Anonymous       int64
	Slab, Unreclaimable                      int64 // Unreclaimable is of Slab
	KernelStack, PageTables, PerCPU, Vmalloc int64
	Processes                                int64 // PSS of all processes of the rig's, the agent's too
	Agent                                    int64 // PSS of the agent
	Kernel                                   int64 // Unreclaimable, KernelStack, PageTables, PerCPU and Vmalloc
}

// Memory reads what memory is used for.
func (r *Rig) Memory() (Memory, error) { return Memory{}, nil }

// Host runs a program in the namespace that stands for the host, and returns what it
// printed.
func (r *Rig) Host(ctx context.Context, args ...string) ([]byte, error) { return nil, nil }

// Outside runs a program in the namespace of the remote side, and returns what it
// printed.
func (r *Rig) Outside(ctx context.Context, args ...string) ([]byte, error) { return nil, nil }

// OverlayMount mounts an overlay for Host's commands: over lower, a folder, or over an
// empty one if that is empty. It returns the folders that it was mounted on, and that
// takes what is written, and what unmounts and removes both.
func (r *Rig) OverlayMount(lower string) (merged, upper string, remove func() error, err error) {
	return "", "", nil, errors.New("not yet")
}

// Room is what containers take at most, each.
type Room struct {
	Memory    int64 // bytes
	Disk      int64 // bytes
	Processes int
}

// CheckRoom says in one line what room the machine has and what so many containers
// take, each with what its program needs, and for its network and storage. An error
// is an ErrRoom.
func (r *Rig) CheckRoom(containers int, network, storage string, program Room) (string, error) {
	return "", nil
}
