package enforcer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
)

// Datagrams translates a container's UDP between IPv4 and IPv6, as long as this process lives
// (bpf/translate.bpf.c, bpf/udp.h).
type Datagrams struct {
	e    *Enforcement
	pool netip.Prefix
	objs bpf.TranslateObjects

	messages *ringbuf.Reader

	putting  sync.Mutex // guards outdated, and is held to change hosts
	outdated bool       // sockets may remember verdicts about hosts that have changed

	mu    sync.Mutex        // guards what follows
	links map[int]link.Link // by the link's number
	ended bool
}

// VirtualHost is an IPv6 host that a container reaches under a virtual address.
type VirtualHost struct {
	Addr   netip.Addr
	Source netip.Addr // source address of the container's datagrams to it
	Next   netip.Addr // the next hop; the zero Addr: the host's routes say it for each datagram
	Device int        // the number of the link that leads to it; 0: no link leads to it
}

// loopbackDevice is the number of a namespace's loopback.
const loopbackDevice = 1

// ErrNoDatagrams says that the kernel cannot translate UDP.
var ErrNoDatagrams = errors.New("the kernel cannot attach programs to links by BPF links, which Linux 6.6 can")

// TranslateDatagrams prepares to translate the UDP of a container whose loopback is on the host.
// The translation starts with Begin. The error wraps ErrNoDatagrams where the kernel is older than
// 6.6. The virtual addresses are of a pool of 15 bits (bpf/virtual.h). Datagrams of some ports, as
// programs know them, go to Messages; at most eight. It needs CAP_BPF and CAP_NET_ADMIN.
func (e *Enforcement) TranslateDatagrams(pool netip.Prefix, messages ...uint16) (*Datagrams, error) {
	for _, kind := range []int{hostsTable, virtualTable} {
		if err := e.makeTable(kind); err != nil {
			return nil, fmt.Errorf("make table of virtual addresses: %w", err)
		}
	}
	spec, err := bpf.LoadTranslate()
	if err != nil {
		return nil, err
	}
	err = spec.Variables["loopback_id"].Set(e.loopbackID)
	if err == nil {
		err = spec.Variables["pool"].Set(firstOf(pool))
	}
	if err == nil {
		err = setMessagePorts(spec, messages)
	}
	if err != nil {
		return nil, err
	}
	// See parsed.
	for _, name := range []string{"host_by_virtual", "virtual_by_host"} {
		spec.Maps[name].Key, spec.Maps[name].Value = nil, nil
	}
	d := &Datagrams{e: e, pool: pool, links: map[int]link.Link{}}
	err = spec.LoadAndAssign(&d.objs, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		"host_by_virtual": e.tables.hosts, "virtual_by_host": e.tables.virtual, "loopback_by_socket": e.set.LoopbackBySocket,
		"binding_by_socket": e.set.BindingBySocket, "heard_by_socket": e.set.HeardBySocket,
	}})
	if err != nil {
		return nil, fmt.Errorf("load programs that translate UDP: %w", err)
	}
	if err = d.restore(); err == nil {
		d.messages, err = ringbuf.NewReader(d.objs.Messages)
	}
	if err != nil {
		return nil, errors.Join(err, d.objs.Close())
	}
	e.datagrams.Store(d)
	return d, nil
}

// Attach attaches the programs to a link of the host's namespace, which the calling thread is in.
// It does nothing if they are attached there. `before` is the number of a file that this process
// closes before it lets go of the link; -1 if there is none.
func (d *Datagrams) Attach(device, before int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended || d.links[device] != nil {
		return nil
	}
	if device != loopbackDevice {
		return d.attach(device, link.TCXOptions{Program: d.objs.ToIpv4, Attach: ebpf.AttachTCXIngress}, before)
	}
	return d.attach(device, link.TCXOptions{Program: d.objs.OnLoopback, Attach: ebpf.AttachTCXEgress}, before)
}

// attach attaches a program. The kernel closes the files of a killed process in the order of their
// numbers, so the link gets a larger number than the file that has to be closed before it.
func (d *Datagrams) attach(device int, o link.TCXOptions, before int) error {
	o.Interface = device
	l, err := link.AttachTCX(o)
	if errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("%w: %w", ErrNoDatagrams, err)
	}
	if err == nil {
		l, err = renumber(l, before)
	}
	if err != nil {
		return fmt.Errorf("translate UDP at link %d: %w", device, err)
	}
	d.links[device] = l
	return nil
}

// renumber gives the file of a link a number that is larger than another.
func renumber(l link.Link, than int) (link.Link, error) {
	numbered, is := l.(interface{ FD() int })
	if !is || numbered.FD() > than {
		return l, nil
	}
	file, err := unix.FcntlInt(uintptr(numbered.FD()), unix.F_DUPFD_CLOEXEC, than+1)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	second, err := link.NewFromFD(file)
	return second, errors.Join(err, l.Close())
}

// Detach lets go of a link that has gone.
func (d *Datagrams) Detach(device int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.links[device]
	if l == nil || device == loopbackDevice {
		return nil
	}
	delete(d.links, device)
	return l.Close()
}

