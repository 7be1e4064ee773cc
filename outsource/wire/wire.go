// Package wire is the protocol between the supervisors in a guest and the host: messages about
// sockets, and the numbers of vsock ports.
//
// It opens nothing, and decides nothing. It needs no privileges; any kernel will do.
//
// # Theory of operation
//
// A supervisor connects to ControlPort of the host (vsock context 2), and sends a Hello. The host
// answers with its version. Both must have the same: a host and its guests are updated together, or
// the guest says which version it needs. After that the supervisor sends requests, each with an id
// of its choice, and the host answers each once, in any order. At most RequestsMax wait for their
// reply; the host ends a stream that has more:
//
//	op       from the guest                           reply
//	Hello    Number: the version                      Number: the version; Name, Peer: the guest's addresses
//	Connect  Handle, or 0; Type; Name: to; Options    Handle, Errno: 0 or EINPROGRESS, or why it failed
//	Bind     Type; Name; Options                      Handle, Name; FlagLocal: no rule covers it
//	Listen   Handle; Number: backlog                  Errno, Name
//	Names    Handle                                   Name, Peer; Errno: of the connect, or 0
//	Get      Handle; one Option: its Value's size     Options: its value
//	Set      Handle; Options                          Errno
//	Close    Handle                                   Errno
//	Which    Handle, of a listener; Number: a port    Handle, of the connection that the listener has from it
//
// The guest's addresses are those of its sockets that are not the host's: of IPv4, and of IPv6 if its
// datagrams may leave by that. A UDP socket has no handle, but its port in the guest. Type is SOCK_DGRAM:
//
//	Connect  Name: to; Number: port                   Errno, or Name: of the socket, as the peer sees it
//	Bind     Name; Options                            Errno; FlagLocal: no rule covers it
//
// The host sends one request, which the supervisor answers:
//
//	Alive    Handle, or Type and Number, of a Bind    Errno: 0, or ENOENT if no program has the socket
//
// A reply has the op and the id of its request, and FlagReply. Errno is one of Linux's generic
// numbers; 0 is success. An errno is always the host kernel's answer, or that of a rule. A fault of
// the host's ends the stream instead.
//
// Data never goes over this stream. For a handle that connects, the supervisor connects from and to
// DataPort(handle) of the host; the host accepts the connection once its socket is connected, and
// resets it if that fails. For a connection that a listener accepts, the host connects from
// DataPort(new handle) to DataPort(listener) of the guest. From then on, bytes, ends of streams and
// resets are those of the socket. The handle ends with its data connection. A handle that has none
// ends with Close, or with the control stream that made it.
//
// Over hybrid unix sockets and AF_VSOCK (package stream), the reply to Hello has FlagShared. Then a data
// connection of the guest's goes to DataPort(0) from the handle's data port, and begins with a Preamble,
// which the host sends back once its socket is connected. The port from which the host connects may be any:
// the guest asks for the handle (Which).
//
// # Format
//
// Integers are little-endian. A message is:
//
//	size     4 bytes: of all that follows it, headerSize to SizeMax
//	op       1 byte
//	flags    1 byte
//	type     1 byte: SOCK_STREAM or SOCK_DGRAM, or 0
//	options  1 byte: their number, at most OptionsMax
//	id       4 bytes
//	handle   4 bytes
//	errno    4 bytes
//	number   4 bytes
//	name     20 bytes: family 1 (4, 6 or 0), 1 zero, port 2, address 16
//	peer     20 bytes: likewise
//
// and the options: level 2 bytes, name 2, size of the value 2, 2 zeros, the value. In a Get, the
// value's bytes are zeros.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// Version is the protocol's. It changes with each change of a message or of a meaning.
const Version = 3

// RequestsMax is how many requests of a stream may wait for their reply. So the host always reads on:
// the supervisor's answers come behind its requests.
const RequestsMax = 64

// Ports of vsock. Data ports have a handle in their lower 24 bits.
const (
	ControlPort  = 7450
	DatagramPort = 7451 // see datagram.go
	dataPorts    = 0x5c000000
	HandleMax    = 1<<24 - 1
)

// DataPort is the port of a handle's data connection.
func DataPort(handle uint32) uint32 { return dataPorts | handle&HandleMax }

// HandleOf returns the handle of a data port; false if the port is another.
func HandleOf(port uint32) (handle uint32, is bool) {
	handle = port & HandleMax
	return handle, port&^HandleMax == dataPorts && handle != 0
}

// Op says what a message is about.
type Op uint8

// The operations.
const (
	Hello Op = 1 + iota
	Connect
	Bind
	Listen
	Names
	Get
	Set
	Close
	Alive
	Which
	ops
)

// Flags of a message.
const (
	FlagReply = 1 << iota // it answers a request
	FlagLocal             // no rule covers the address of a Bind
	// Flag6 says that the program's socket is of AF_INET6.
	Flag6
	// FlagShared says that data connections go to DataPort(0).
	FlagShared
	flags = FlagReply | FlagLocal | Flag6 | FlagShared
)

// Limits of a message.
const (
	headerSize   = 60
	optionHeader = 8
	ValueMax     = 512 // bytes of an option's value
	OptionsMax   = 64
	SizeMax      = 8192
)

// Option is a socket option, with Linux's generic numbers.
type Option struct {
	Level, Name uint16
	Value       []byte
}

