// Package rig makes the containers of a density sweep. They are real OCI containers: an OCI runtime
// makes them from a file system of the machine's own programs. No daemon but the agent is needed,
// and nothing is downloaded.
//
// It owns three network namespaces (one stands for the host, one for a host with a bridge, one for
// a remote side), a mount namespace, one cgroup, one folder, and the agent for grafted containers.
// It measures how long containers take to start and to stop, and reads the resources that they use.
// The caller decides which programs run in them and interprets the figures. The rig does not touch
// the machine's own network, mounts or other groups. It needs root, cgroups (v1, v2 or both, v2 at
// least without controllers), Linux 5.14, a runtime, and for bridges the CNI plugins and iptables.
//
// Theory of operation: one thread forks all commands of a rig. It is in the rig's mount namespace
// and in the network namespace that stands for the host. So only the rig's processes see its
// mounts, and the mounts disappear with the last of these processes. A bridge and its rules are in
// another namespace. Otherwise the kernel would track and translate the packets of all containers
// as soon as one container is behind a bridge. All processes are in one cgroup of the v2 hierarchy:
// killing that group ends the rig's processes. A killed rig leaves that cgroup with its processes,
// groups of the same name in the v1 hierarchies, and the folder. Registry lists these before they
// are made, and the next rig of any process removes them (leftover.go).
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

// The networks of containers.
const (
	Bridge = "bridge" // veth, bridge, address translation: CNI's plugins, as engines call them
	Host   = "host"   // the namespace that stands for the host
	Graft  = "graft"  // tsugiki-runtime, with the rig's agent
	None   = "none"   // a namespace with only a loopback
)

// The storages of a container's root file system.
const (
	Overlay = "overlay" // overlayfs over the rootfs, which all containers share
	Dir     = "dir"     // a copy of the rootfs
	Shared  = "shared"  // the rootfs itself, read-only
)

var (
	// ErrMissing says that a program or a package is missing. Its text names both.
	ErrMissing = bundle.ErrMissing
	// ErrRoom says that the machine has too few resources for that many containers.
	ErrRoom = errors.New("no room")
	// ErrTaken says that a port or a name is in use.
	ErrTaken = errors.New("is taken")
)

// The addresses of a rig, from the documentation ranges (RFC 5737).
var (
	hostAddr   = netip.MustParsePrefix("198.51.100.1/24")
	remoteAddr = netip.MustParsePrefix("198.51.100.2/24")
	// The link between the host with the bridge and the remote side.
	bridgedAddr       = netip.MustParsePrefix("203.0.113.1/24")
	remoteBridgedAddr = netip.MustParsePrefix("203.0.113.2/24")
)

// RemoteAddr is the address of the remote side for the host and for grafted containers.
func RemoteAddr() netip.Addr { return remoteAddr.Addr() }

// helpersGroup is the child group of the rig's group for the rig's own processes.
const helpersGroup = "helpers"

// Options configures a rig. A container's Spec can override Network, Runtime and Storage.
type Options struct {
	Network string // the default of containers; empty: None
	Runtime string // runc, crun, or a path; empty: runc
	Storage string // empty: Overlay
	Dir     string // the rig's folder is made in it; empty: the system's folder for temporary files
	Bin     string // the folder of tsugiki's programs; empty: where they are installed
}

// Rig has the namespaces, the cgroup and the folder in which containers run. Several goroutines may
// call its methods.
type Rig struct {
	Options

	dir     string
	claim   *os.File // the file in Registry, locked as long as the rig exists
	group   string   // the rig's, in the v2 hierarchy
	helpers *os.File // the group of the rig's own processes
	v1      map[string]string
	mounts  *os.File
	host    *namespace
	bridged *namespace // the host with the bridge
	pureV1  *namespace // the host without the v2 hierarchy; nil if all is v2
	remote  *namespace

	mu         sync.Mutex // guards the fields below
	containers map[string]*Container
	ports      map[uint16]string // name of the container by port of the host
	agent      *Agent            // nil until a container is grafted
	bridge     *cni.Network      // nil until a container is connected to it
}

// New removes what killed rigs have left, and makes a rig.
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

// name returns the name of the rig's groups and folder.
func (r *Rig) name() string { return filepath.Base(r.dir) }

// Dir returns the rig's folder. The caller may keep files there. It is on the same file system as
// the containers' storage.
func (r *Rig) Dir() string { return filepath.Join(r.dir, "files") }

// Group returns the rig's cgroup in the v2 hierarchy. All processes of the rig are below it.
func (r *Rig) Group() string { return r.group }

// Running returns the names of the containers that were started and not stopped.
func (r *Rig) Running() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.containers))
}

// Cgroups returns the kind of the machine's hierarchies: v1, hybrid (v2 beside v1) or v2.
func (r *Rig) Cgroups() string {
	if len(r.v1) > 0 {
		return "hybrid"
	}
	return "v2"
}

// makeGroup makes the rig's group, and a child group for the rig's own processes: in v2, a group
// whose children have controllers cannot have processes.
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

// Close ends all processes and removes everything. After an error it may be called again.
func (r *Rig) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	// This comes before the kill. When the last mount of an overlay goes, the kernel writes the
	// whole disk first. So each overlay goes with its container, all at the same time, and not one
	// after the other when our thread ends.
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

// state returns the runtimes' own folder.
func (r *Rig) state() string { return filepath.Join(r.dir, "state") }
