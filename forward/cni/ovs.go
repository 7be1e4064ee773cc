package cni

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"unsafe"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward"
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
}

// seconds is how long the switch may take.
const seconds = 30

// vsctl runs ovs-vsctl.
func (o ovs) vsctl(args ...string) (string, error) {
	program, err := exec.LookPath("ovs-vsctl")
	if err != nil {
		return "", errors.New("there is no ovs-vsctl; install openvswitch-switch")
	}
	words := append([]string{"--db=" + o.database, fmt.Sprintf("--timeout=%d", seconds)}, args...)
	out, err := exec.CommandContext(context.Background(), program, words...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		said := strings.Join(strings.Fields(string(exit.Stderr)), " ")
		return "", fmt.Errorf("ovs-vsctl: %w: %s; look whether ovsdb-server and ovs-vswitchd run and ovsdb is %s", err, said, o.database)
	}
	return strings.TrimSpace(string(out)), err
}

func (o ovs) prepare(*current.Result) error { return o.usable() }

func (o ovs) usable() error {
	list, err := o.vsctl("list-br")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(list) {
		if name == o.bridge {
			return nil
		}
	}
	return fmt.Errorf("the switch has no bridge %s; make it: ovs-vsctl add-br %s", o.bridge, o.bridge)
}

// inUserSpace tells whether the switch takes packets from its ports by AF_PACKET.
func (o ovs) inUserSpace() (bool, error) {
	kind, err := o.vsctl("get", "bridge", o.bridge, "datapath_type")
	return strings.Trim(kind, `"`) == "netdev", err
}

// mtu leaves room for the headers of the bridge's tunnels, so that a pod's largest packet goes
// through one whole.
func (o ovs) mtu() int {
	own, err := o.vsctl("list-ifaces", o.bridge)
	if err != nil {
		return usualMTU // the next call says so
	}
	// A pod's port has no type.
	tunnels, err := o.vsctl("--data=bare", "--no-heading", "--format=csv", "--columns=name,type,options", "find", "Interface", `type!=""`)
	if err != nil {
		return usualMTU
	}
	overhead := 0
	for line := range strings.Lines(tunnels) {
		f := strings.SplitN(strings.TrimSpace(line), ",", 3)
		if len(f) == 3 && slices.Contains(strings.Fields(own), f[0]) {
			overhead = max(overhead, tunnelOverhead(f[1], f[2]))
		}
	}
	return usualMTU - overhead
}

// tunnelOverhead is what a tunnel adds to a pod's packet: its own Ethernet header, that of the tunnel,
// and those of UDP and IP. IPv6 is where an end of the tunnel says so.
func tunnelOverhead(kind, options string) int {
	bytes := map[string]int{
		"vxlan":  14 + 8 + 8 + 20,  // RFC 7348
		"geneve": 14 + 16 + 8 + 20, // RFC 8926, with the 8 bytes of options that OVN has
		"gre":    14 + 8 + 20,      // RFC 2890, with a key
	}[kind]
	if bytes > 0 && strings.Contains(options, ":") {
		bytes += 20
	}
	return bytes
}

func (o ovs) connect(l *podLink, name names, _ *current.Result, done *undo) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name.wire, l.mtu
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name.port, PeerMTU: uint32(l.mtu)}); err != nil {
		return fmt.Errorf("make wire %s: %w", name.wire, err)
	}
	*done = append(*done, func() error { return o.disconnect(name) })
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
		if user, err := o.inUserSpace(); err != nil {
			return err
		} else if user {
			l.end = link.Attrs().Index
		}
	}
	l.network = networkOf(o.database, o.bridge)
	return o.addPort(name)
}

// open sets the wire up: until then nothing comes to the switch's port, and nothing from it.
func (ovs) open(l *podLink, name names, _ *current.Result) error {
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

// addPort adds the wire's end to the switch, which says why not in a column of its database.
func (o ovs) addPort(name names) error {
	set := func(key, value string) string { return fmt.Sprintf("external_ids:%s=%q", key, value) }
	_, err := o.vsctl("add-port", o.bridge, name.port, "--", "set", "Interface", name.port,
		set("tsugiki-network", name.Network), set("tsugiki-container", name.Container), set("tsugiki-interface", name.Interface))
	if err != nil {
		return err
	}
	said, err := o.vsctl("get", "Interface", name.port, "error")
	if err == nil && said != "[]" {
		err = fmt.Errorf("the switch does not take the port %s: %s", name.port, said)
	}
	return err
}

// disconnect does not wait for ovs-vswitchd: with it gone, so is the port.
func (o ovs) disconnect(name names) error {
	wire, err := findLink(name.wire)
	if err != nil {
		return err
	}
	if wire != nil {
		if err := deleteLink(wire); err != nil {
			return err
		}
	}
	// Of whichever bridge: somebody may have moved it.
	_, err = o.vsctl("--no-wait", "--if-exists", "del-port", name.port)
	return err
}

func (o ovs) connected(_ netlink.Link, name names) error {
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
	br, err := o.vsctl("port-to-br", name.port)
	if err == nil && br != o.bridge {
		err = fmt.Errorf("the port %s is of bridge %s", name.port, br)
	}
	if err != nil {
		return err
	}
	if user, err := o.inUserSpace(); err != nil || !user {
		return err
	}
	return withTable(func(t *forward.Table) error { return t.Ended(port.Attrs().Index) })
}

// configure has the pod compute checksums: a switch in user space hands packets on as they are.
func (ovs) configure(own netlink.Link, l *podLink) error {
	if l.end == 0 {
		return nil
	}
	return checksumOff(own.Attrs().Name)
}

func (ovs) addRoutes(netlink.Link, *podLink, *current.Result) error { return nil }

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
