package enforcer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
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

// Peer is a host that has asked a published server, under the virtual address that the kernel programs
// have chosen.
type Peer struct {
	V4, V6 netip.Addr
	Heard  time.Duration // CLOCK_MONOTONIC of its last datagram, or of the container's last to it
}

// PeerLifetime is how long a peer keeps its virtual address after its last datagram, PEER_NS of
// bpf/hosts.h.
const PeerLifetime = 5 * time.Minute

// Peers returns the peers, by virtual address. Some may be missing if the kernel programs choose
// addresses meanwhile.
func (d *Datagrams) Peers() ([]Peer, error) {
	found := map[netip.Addr]Peer{}
	var key bpf.PolicyVirtualAddr
	var host bpf.PolicyVirtualHost
	hosts := d.e.tables.hosts.Iterate()
	for hosts.Next(&key, &host) {
		if host.Heard != 0 {
			v4 := virtualOf(key)
			found[v4] = Peer{v4, addrOf(host.Addr), time.Duration(host.Heard)}
		}
	}
	if err := hosts.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, fmt.Errorf("read the peers of UDP servers: %w", err)
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Peer) int { return a.V4.Compare(b.V4) }), nil
}

func virtualOf(key bpf.PolicyVirtualAddr) netip.Addr {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], key.Addr)
	return netip.AddrFrom4(b)
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
