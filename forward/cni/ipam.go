package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// ipamArgs are the arguments of a call of the IPAM plugin, and its path.
func (c *command) ipamArgs(what, container, ifname string) (*invoke.Args, string, error) {
	path, err := invoke.FindInPath(c.IPAM.Type, filepath.SplitList(c.args.Path))
	if err != nil {
		return nil, "", failure(codeAddresses, "find IPAM plugin: %v; install containernetworking-plugins, or set CNI_PATH", err)
	}
	return &invoke.Args{
		Command: what, ContainerID: container, IfName: ifname,
		NetNS: c.args.Netns, PluginArgsStr: c.args.Args, Path: c.args.Path,
	}, path, nil
}

// ipam calls the IPAM plugin for a command without a result.
func (c *command) ipam(ctx context.Context, what, container, ifname string, conf []byte) error {
	args, path, err := c.ipamArgs(what, container, ifname)
	if err == nil {
		err = invoke.ExecPluginWithoutResult(ctx, path, conf, args, nil)
	}
	return ipamError(what, c.IPAM.Type, err)
}

// ipamError keeps the code and the message of a plugin, and says which it was.
func ipamError(what, plugin string, err error) error {
	var e *types.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e) && e.Code == codeAddresses:
		return err
	case errors.As(err, &e) && e.Code != types.ErrInternal:
		return types.NewError(e.Code, fmt.Sprintf("%s of the IPAM plugin %s: %s", what, plugin, e.Msg), e.Details)
	}
	return failure(codeAddresses, "%s of the IPAM plugin %s: %v; if the subnet is full, remove pods, call GC, or give ipam a larger range", what, plugin, err)
}

// ipamAdd gets the pod's addresses.
func (c *command) ipamAdd(done *undo) (*current.Result, error) {
	args, path, err := c.ipamArgs("ADD", c.args.ContainerID, c.args.IfName)
	if err != nil {
		return nil, err
	}
	*done = append(*done, func() error { return c.ipamDel(c.args.ContainerID, c.args.IfName) })
	r, err := invoke.ExecPluginWithResult(context.Background(), path, c.args.StdinData, args, nil)
	if err != nil {
		return nil, ipamError("ADD", c.IPAM.Type, err)
	}
	given, err := current.NewResultFromResult(r)
	if err != nil {
		return nil, failure(codeAddresses, "read result of the IPAM plugin %s: %v", c.IPAM.Type, err)
	}
	if len(given.IPs) == 0 {
		return nil, failure(codeAddresses, "the IPAM plugin %s gives no address; look at its ranges", c.IPAM.Type)
	}
	for _, ip := range given.IPs {
		if !addrOf(ip.Address.IP).IsValid() || ip.Address.Mask == nil {
			return nil, failure(codeAddresses, "the IPAM plugin %s gives %v, which is no address", c.IPAM.Type, ip.Address)
		}
		ip.Interface = nil
	}
	return given, nil
}

func (c *command) ipamDel(container, ifname string) error {
	return c.ipam(context.Background(), "DEL", container, ifname, c.args.StdinData)
}

// addrOf returns the zero Addr for a text that is no address.
func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
