package container

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/outsource/host"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/translate"
)

// Guest returns what the front end of a virtual machine needs whose container this is. The VMM's user
// is the one whom unix sockets see. It comes after Begin or BeginGuest.
func (c *Container) Guest(uid, gid int) host.Config {
	config := host.Config{
		Engine: c.engine, Maker: c.host[""].Maker, Covers: c.serves,
		UID: uid, GID: gid, Own: dummy4, Log: c.spec.Decisions,
	}
	if leavesBy(c.given.Load().egress, true) {
		config.Own6 = dummy6
	}
	if c.translation != nil {
		config.Own = translate.Own
		config.Virtual = c.translation.shown
	}
	return config
}

// BeginGuest starts the workers of a virtual machine's container, which has a namespace of its own without
// programs. It comes after Make.
func (c *Container) BeginGuest() error {
	own, err := netns.New()
	if err != nil {
		return err
	}
	c.changes.Lock()
	defer c.changes.Unlock()
	if c.closing {
		return errors.Join(os.ErrClosed, own.Close())
	}
	if err := c.Use(own); err != nil {
		return err
	}
	return c.Begin()
}

// shown returns the address by which programs know the host behind an alias. Any other address is itself.
func (t *translation) shown(addr netip.Addr) netip.Addr {
	v4, is := virtualOf(t.pool, addr)
	if !is {
		return addr
	}
	if v6, known := t.known6(v4); known {
		if known4, err := t.Map(v6, 0); err == nil {
			return known4
		}
	}
	return v4
}

// serves tells whether a rule covers an address at which a server of a guest is. The guest's own
// addresses are unknown here, so a rule has to name an address that is not the wildcard.
func (c *Container) serves(protocol int, at netip.AddrPort) bool {
	c.changes.Lock()
	table := c.table
	c.changes.Unlock()
	addr := at.Addr().Unmap()
	ep, _ := table.Ingress(policy.Protocol(protocol), netip.AddrPortFrom(addr, at.Port()))
	if ep == nil && addr == netip.IPv6Unspecified() && protocol == unix.IPPROTO_TCP {
		ep, _ = table.Ingress(policy.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port()))
	}
	return ep != nil && (addr.IsUnspecified() || addr == ep.Addr || table.Names(addr))
}

// Log is the log of what happens to the container.
func (c *Container) Log() *slog.Logger { return c.log }
