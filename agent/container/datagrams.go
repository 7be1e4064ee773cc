package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/policy/enforcer"
	"github.com/tsugiki/tsugiki/translate"
)

// halves returns the halves of a pool. The table gives out addresses of the first half. The kernel
// programs choose addresses of the second half for clients of a UDP server (bpf/translate.bpf.c).
func halves(pool netip.Prefix) (table, peers netip.Prefix) {
	b := pool.Addr().As4()
	b[1] |= 1
	return netip.PrefixFrom(pool.Addr(), pool.Bits()+1), netip.PrefixFrom(netip.AddrFrom4(b), pool.Bits()+1)
}

// datagrams translates UDP for a container. It updates the kernel's table of hosts, and the
// programs at the host's links, when the host's routes and links change.
type datagrams struct {
	*enforcer.Datagrams
	table  *translate.Table
	nat64  func() translate.NAT64
	ns     *netns.NS
	source netip.Addr // source address of the container; unspecified: the host's routes choose
	guard  int        // the file of the DNS proxy's socket
	log    *slog.Logger

	leading sync.Mutex // is held to read the NAT64, and to tell the kernel of it
}

// translateDatagrams attaches the programs that translate UDP, if the kernel can. ctx ends the
// updates. The table of an earlier process is in the kernel before the programs are.
func (c *Container) translateDatagrams(ctx context.Context, proxy net.PacketConn) error {
	t := c.translation
	d := &datagrams{table: t.Table, nat64: t.prefix, ns: c.host[""].ns, source: graft.Source(c.table, true), log: c.log}
	var err error
	if d.guard, err = fileOf(proxy); err != nil {
		return err
	}
	if d.Datagrams, err = c.enforced.TranslateDatagrams(t.pool, c.spec.Translation.SIP...); err != nil {
		return err
	}
	changes, err := d.ns.Changes(ctx)
	if err == nil {
		t.udp.Store(d)
		d.mapAll()
		err = d.attach()
	}
	if err != nil {
		t.udp.Store(nil)
		err = errors.Join(err, d.close())
		if errors.Is(err, enforcer.ErrNoDatagrams) {
			c.spec.Decisions.Warn("UDP is not translated, only TCP", "err", err)
			return nil
		}
		return err
	}
	t.work.Go(func() { d.follow(ctx, changes) })
	return nil
}

// begin starts the translation. It comes after the DNS proxy has its port.
func (d *datagrams) begin() error {
	if d == nil {
		return nil
	}
	return d.Begin()
}

// fileOf returns the descriptor of a socket.
func fileOf(conn net.PacketConn) (file int, err error) {
	raw, is := conn.(syscall.Conn)
	if !is {
		return -1, fmt.Errorf("a %T has no file", conn)
	}
	control, err := raw.SyscallConn()
	if err == nil {
		err = control.Control(func(fd uintptr) { file = int(fd) })
	}
	return file, err
}

// mapped tells the kernel of a new mapping of the table.
func (t *translation) mapped(v4, v6 netip.Addr) { t.udp.Load().put(v4, v6) }

// put tells the kernel of a mapping.
func (d *datagrams) put(v4, v6 netip.Addr) {
	if d == nil {
		return
	}
	way, err := d.way(v6)
	if err == nil {
		err = d.Put(v4, way)
	}
	if err != nil {
		d.log.Error("a host is not reached by UDP", "host", v6, "err", err)
	}
}

// way returns how the container reaches a host.
func (d *datagrams) way(v6 netip.Addr) (enforcer.VirtualHost, error) {
	way, err := d.ns.Way(v6, d.source)
	return enforcer.VirtualHost{Addr: v6, Source: way.Source, Next: way.Next, Device: way.Device}, err
}

// leadNAT64 tells the kernel of the network's NAT64, and how it is reached. If that is not known, the kernel
// programs lead nowhere rather than to a former NAT64.
func (d *datagrams) leadNAT64() {
	if d == nil {
		return
	}
	d.leading.Lock()
	defer d.leading.Unlock()
	n := d.nat64()
	var way enforcer.VirtualHost
	var err error
	if n.IsValid() {
		way, err = d.way(n.Prefix().Addr().Next())
	}
	if err == nil {
		err = d.LeadNAT64(n.Prefix(), n.OfInternet(), way)
	} else {
		err = errors.Join(err, d.LeadNAT64(netip.Prefix{}, false, enforcer.VirtualHost{}))
	}
	if err != nil {
		d.log.Error("hosts behind the NAT64 are not reached by UDP", "prefix", n, "err", err)
	}
}

// mapAll tells the kernel of all mappings of the table.
func (d *datagrams) mapAll() { d.putAll(d.table.Mappings()) }

// putAll tells the kernel of those mappings in the list that the table still has. If another host
// has got an address since, the address stays that host's.
func (d *datagrams) putAll(list []translate.Mapping) {
	for _, m := range list {
		d.table.While(m.V4, m.V6, func() { d.put(m.V4, m.V6) })
	}
}

func (d *datagrams) host(v4 netip.Addr) (netip.Addr, bool) {
	if d == nil {
		return netip.Addr{}, false
	}
	return d.Host(v4)
}

func (d *datagrams) virtual(v6 netip.Addr) (netip.Addr, bool) {
	if d == nil {
		return netip.Addr{}, false
	}
	return d.Virtual(v6)
}

// attach attaches the programs to the host's links, and lets go of the links that have become ports
// since. A link that has gone meanwhile gets none.
func (d *datagrams) attach() error {
	links, err := d.ns.Framed()
	if err != nil {
		return err
	}
	return d.ns.Do(func() error {
		for _, device := range links {
			if err := d.Attach(device, d.guard); err != nil && !errors.Is(err, syscall.ENODEV) {
				return err
			}
		}
		return d.Keep(links)
	})
}

// watchAgain is the pause before links and routes are watched again after news were lost.
const watchAgain = time.Second

// follow updates programs and table when links and routes change.
func (d *datagrams) follow(ctx context.Context, news <-chan netns.Change) {
	for {
		change, open := <-news
		for more := open; more; {
			d.report(d.Detach(change.Gone))
			select {
			case change, open = <-news:
				more = open
			default:
				more = false
			}
		}
		if !open {
			select {
			case <-ctx.Done():
				return
			case <-time.After(watchAgain):
			}
			again, err := d.ns.Changes(ctx)
			d.report(err)
			if err == nil {
				news = again
			}
		}
		d.report(d.attach())
		d.mapAll()
		d.leadNAT64()
	}
}

func (d *datagrams) report(err error) {
	if err != nil {
		d.log.Error("UDP is not translated at all links", "err", err)
	}
}

func (d *datagrams) close() error {
	if d == nil {
		return nil
	}
	return d.Datagrams.Close()
}