// Keep lets go of all links that are not in the list, except the loopback.
func (d *Datagrams) Keep(devices []int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for device, l := range d.links {
		if device > loopbackDevice && !slices.Contains(devices, device) {
			delete(d.links, device)
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

// Begin starts the translation of the container's UDP.
func (d *Datagrams) Begin() error {
	return d.e.change(func(c *bpf.PolicyContainer) { c.Pool = firstOf(d.pool) })
}

// LeadNAT64 says how the container reaches IPv4 hosts behind a NAT64, whose prefix has one of the lengths
// of RFC 6052; an invalid prefix: there is none. internet says that the prefix is only for addresses of
// the Internet. Of way, Addr does not count.
func (d *Datagrams) LeadNAT64(prefix netip.Prefix, internet bool, way VirtualHost) error {
	var row bpf.PolicyNat64
	if prefix.IsValid() {
		row = bpf.PolicyNat64{Prefix: wordsOf(prefix.Addr()), Source: wordsOf(way.Source), Device: uint32(way.Device), Bits: uint16(prefix.Bits())}
	}
	if internet {
		row.Internet = 1
	}
	return d.e.change(func(c *bpf.PolicyContainer) { c.Nat64 = row })
}

// firstOf returns the first address of a pool in host order.
func firstOf(pool netip.Prefix) uint32 {
	b := pool.Addr().As4()
	return binary.BigEndian.Uint32(b[:])
}

// Put sets the host for a virtual address, and how the container reaches the host.
// After an error, sockets may remember until the next Put that they may reach the host that was there.
func (d *Datagrams) Put(v4 netip.Addr, h VirtualHost) error {
	d.putting.Lock()
	defer d.putting.Unlock()
	key := virtualKey(v4)
	row := bpf.PolicyVirtualHost{Addr: wordsOf(h.Addr), Source: wordsOf(h.Source), Device: uint32(h.Device)}
	if h.Next.IsValid() {
		row.Next = wordsOf(h.Next)
	}
	var there bpf.PolicyVirtualHost
	known := d.e.tables.hosts.Lookup(key, &there) == nil
	err := d.outdate() // where an earlier Put has failed
	if err == nil && known && there.Addr != row.Addr {
		err = d.forget(key, there)
	}
	if err == nil {
		d.outdated = known && there.Device != row.Device // it may not be reached any more
		err = d.e.tables.hosts.Put(key, row)
	}
	if err == nil {
		err = d.e.tables.virtual.Put(row.Addr, key.Addr)
	}
	if err == nil {
		err = d.outdate()
	}
	if err != nil {
		return fmt.Errorf("map %s to %s in the kernel: %w", v4, h.Addr, err)
	}
	return nil
}

// forget deletes the host behind a virtual address. When forget returns, no socket remembers that it may
// reach the host there. The caller holds putting.
func (d *Datagrams) forget(key bpf.PolicyVirtualAddr, there bpf.PolicyVirtualHost) error {
	d.outdated = true
	for _, err := range []error{d.e.tables.hosts.Delete(key), d.e.tables.virtual.Delete(there.Addr)} {
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return d.outdate()
}

// outdate has sockets forget the verdicts about hosts that have changed. The caller holds putting.
func (d *Datagrams) outdate() error {
	if !d.outdated {
		return nil
	}
	err := d.e.outdateVerdicts()
	d.outdated = err != nil
	return err
}

// Host returns the IPv6 address for a virtual one, unless only servers may answer there.
func (d *Datagrams) Host(v4 netip.Addr) (netip.Addr, bool) {
	var row bpf.PolicyVirtualHost
	if d == nil || d.e.tables.hosts.Lookup(virtualKey(v4), &row) != nil || row.Peer != 0 {
		return netip.Addr{}, false
	}
	return addrOf(row.Addr), true
}

// Virtual returns the virtual address of an IPv6 host that the kernel programs know.
func (d *Datagrams) Virtual(v6 netip.Addr) (netip.Addr, bool) {
	var addr uint32
	if d == nil || d.e.tables.virtual.Lookup(wordsOf(v6), &addr) != nil {
		return netip.Addr{}, false
	}
	key := bpf.PolicyVirtualAddr{Bits: 32, Addr: addr}
	var row bpf.PolicyVirtualHost
	if d.e.tables.hosts.Lookup(key, &row) != nil || row.Addr != wordsOf(v6) {
		return netip.Addr{}, false // a program has chosen it for another host at the same time
	}
	return virtualOf(key), true
}

func virtualKey(v4 netip.Addr) bpf.PolicyVirtualAddr {
	b := v4.As4()
	return bpf.PolicyVirtualAddr{Bits: 32, Addr: binary.NativeEndian.Uint32(b[:])}
}

// Close ends the translation.
func (d *Datagrams) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	var errs []error
	for _, l := range d.links {
		errs = append(errs, l.Close())
	}
	d.links = nil
	d.e.datagrams.Store(nil)
	return errors.Join(append(errs, d.messages.Close(), d.objs.Close())...)
}