// Message is a request or a reply.
type Message struct {
	Op         Op
	Flags      uint8
	Type       uint8
	ID         uint32
	Handle     uint32
	Errno      uint32
	Number     uint32
	Name, Peer netip.AddrPort
	Options    []Option
}

// ErrMessage says that bytes are no message.
var ErrMessage = errors.New("not a message of this protocol")

var le = binary.LittleEndian

// Append appends the bytes of a message. The error is ErrMessage if it has too many options or
// too long ones.
func (m *Message) Append(b []byte) ([]byte, error) {
	start := len(b)
	if len(m.Options) > OptionsMax {
		return b, fmt.Errorf("%w: %d options", ErrMessage, len(m.Options))
	}
	b = append(b, 0, 0, 0, 0, uint8(m.Op), m.Flags, m.Type, uint8(len(m.Options)))
	for _, word := range []uint32{m.ID, m.Handle, m.Errno, m.Number} {
		b = le.AppendUint32(b, word)
	}
	b = appendName(appendName(b, m.Name), m.Peer)
	for _, o := range m.Options {
		if len(o.Value) > ValueMax {
			return b[:start], fmt.Errorf("%w: an option of %d bytes", ErrMessage, len(o.Value))
		}
		b = le.AppendUint16(b, o.Level)
		b = le.AppendUint16(b, o.Name)
		b = le.AppendUint16(b, uint16(len(o.Value)))
		b = append(b, 0, 0)
		b = append(b, o.Value...)
	}
	size := len(b) - start - 4
	if size > SizeMax {
		return b[:start], fmt.Errorf("%w: %d bytes", ErrMessage, size)
	}
	le.PutUint32(b[start:], uint32(size))
	return b, nil
}

func appendName(b []byte, name netip.AddrPort) []byte {
	var raw [20]byte
	addr := name.Addr()
	switch {
	case addr.Is4():
		raw[0] = 4
		copy(raw[4:], addr.AsSlice())
	case addr.Is6():
		raw[0] = 6
		copy(raw[4:], addr.AsSlice())
	}
	le.PutUint16(raw[2:], name.Port())
	return append(b, raw[:]...)
}

func parseName(b []byte) (netip.AddrPort, error) {
	port := le.Uint16(b[2:])
	switch {
	case b[0] == 0 && port == 0:
		return netip.AddrPort{}, nil
	case b[0] == 4 && [12]byte(b[8:20]) == [12]byte{}:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port), nil
	case b[0] == 6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[4:20])), port), nil
	}
	return netip.AddrPort{}, fmt.Errorf("%w: a name of family %d", ErrMessage, b[0])
}

// Parse reads a message without its size. The values of its options are parts of b.
func Parse(b []byte) (*Message, error) {
	if len(b) < headerSize || len(b) > SizeMax {
		return nil, fmt.Errorf("%w: %d bytes", ErrMessage, len(b))
	}
	m := &Message{
		Op: Op(b[0]), Flags: b[1], Type: b[2],
		ID: le.Uint32(b[4:]), Handle: le.Uint32(b[8:]), Errno: le.Uint32(b[12:]), Number: le.Uint32(b[16:]),
	}
	if m.Op == 0 || m.Op >= ops || m.Flags&^flags != 0 || m.Handle > HandleMax {
		return nil, fmt.Errorf("%w: op %d, flags %#x, handle %d", ErrMessage, m.Op, m.Flags, m.Handle)
	}
	var err error
	if m.Name, err = parseName(b[20:40]); err != nil {
		return nil, err
	}
	if m.Peer, err = parseName(b[40:60]); err != nil {
		return nil, err
	}
	m.Options, err = parseOptions(b[headerSize:], int(b[3]))
	return m, err
}

func parseOptions(b []byte, count int) ([]Option, error) {
	if count > OptionsMax {
		return nil, fmt.Errorf("%w: %d options", ErrMessage, count)
	}
	var list []Option
	for range count {
		if len(b) < optionHeader {
			return nil, fmt.Errorf("%w: an option is cut", ErrMessage)
		}
		size := int(le.Uint16(b[4:]))
		if size > ValueMax || size > len(b)-optionHeader {
			return nil, fmt.Errorf("%w: an option of %d bytes", ErrMessage, size)
		}
		end := optionHeader + size
		list = append(list, Option{Level: le.Uint16(b), Name: le.Uint16(b[2:]), Value: b[optionHeader:end:end]})
		b = b[end:]
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%w: %d bytes too many", ErrMessage, len(b))
	}
	return list, nil
}

// Read reads one message. At the end of the stream the error is io.EOF.
func Read(r io.Reader) (*Message, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := le.Uint32(size[:])
	if n < headerSize || n > SizeMax {
		return nil, fmt.Errorf("%w: %d bytes", ErrMessage, n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("message is cut: %w", err)
	}
	return Parse(b)
}

// Preamble begins a data connection to DataPort(0).
func Preamble(handle uint32) [8]byte {
	b := [8]byte{'t', 's', 'g', Version}
	le.PutUint32(b[4:], handle)
	return b
}

// ParsePreamble returns the handle of a preamble.
func ParsePreamble(b [8]byte) (handle uint32, err error) {
	handle = le.Uint32(b[4:])
	if [4]byte(b[:4]) != [4]byte{'t', 's', 'g', Version} || handle == 0 || handle > HandleMax {
		return 0, fmt.Errorf("%w: a preamble of % x", ErrMessage, b)
	}
	return handle, nil
}
