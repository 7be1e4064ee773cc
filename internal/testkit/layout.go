package testkit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
)

const bridgeName = "br0"

// engineRules is what container engines install for a bridge: source address
// translation for what leaves it, and a forward chain that drops by default
// and lets answers in by connection tracking.
const engineRules = `table ip engine {
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr 10.88.0.0/24 oifname != "br0" masquerade
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
		ct state established,related accept
		iifname "br0" accept
	}
}
`

func (t *Topology) build(ctx context.Context, o Options) error {
	var err error
	if t.Host, err = newNamespace("h", o); err != nil {
		return err
	}
	for _, name := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		if err := t.Host.SetSysctl(name, "1"); err != nil {
			return err
		}
	}
	if !o.NoRemote {
		if t.Remote, err = newNamespace("srv", o); err != nil {
			return err
		}
		if err := t.connectRemote(o); err != nil {
			return err
		}
	}
	if o.Containers > 0 {
		if err := t.buildBridge(ctx); err != nil {
			return err
		}
	}
	for i := range o.Containers {
		c, err := newNamespace(fmt.Sprintf("c%d", i+1), o)
		if err != nil {
			return err
		}
		t.Containers = append(t.Containers, c)
		if err := t.connectContainer(c, ContainerAddr4(i)); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for _, ns := range t.Namespaces() {
		if err := ns.waitLinks(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (t *Topology) connectRemote(o Options) error {
	host := []netip.Prefix{netip.PrefixFrom(HostAddr6, 64), netip.PrefixFrom(HostAddr4, 24)}
	remote := []netip.Prefix{netip.PrefixFrom(RemoteAddr6, 64), netip.PrefixFrom(RemoteAddr4, 24)}
	if o.IPv6Only {
		host, remote = host[:1], remote[:1]
	}
	err := t.Host.Do(func() error {
		if err := addVeth("srv", t.Remote, "h"); err != nil {
			return err
		}
		return setUp("srv", host...)
	})
	if err != nil {
		return err
	}
	return t.Remote.Do(func() error {
		return setUp("h", remote...)
	})
}

func (t *Topology) buildBridge(ctx context.Context) error {
	if _, err := exec.LookPath("nft"); err != nil {
		return &NeedsError{"nft (Debian package nftables)"}
	}
	err := t.Host.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridgeName
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			if errors.Is(err, unix.EOPNOTSUPP) {
				return &NeedsError{"bridges in the kernel (CONFIG_BRIDGE)"}
			}
			return fmt.Errorf("make bridge: %w", err)
		}
		return setUp(bridgeName, netip.PrefixFrom(BridgeAddr4, 24))
	})
	if err != nil {
		return err
	}
	nft := t.Host.Command(ctx, "nft", "-f", "-")
	nft.Stdin = strings.NewReader(engineRules)
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("install address translation: %w: %s", err, out)
	}
	return t.Host.forgetEndedConnections()
}

// forgetEndedConnections has connection tracking keep a connection that has ended for a second.
// The kernel's 2 minutes fill the table of 262,144 entries where a benchmark makes 30,000
// connections a second, and then the kernel drops each SYN, also of the host's own processes.
func (n *Namespace) forgetEndedConnections() error {
	for _, state := range []string{"time_wait", "close"} {
		if err := n.SetSysctl("net.netfilter.nf_conntrack_tcp_timeout_"+state, "1"); err != nil {
			return err
		}
	}
	return nil
}

func (t *Topology) connectContainer(c *Namespace, addr netip.Addr) error {
	err := t.Host.Do(func() error {
		if err := addVeth(c.name, c, "eth0"); err != nil {
			return err
		}
		bridge, err := netlink.LinkByName(bridgeName)
		if err != nil {
			return fmt.Errorf("find bridge: %w", err)
		}
		port, err := netlink.LinkByName(c.name)
		if err != nil {
			return fmt.Errorf("find link %s: %w", c.name, err)
		}
		if err := netlink.LinkSetMaster(port, bridge); err != nil {
			return fmt.Errorf("attach %s to bridge: %w", c.name, err)
		}
		return setUp(c.name)
	})
	if err != nil {
		return err
	}
	return c.Do(func() error {
		if err := setUp("eth0", netip.PrefixFrom(addr, 24)); err != nil {
			return err
		}
		route := &netlink.Route{Gw: BridgeAddr4.AsSlice()}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("add default route of %s: %w", c.name, err)
		}
		return nil
	})
}

// addVeth makes a pair of links, one in the calling thread's namespace and one
// in peer, so that neither is ever seen elsewhere.
func addVeth(name string, peer *Namespace, peerName string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := netlink.LinkAdd(&netlink.Veth{
		LinkAttrs:     attrs,
		PeerName:      peerName,
		PeerNamespace: netlink.NsFd(int(peer.ns.File().Fd())),
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return &NeedsError{"veth links in the kernel (CONFIG_VETH)"}
	}
	if err != nil {
		return fmt.Errorf("make link %s: %w", name, err)
	}
	return nil
}

// setUp gives a link of the calling thread's namespace its addresses and sets
// it up. Duplicate address detection is off (see newNamespace): an IPv6
// address is usable when setUp returns, provided the peer's link is up.
func setUp(name string, addrs ...netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	for _, p := range addrs {
		ipnet := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		addr := &netlink.Addr{IPNet: ipnet}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add address %s to %s: %w", p, name, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link %s up: %w", name, err)
	}
	return nil
}

// waitLinks waits until every link of the namespace can carry IPv6. A veth
// gets its carrier when its peer is set up, but the kernel's link watch tells
// IPv6 of it later; until then neighbours are solicited in vain and a first
// connection takes a second or two. The link-local address and the routes of the others are the last
// things that IPv6 configures.
func (n *Namespace) waitLinks(ctx context.Context) error {
	return n.Do(func() error {
		links, err := netns.Dump(netlink.LinkList)
		if err != nil {
			return fmt.Errorf("list links of %s: %w", n.name, err)
		}
		tick := time.NewTicker(pollInterval)
		defer tick.Stop()
		for _, link := range links {
			for !ready(link) {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return fmt.Errorf("wait for link %s of %s: %w", link.Attrs().Name, n.name, ctx.Err())
				}
			}
		}
		return nil
	})
}

func ready(link netlink.Link) bool {
	if link.Attrs().Flags&net.FlagLoopback != 0 {
		return true
	}
	now, err := netlink.LinkByIndex(link.Attrs().Index)
	if err != nil || now.Attrs().OperState != netlink.OperUp {
		return false
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		return false
	}
	var own bool
	for _, a := range addrs {
		switch {
		case a.IP.IsLinkLocalUnicast():
			own = own || a.Flags&unix.IFA_F_TENTATIVE == 0
		case isLocal(a.IP) != nil:
			return false
		}
	}
	return own
}
