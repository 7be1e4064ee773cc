package enforcer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/internal/wire"
	"github.com/tsugiki/tsugiki/policy"
)

// Datagrams that the process rewrites before they go on (bpf/messages.h).

// Message is a datagram that a program has sent, which the rules allow, or one that it is to receive. That one
// the programs judge when it comes to the socket; see Hears.
type Message struct {
	// Outwards says that the program has sent it.
	Outwards bool
	// Fragment says that it came in fragments. Such a datagram is lost; Payload is not set.
	Fragment bool
	// Host and Here are the peer, and the container, as the peer knows them.
	Host, Here netip.AddrPort
	// Alias is the peer's address on the host's loopback, and Virtual is the one that the program
	// knows. Port is the program's port on the loopback.
	Alias, Virtual netip.Addr
	Port           uint16
	TOS, TTL       uint8
	// Length is the length of the whole payload in bytes. Payload has MessageMax bytes at most.
	Length  int
	Payload []byte
}

// MessageMax is how much of a payload a Message has, in bytes: MESSAGE_MAX of the BPF programs.
const MessageMax = 8192

const (
	messageHead = int(unsafe.Sizeof(bpf.TranslateMessage{}))
	// relayedPortsMax is RELAYED_PORTS_MAX of the BPF programs.
	relayedPortsMax = 8
)

// setMessagePorts has the programs give datagrams of these ports to Messages.
func setMessagePorts(spec *ebpf.CollectionSpec, ports []uint16) error {
	var list [relayedPortsMax]uint16
	if len(ports) > len(list) {
		return fmt.Errorf("datagrams of %d ports cannot be rewritten, only of %d", len(ports), len(list))
	}
	if copy(list[:], ports) == 0 { // the maps take no room
		spec.Maps["messages"].MaxEntries, spec.Maps["expected_hosts"].MaxEntries = uint32(os.Getpagesize()), 1
	}
	return spec.Variables["rewritten_ports"].Set(list)
}

// Messages calls do with each datagram of the ports that TranslateDatagrams was given, until ctx ends.
// The payload is valid until do returns. It may be called once.
func (d *Datagrams) Messages(ctx context.Context, do func(Message)) error {
	stop := context.AfterFunc(ctx, func() { d.messages.Close() })
	defer stop()
	var record ringbuf.Record
	for {
		err := d.messages.ReadInto(&record)
		if errors.Is(err, ringbuf.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read datagrams that are to be rewritten: %w", err)
		}
		m, err := d.parseMessage(record.RawSample)
		if err != nil {
			return err
		}
		do(m)
	}
}

// parseMessage reads a record of the BPF programs.
func (d *Datagrams) parseMessage(record []byte) (m Message, err error) {
	row, ok := wire.Read[bpf.TranslateMessage](record[:min(messageHead, len(record))])
	if !ok {
		return m, fmt.Errorf("a datagram that is to be rewritten has a record of %d bytes", len(record))
	}
	m = Message{
		Outwards: row.Outwards != 0, Fragment: row.Fragment != 0,
		Host: netip.AddrPortFrom(addrOf(bpf.PolicyAddr(row.Host)), row.HostPort),
		Here: netip.AddrPortFrom(addrOf(bpf.PolicyAddr(row.Here)), row.HerePort),
		Port: row.Port, TOS: row.Tos, TTL: row.Ttl, Length: int(row.Length),
	}
	var alias [4]byte
	binary.NativeEndian.PutUint32(alias[:], row.Alias)
	m.Alias = netip.AddrFrom4(alias)
	alias[0] = d.pool.Addr().As4()[0]
	m.Virtual = netip.AddrFrom4(alias)
	if !m.Fragment {
		m.Payload = record[messageHead:][:min(m.Length, len(record)-messageHead)]
	}
	return m, nil
}

// Hears tells whether the rules let the receiver of a Message hear its sender: a rule has published the
// receiver's port, or one lets the container send to the sender.
func (d *Datagrams) Hears(m Message) bool {
	var private uint32
	err := d.objs.PrivateByPublished.Lookup(publishedRow(m.Here), &private)
	return err == nil && uint16(private) == m.Port || d.e.leadsTo(policy.UDP, m.Host)
}

// Expect lets a host send to a UDP port of a program, which may not have sent to the host, until
// `lasts` is over. The rules must let the program send to where the host sends from.
func (d *Datagrams) Expect(host netip.Addr, port uint16, lasts time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	row := bpf.TranslateExpected{Host: bpf.TranslateAddr(wordsOf(host)), Port: uint32(d.e.privateDatagrams(port))}
	if err := d.objs.ExpectedHosts.Put(row, uint64(now.Nano()+int64(lasts))); err != nil {
		return fmt.Errorf("expect %s at port %d: %w", host, port, err)
	}
	return nil
}

// MessagesLost returns the number of datagrams for which Messages had no room.
func (d *Datagrams) MessagesLost() (n uint64, err error) {
	err = d.objs.MessagesLost.Get(&n)
	return n, err
}

// PublicPort returns the port at an address of the container from which peers get the datagrams of a
// program's UDP port, and to which they answer.
func (e *Enforcement) PublicPort(at netip.Addr, port uint16) uint16 {
	private := e.privateDatagrams(port)
	var row bpf.PolicyLocation
	err := e.services().lookup(e.portKey(publishedAs, unix.IPPROTO_UDP, private), &row)
	if err != nil || addrOf(row.Addr) != at {
		return private
	}
	return row.Port
}

// privateDatagrams returns the port of the host that stands for a UDP port of a program.
func (e *Enforcement) privateDatagrams(port uint16) uint16 {
	private, err := e.PrivatePort(unix.IPPROTO_UDP, port, 0, 0, nil)
	if err != nil || private == 0 {
		return port // the kernel has chosen it, or nobody has bound it
	}
	return private
}

// KnownPort is the way back from PublicPort.
func (e *Enforcement) KnownPort(at netip.Addr, port uint16) uint16 {
	own := port
	if d := e.datagrams.Load(); d != nil {
		var private uint32
		if d.objs.PrivateByPublished.Lookup(publishedRow(netip.AddrPortFrom(at, port)), &private) == nil {
			own = uint16(private)
		}
	}
	var row bpf.PolicyLocation
	if err := e.services().lookup(e.portKey(privateAs, unix.IPPROTO_UDP, own), &row); err != nil {
		return own
	}
	return row.Port
}
