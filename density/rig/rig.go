// Package rig makes the containers of a density sweep: real OCI containers, made by
// an OCI runtime from a file system of the machine's own programs, without a daemon
// but the agent's, and with nothing downloaded.
//
// It owns network namespaces, one that stands for the host, one that stands for a host
// with a bridge and one for a remote side, a mount namespace, one cgroup, one folder, and
// the agent for grafted containers. It measures how long containers take to start and to stop, and reads what
// they use; what runs in them, and what it means, is the caller's. It does not touch the
// machine's own network, mounts or other groups. It needs root, cgroups (v1, v2 or
// both, v2 at least without controllers), Linux 5.14, a runtime, and for bridges the CNI
// plugins and iptables.
//
// Theory of operation: all commands of a rig are forked by one thread that is in the
// rig's mount namespace and in that of its network namespaces which stands for the host.
// So what is mounted is seen by nobody else, and goes with the last process. A bridge
// and its rules go with a namespace of their own: else what other containers send would
// be tracked, and translated, as soon as one was behind a bridge. All processes are in one cgroup of the
// v2 hierarchy: to take a rig down is to kill that. What a killed rig leaves is that
// cgroup with what runs in it, groups of the same name in the v1 hierarchies, and the
// folder; it is written down in Registry before it is made, and the next rig, of
// whichever process, removes it (leftover.go).
package rig

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/bundle"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/cni"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// Networks by which a container is connected.
const (
	Bridge = "bridge" // veth, bridge, address translation: CNI's plugins, as engines call them
	Host   = "host"   // the namespace that stands for the host
	Graft  = "graft"  // tsugiki-runtime, with an agent of the rig's
	None   = "none"   // a namespace with a loopback only
)

// Storages of a container's root file system.
const (
	Overlay = "overlay" // overlayfs over the rootfs that all share
	Dir     = "dir"     // a copy of that
	Shared  = "shared"  // the rootfs itself, read-only
)

var (
	// ErrMissing says that a program or a package is missing; its text names both.
	ErrMissing = bundle.ErrMissing
	// ErrRoom says that the machine has no room for so many containers.
	ErrRoom = errors.New("no room")
	// ErrTaken says that a port or a name is in use.
	ErrTaken = errors.New("is taken")
)

// The addresses of a rig, of documentation ranges (RFC 5737).
var (
	hostAddr   = netip.MustParsePrefix("198.51.100.1/24")
	remoteAddr = netip.MustParsePrefix("198.51.100.2/24")
	// Of the host that has the bridge, and of the remote side's link to it.
	bridgedAddr       = netip.MustParsePrefix("203.0.113.1/24")
	remoteBridgedAddr = netip.MustParsePrefix("203.0.113.2/24")
)

// RemoteAddr is the remote side, as the host and grafted containers see it.
func RemoteAddr() netip.Addr { return remoteAddr.Addr() }

// helpersGroup has the rig's own processes, below its group.
const helpersGroup = "helpers"

// Options say how a rig is made. Containers may differ from what they say of them.
type Options struct {
	Network string // of containers that do not say; None if empty
	Runtime string // runc, crun, or a path; runc if empty
	Storage string // Overlay if empty
	Dir     string // where the rig makes its folder; the system's for temporary files if empty
	Bin     string // the folder of tsugiki's programs; where they are installed if empty
}

// Rig is a set of namespaces, a cgroup and a folder, in which containers run. Its methods may be called by several goroutines.
type Rig struct {
	Options

	dir     string
	claim   *os.File // locked as long as the rig is
	group   string   // the rig's, in the v2 hierarchy
	helpers *os.File // the group of its own processes
	v1      map[string]string
	mounts  *os.File
	host    *namespace
	bridged *namespace // the host that has the bridge
	pureV1  *namespace // the host without the v2 hierarchy; nil if all is v2
	remote  *namespace

	mu         sync.Mutex // guards what follows
	containers map[string]*Container
	ports      map[uint16]string // of the host's: by whom they are taken
	agent      *Agent            // nil until a container is grafted
	bridge     *cni.Network      // nil until a container is connected to it
}

