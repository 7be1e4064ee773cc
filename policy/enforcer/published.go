package enforcer

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
)

// UDP servers that are published at IPv6 addresses, and what the maps of bpf/translate.bpf.c have of
// an earlier process. These maps end with their process. The container's table of hosts does not,
// nor do the rows of its services, which also say where servers are published.

// Publishes tells whether Publish works, that is, whether UDP is translated.
func (e *Enforcement) Publishes() bool { return e.datagrams.Load() != nil }

// Publish leads datagrams for an IPv6 address to the UDP sockets of a private port. Datagrams of
// these sockets leave from that address.
func (e *Enforcement) Publish(private uint16, at netip.AddrPort) error {
	d := e.datagrams.Load()
	if d == nil {
		return fmt.Errorf("publish port %d at %s: %w", private, at, ErrNoDatagrams)
	}
	err := e.services().put(e.portKey(publishedAs, unix.IPPROTO_UDP, private), bpf.PolicyLocation{Addr: wordsOf(at.Addr()), Port: at.Port()})
	if err == nil {
		err = d.publish(private, at)
	}
	if err != nil {
		return fmt.Errorf("publish port %d at %s: %w", private, at, err)
	}
	return nil
}

func (d *Datagrams) publish(private uint16, at netip.AddrPort) error {
	row := publishedRow(at)
	if err := d.objs.PublishedByPrivate.Put(uint32(private), row); err != nil {
		return err
	}
	return d.objs.PrivateByPublished.Put(row, uint32(private))
}

func publishedRow(at netip.AddrPort) bpf.TranslatePublished {
	return bpf.TranslatePublished{Addr: bpf.TranslateAddr(wordsOf(at.Addr())), Port: uint32(at.Port())}
}

// Published returns the addresses at which Publish has published servers, in this process or in an
// earlier one.
func (e *Enforcement) Published() ([]netip.AddrPort, error) {
	var list []netip.AddrPort
	err := e.eachPublished(func(_ uint16, at netip.AddrPort) error {
		list = append(list, at)
		return nil
	})
	return list, err
}

func (e *Enforcement) eachPublished(do func(private uint16, at netip.AddrPort) error) error {
	rows := e.services()
	for _, key := range rows.list() {
		if key.Kind != publishedAs {
			continue
		}
		var at bpf.PolicyLocation
		err := rows.lookup(key, &at)
		if err == nil {
			err = do(key.Port, netip.AddrPortFrom(addrOf(at.Addr), at.Port))
		}
		if err != nil {
			return fmt.Errorf("read where servers are published: %w", err)
		}
	}
	return nil
}

// restore fills the maps with what the kernel has kept for the container.
func (d *Datagrams) restore() error {
	var key bpf.PolicyVirtualAddr
	var host bpf.PolicyVirtualHost
	hosts := d.e.tables.hosts.Iterate()
	for hosts.Next(&key, &host) {
		if err := d.objs.VirtualByHost.Put(host.Addr, key.Addr); err != nil {
			return fmt.Errorf("restore virtual addresses: %w", err)
		}
	}
	if err := hosts.Err(); err != nil {
		return fmt.Errorf("restore virtual addresses: %w", err)
	}
	return d.e.eachPublished(d.publish)
}
