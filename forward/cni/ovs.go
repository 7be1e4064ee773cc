package cni

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
	"unsafe"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
	"github.com/tsugiki/tsugiki/forward/offload/ports"
)

// ovs is a bridge of Open vSwitch on this host. A pod's packets come to it by a wire, a second
// pair of links: a switch in user space takes copies of what arrives at its port (AF_PACKET)
// before any kernel program runs there, so direct packets may not arrive at the port.
//
//	pod eth0 ── host [forward_from_pod] ─redirect─► wire ── port ── Open vSwitch
//	                        redirect_peer ◄── [forward_from_wire]
type ovs struct {
	database string // of ovsdb-server: unix:PATH
	bridge   string
	limit    time.Duration // how long the switch may take for one of the calls
	overhead int           // of the bridge's tunnels, in bytes; after prepare
}

// switchTime is how long a switch may take. Hundreds of pods can come at once, and ovs-vswitchd can
// be at the flows of others.
const switchTime = 30 * time.Second

// withDatabase calls a function with a connection to the switch's database.
func (o *ovs) withDatabase(use func(context.Context, *ovsdb.Client) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), o.limit)
	defer cancel()
	conn, err := ovsdb.Dial(ctx, strings.TrimPrefix(o.database, "unix:"))
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("reach ovsdb-server: %w; start openvswitch-switch, or write where it serves as ovsdb", err)
	}
	if err == nil {
		db := ovsdb.NewClient(conn)
		defer db.Close()
		err = use(ctx, db)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return failure(types.ErrTryAgainLater, "the switch needs more than %s: %v; look whether ovsdb-server and ovs-vswitchd run and have CPU time", o.limit, err)
	case errors.Is(err, ovsdb.ErrClosed):
		return fmt.Errorf("%w; look whether ovsdb-server runs", err)
	}
	return err
}

func (o *ovs) prepare(*current.Result) error { return o.usable() }

func (o *ovs) usable() error {
	return o.withDatabase(func(ctx context.Context, db *ovsdb.Client) error {
		b, err := ports.FindBridge(ctx, db, o.bridge)
		if err != nil {
			return err
		}
		for _, t := range b.Tunnels {
			o.overhead = max(o.overhead, tunnelOverhead(t))
		}
		return nil
	})
}

// mtu leaves room for the headers of the bridge's tunnels, so that a pod's largest packet goes
// through one whole.
func (o *ovs) mtu() int { return usualMTU - o.overhead }

// tunnelOverhead is what a tunnel adds to a pod's packet: its own Ethernet header, that of the tunnel,
// and those of UDP and IP. IPv6 is where an end of the tunnel says so.
func tunnelOverhead(t ports.Tunnel) int {
	bytes := map[string]int{
		"vxlan":  14 + 8 + 8 + 20,  // RFC 7348
		"geneve": 14 + 16 + 8 + 20, // RFC 8926, with the 8 bytes of options that OVN has
		"gre":    14 + 8 + 20,      // RFC 2890, with a key
	}[t.Kind]
	if bytes > 0 && strings.Contains(t.Options["remote_ip"]+t.Options["local_ip"], ":") {
		bytes += 20
	}
	return bytes
}

func (o *ovs) connect(l *podLink, name names, _ *current.Result, done *undo) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name.wire, l.mtu
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name.port, PeerMTU: uint32(l.mtu)}); err != nil {
		return fmt.Errorf("make wire %s: %w", name.wire, err)
	}
	*done = append(*done, func() error { return o.disconnect(name) })
	end := 0 // the index of the port's link
	for _, each := range []string{name.host, name.wire, name.port} {
		// The host says nothing of its own to the pod or to the switch.
		file := "/proc/sys/net/ipv6/conf/" + each + "/disable_ipv6"
		if err := os.WriteFile(file, []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("set %s: %w", file, err)
		}
		link, err := netlink.LinkByName(each)
		if err != nil {
			return fmt.Errorf("find link %s: %w", each, err)
		}
		if each == name.host {
			continue
		}
		// These links outlive the pod: GC finds them by their owner.
		if err := netlink.LinkSetAlias(link, name.Alias()); err != nil {
			return fmt.Errorf("name owner of link %s: %w", each, err)
		}
		if each == name.wire {
			l.wire = link.Attrs().Index
			continue
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("set link %s up: %w", each, err)
		}
		end = link.Attrs().Index
	}
	l.network = networkOf(o.database, o.bridge)
	return o.withDatabase(func(ctx context.Context, db *ovsdb.Client) error {
		b, err := ports.FindBridge(ctx, db, o.bridge)
		if err != nil {
			return err
		}
		if b.UserSpace {
			l.end = end
		}
		return ports.Plug(ctx, db, o.bridge, name.port, name.Owner)
	})
}

// open sets the wire up: until then nothing comes to the switch's port, and nothing from it.
func (*ovs) open(l *podLink, name names, _ *current.Result) error {
	wire, err := netlink.LinkByIndex(l.wire)
	if err == nil {
		err = netlink.LinkSetUp(wire)
	}
	if err != nil {
		return fmt.Errorf("set link %s up: %w", name.wire, err)
	}
	return nil
}

// networkOf is a number of a switch's bridge, and not that of a bridge of the kernel's, which is
// the index of a link.
func networkOf(database, bridge string) uint32 {
	digest := sha256.Sum256([]byte(database + " " + bridge))
	return 1<<31 | binary.BigEndian.Uint32(digest[:])
}

// disconnect does not wait for ovs-vswitchd. The links say whose the port is and go last: GC finds
// them, and so the port that a killed DEL has left.
func (o *ovs) disconnect(name names) error {
	err := o.withDatabase(func(ctx context.Context, db *ovsdb.Client) error { return ports.Unplug(ctx, db, name.port) })
	if err != nil {
		return err
	}
	wire, err := findLink(name.wire)
	if err != nil || wire == nil {
		return err
	}
	return deleteLink(wire)
}

func (o *ovs) connected(_ netlink.Link, name names) error {
	var port netlink.Link
	for _, each := range []string{name.wire, name.port} {
		link, err := findLink(each)
		switch {
		case err != nil:
			return err
		case link == nil:
			return fmt.Errorf("there is no link %s", each)
		case link.Attrs().Flags&net.FlagUp == 0:
			return fmt.Errorf("the link %s is down", each)
		}
		port = link
	}
	return o.withDatabase(func(ctx context.Context, db *ovsdb.Client) error {
		br, err := ports.BridgeOf(ctx, db, name.port)
		if err == nil && br != o.bridge {
			err = fmt.Errorf("the port %s is of bridge %s", name.port, br)
		}
		if err != nil {
			return err
		}
		b, err := ports.FindBridge(ctx, db, o.bridge)
		if err != nil || !b.UserSpace {
			return err
		}
		return withTable(func(t *forward.Table) error { return t.Ended(port.Attrs().Index) })
	})
}

// configure has the pod compute checksums: a switch in user space hands packets on as they are.
func (*ovs) configure(own netlink.Link, l *podLink) error {
	if l.end == 0 {
		return nil
	}
	return checksumOff(own.Attrs().Name)
}

func (*ovs) addRoutes(netlink.Link, *podLink, *current.Result) error { return nil }

// checksumOff is "ethtool -K LINK tx off" (linux/ethtool.h).
func checksumOff(link string) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	value := struct{ command, data uint32 }{unix.ETHTOOL_STXCSUM, 0}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], link)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("have %s compute checksums: %w", link, errno)
	}
	return nil
}