// New makes a rig, after it has removed what killed ones have left.
func New(o Options) (_ *Rig, err error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("make containers: %w; run as root", unix.EPERM)
	}
	r := &Rig{Options: o.withDefaults(), containers: map[string]*Container{}, ports: map[uint16]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if _, err := findRuntime(r.Runtime); err != nil {
		return nil, err
	}
	if r.v1, err = cgroup.Controllers(); err != nil {
		return nil, err
	}
	if r.dir, r.claim, err = claim(r.Options.Dir); err != nil {
		return nil, err
	}
	if err := r.makeGroup(); err != nil {
		return nil, err
	}
	if err := r.makeNamespaces(); err != nil {
		return nil, err
	}
	return r, r.makeRootfs()
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		option  *string
		without string
	}{{&o.Network, None}, {&o.Runtime, "runc"}, {&o.Storage, Overlay}, {&o.Dir, os.TempDir()}} {
		if *d.option == "" {
			*d.option = d.without
		}
	}
	return o
}

// findRuntime finds an OCI runtime by its name or path.
func findRuntime(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("runtime %s %w: install the package %s, or choose another with --runtime", name, ErrMissing, filepath.Base(name))
	}
	return filepath.Abs(path)
}

// name is that of the rig's groups and folder.
func (r *Rig) name() string { return filepath.Base(r.dir) }

// Dir is the rig's folder, for files of the caller's; on the file system that the
// containers' storage is on.
func (r *Rig) Dir() string { return filepath.Join(r.dir, "files") }

// Group is the rig's cgroup in the v2 hierarchy. All processes of the rig are below it.
func (r *Rig) Group() string { return r.group }

// Running are the names of the containers that were started and not stopped.
func (r *Rig) Running() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.containers))
}

// Cgroups says which hierarchies the machine has: v2, or v1 beside it (hybrid).
func (r *Rig) Cgroups() string {
	if len(r.v1) > 0 {
		return "hybrid"
	}
	return "v2"
}

// makeGroup makes the rig's group, with one for its own processes: in v2, a group that
// has children with controllers has no processes.
func (r *Rig) makeGroup() error {
	v2, err := cgroup.Mounted()
	if err != nil {
		return err
	}
	group, err := cgroup.Create(v2, r.name())
	if err != nil {
		return err
	}
	r.group = group.Path()
	helpers, err := cgroup.Create(r.group, helpersGroup)
	if err != nil {
		return err
	}
	r.helpers, err = helpers.Open()
	return err
}

// makeNamespaces makes the namespaces and connects them.
func (r *Rig) makeNamespaces() (err error) {
	if r.host, err = newNamespace(nil); err != nil {
		return err
	}
	if r.mounts, err = r.host.mounts(); err != nil {
		return err
	}
	for _, p := range []**namespace{&r.bridged, &r.remote} {
		if *p, err = newNamespace(r.mounts); err != nil {
			return err
		}
	}
	if len(r.v1) > 0 {
		if r.pureV1, err = r.host.without(filepath.Dir(r.group)); err != nil {
			return err
		}
	}
	err = netns.Connect(netns.End{NS: r.host.net, Name: "remote", Addr: hostAddr}, netns.End{NS: r.remote.net, Name: "host", Addr: remoteAddr})
	if err != nil {
		return err
	}
	return netns.Connect(netns.End{NS: r.bridged.net, Name: "remote", Addr: bridgedAddr},
		netns.End{NS: r.remote.net, Name: "bridged", Addr: remoteBridgedAddr})
}

// Close ends everything and removes it. It may be called again after an error.
func (r *Rig) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	// Before the kill: an overlay waits until the whole disk is written when its last
	// mount goes. So each goes with its container, all at the same time, and not one
	// after the other with our thread.
	for _, c := range r.containers {
		if c.mounted != "" {
			errs = append(errs, r.unmount(c.mounted))
		}
	}
	if r.group != "" {
		errs = append(errs, cgroup.At(r.group).Kill())
	}
	for _, c := range r.containers {
		c.close()
	}
	clear(r.containers)
	if r.agent != nil {
		r.agent.close()
		r.agent = nil
	}
	for _, p := range []**namespace{&r.remote, &r.bridged, &r.pureV1, &r.host} {
		if *p != nil {
			errs = append(errs, (*p).close())
			*p = nil
		}
	}
	for _, f := range []**os.File{&r.mounts, &r.helpers} {
		if *f != nil {
			errs = append(errs, (*f).Close())
			*f = nil
		}
	}
	if r.claim != nil {
		if err := remove(r.dir, r.claim.Name()); err != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, r.claim.Close())
		r.claim = nil
	}
	return errors.Join(errs...)
}

// state is the runtimes' own folder.
func (r *Rig) state() string { return filepath.Join(r.dir, "state") }
