package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// # Datagrams
//
// The supervisor that has the guest's datagrams connects to DatagramPort. Both sides send frames, which
// are not answered. A frame has the bytes of one UDP datagram between a port of the guest and a peer, or
// the errno of one:
//
//	size     4 bytes: of all that follows it, frameHeader to frameHeader+DatagramMax
//	errno    2 bytes: of an earlier datagram; 0: the frame has bytes
//	port     2 bytes: of the guest
//	peer     20 bytes: a name, as in a message; its family is the socket's
//	bytes
//
// From the host, an errno is what the program's socket is to be told about a datagram from its port to
// the peer. From the guest, it is ECONNREFUSED: no socket of the guest takes what comes from the peer to
// the port.

// DatagramMax is the size of the longest UDP datagram: of IPv6, without its header.
const DatagramMax = 65535 - 8

const frameHeader = 24

// Datagram is a frame.
type Datagram struct {
	Errno uint16 // one of Linux's generic numbers
	Port  uint16
	Peer  netip.AddrPort
	Bytes []byte
}

// Append appends the bytes of a frame. The error is ErrMessage if the peer is no IP name, or the
// datagram is too long.
func (d *Datagram) Append(b []byte) ([]byte, error) {
	if len(d.Bytes) > DatagramMax || !d.Peer.IsValid() || d.Errno != 0 && len(d.Bytes) > 0 {
		return b, fmt.Errorf("%w: a datagram of %d bytes to %s, errno %d", ErrMessage, len(d.Bytes), d.Peer, d.Errno)
	}
	b = le.AppendUint32(b, uint32(frameHeader+len(d.Bytes)))
	b = le.AppendUint16(b, d.Errno)
	b = le.AppendUint16(b, d.Port)
	b = appendName(b, d.Peer)
	return append(b, d.Bytes...), nil
}

// ParseDatagram reads a frame without its size. Its bytes are a part of b.
func ParseDatagram(b []byte) (Datagram, error) {
	if len(b) < frameHeader || len(b) > frameHeader+DatagramMax {
		return Datagram{}, fmt.Errorf("%w: a frame of %d bytes", ErrMessage, len(b))
	}
	d := Datagram{Errno: le.Uint16(b), Port: le.Uint16(b[2:]), Bytes: b[frameHeader:]}
	var err error
	if d.Peer, err = parseName(b[4:frameHeader]); err != nil {
		return Datagram{}, err
	}
	if !d.Peer.IsValid() || d.Errno != 0 && len(d.Bytes) > 0 {
		return Datagram{}, fmt.Errorf("%w: a frame of errno %d for %s with %d bytes", ErrMessage, d.Errno, d.Peer, len(d.Bytes))
	}
	return d, nil
}

// NewDatagramReader returns a reader for ReadDatagram.
func NewDatagramReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 256<<10) }

// ReadDatagram reads a frame. Its bytes are valid until the next call. At the end of the stream the
// error is io.EOF.
func ReadDatagram(r *bufio.Reader) (Datagram, error) {
	head, err := r.Peek(4)
	if err != nil {
		if len(head) > 0 && errors.Is(err, io.EOF) {
			err = fmt.Errorf("frame is cut: %w", io.ErrUnexpectedEOF)
		}
		return Datagram{}, err
	}
	n := le.Uint32(head)
	if n < frameHeader || n > frameHeader+DatagramMax {
		return Datagram{}, fmt.Errorf("%w: a frame of %d bytes", ErrMessage, n)
	}
	b, err := r.Peek(4 + int(n))
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return Datagram{}, fmt.Errorf("frame is cut: %w", err)
	}
	d, err := ParseDatagram(b[4:])
	if err == nil {
		_, err = r.Discard(len(b)) // what was peeked stays where it is
	}
	return d, err
}
