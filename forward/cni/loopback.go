package cni

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// # Pods that have nothing but a loopback
//
// Mode loopback makes no link. It is the network of grafted pods whose sockets are all the host's
// (docs/design/kubernetes.md). A kubelet wants an address of each pod, so each gets one that nobody
// has: of the discard prefix (RFC 6666), which leads nowhere. The host's own address would be one by
// which a pod's author gets more than the pod: Services and network policies that select the pod would
// lead to, or let in, whatever else has the host's address.
//
// Nothing is kept: the address is computed from the attachment.

// discard is the prefix of these addresses.
var discard = netip.MustParsePrefix("100::/64")

// nobody returns the address of an attachment.
func nobody(network, container string) net.IPNet {
	a := discard.Addr().As16()
	sum := sha256.Sum256([]byte(network + " " + container))
	copy(a[discard.Bits()/8:], sum[:])
	return net.IPNet{IP: a[:], Mask: net.CIDRMask(128, 128)}
}

// addLoopback answers ADD.
func (c *command) addLoopback() (*current.Result, error) {
	if c.prev != nil {
		return nil, failure(types.ErrInvalidNetworkConfig, "another plugin has attached the pod already; in mode loopback, this plugin is the only one of its list")
	}
	if err := c.checkLoopback(); err != nil {
		return nil, err
	}
	return &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		IPs:        []*current.IPConfig{{Address: nobody(c.Name, c.args.ContainerID)}},
	}, nil
}

// checkLoopback returns an error if a link of the pod is up that is no loopback.
func (c *command) checkLoopback() error {
	ns, err := openPod(c.args.Netns)
	if err != nil {
		return err
	}
	var links []netlink.Link
	err = ns.Do(func() (err error) {
		links, err = netns.Dump(netlink.LinkList)
		return err
	})
	if err = errors.Join(err, ns.Close()); err != nil {
		return fmt.Errorf("list links of the container: %w", err)
	}
	for _, l := range links {
		if flags := l.Attrs().Flags; flags&net.FlagUp != 0 && flags&net.FlagLoopback == 0 {
			return failure(codeNetwork, "the container has the link %s; in mode loopback, give its runtime no other network", l.Attrs().Name)
		}
	}
	return nil
}
