// Package testkit builds small networks out of network namespaces, runs
// programs in them, and takes everything down again.
//
// It owns the topology that tests, benches and the demo share: a namespace that
// stands for the host, one for a remote peer, and containers behind a bridge
// with address translation, as container engines wire them. It knows nothing
// of grafting. It needs CAP_SYS_ADMIN and CAP_NET_ADMIN, Linux 5.14, and the
// program nft where a topology has containers.
//
// Theory of operation: a namespace is held by an open file and nothing else.
// It has no name in /run/netns and no mount, so topologies of processes that
// run side by side cannot collide, and a process that is killed leaves
// nothing behind: its files close, its children get the signal that
// [Namespace.Command] asks the kernel for, and the kernel then drops the
// namespaces with every link in them. Only what those children started
// themselves outlives a kill, as it does anywhere; Close finds it too. Other programs reach a namespace by
// [Namespace.Path] while the process that built it lives.
//
// All links are made inside the namespaces they belong to; the namespace that
// the process was started in is never changed.
package testkit

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
)

// The addresses of a topology. They are documentation ranges (RFC 5737,
// RFC 3849), except for the private one behind the bridge.
var (
	HostAddr4   = netip.MustParseAddr("198.51.100.1")
	HostAddr6   = netip.MustParseAddr("2001:db8:1::1")
	RemoteAddr4 = netip.MustParseAddr("198.51.100.2")
	RemoteAddr6 = netip.MustParseAddr("2001:db8:1::2")
	BridgeAddr4 = netip.MustParseAddr("10.88.0.1")
)

// MaxContainers is how many containers a topology can have: as many addresses
// as are left behind the bridge.
const MaxContainers = 244

// TB is what testkit needs of a testing.TB. Programs that are no tests use the
// functions that return errors instead, or Outside.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// NeedsError reports that the machine lacks something that a topology or a
// test needs. Tests skip on it, programs print it.
type NeedsError struct {
	What string
}

func (e *NeedsError) Error() string { return "needs " + e.What }

// Options says which parts of a topology to build. The zero value is the host
// and the remote.
type Options struct {
	// Containers is the number of containers behind the host's bridge. With
	// none there is no bridge and no address translation.
	Containers int
	// IPv6Only leaves the IPv4 addresses of the host and the remote out, but for loopback ones.
	// It goes without containers.
	IPv6Only bool
	// NoRemote leaves the remote out.
	NoRemote bool
	// CongestionControl is set in every namespace; empty keeps the kernel's
	// default, which new namespaces inherit.
	CongestionControl string
}

// Topology is a set of connected namespaces.
//
//	remote srv ── veth ── host h ── bridge br0 ─┬─ veth ── container c1
//	 198.51.100.2         198.51.100.1          └─ veth ── container c2
//	 2001:db8:1::2        2001:db8:1::1            10.88.0.11, 10.88.0.12, …
//	                      10.88.0.1 (br0)          default route 10.88.0.1
type Topology struct {
	Host       *Namespace
	Remote     *Namespace // nil with Options.NoRemote
	Containers []*Namespace
}

// New builds a topology. The caller closes it.
func New(ctx context.Context, o Options) (*Topology, error) {
	if os.Geteuid() != 0 {
		return nil, &NeedsError{"root (CAP_SYS_ADMIN and CAP_NET_ADMIN)"}
	}
	if o.Containers < 0 || o.Containers > MaxContainers {
		return nil, fmt.Errorf("build topology: %d containers, want 0..%d", o.Containers, MaxContainers)
	}
	if o.IPv6Only && o.Containers > 0 {
		return nil, errors.New("build topology: containers behind a bridge have IPv4")
	}
	t := &Topology{}
	if err := t.build(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("build topology: %w", err), t.Close())
	}
	return t, nil
}

// Build builds a topology for a test and closes it when the test ends. It
// skips the test where the machine lacks something.
func Build(t TB, o Options) *Topology {
	t.Helper()
	top, err := New(context.Background(), o)
	var needs *NeedsError
	if errors.As(err, &needs) {
		t.Skipf("skip: %v", needs)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := top.Close(); err != nil {
			t.Errorf("%v", err)
		}
	})
	return top
}

// Namespaces lists the namespaces of the topology, the host first.
func (t *Topology) Namespaces() []*Namespace {
	var all []*Namespace
	for _, ns := range append([]*Namespace{t.Host, t.Remote}, t.Containers...) {
		if ns != nil {
			all = append(all, ns)
		}
	}
	return all
}

// Close kills what still runs in the namespaces, waits for what
// [Namespace.Command] started, and lets go of them. It may be called more than
// once.
func (t *Topology) Close() error {
	var errs []error
	for _, ns := range t.Namespaces() {
		errs = append(errs, ns.close())
	}
	return errors.Join(errs...)
}

// ContainerAddr4 is the address of container i, counted from 0 as in
// Topology.Containers.
func ContainerAddr4(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 88, 0, byte(11 + i)})
}
