package guest

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

var sameNames = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

var owns = []netip.Addr{netip.MustParseAddr("192.0.0.8"), netip.MustParseAddr("100::1")}

// built is a whole packet.
func built(d wire.Datagram) []byte { return append(build(nil, owns, d), d.Bytes...) }

// TestPackets reads what it has built: packets for the guest are read as if the guest had sent them to its
// own address.
func TestPackets(t *testing.T) {
	for _, d := range []wire.Datagram{
		{Port: 53, Peer: netip.MustParseAddrPort("198.51.100.2:4000"), Bytes: []byte("question")},
		{Port: 53, Peer: netip.MustParseAddrPort("[2001:db8::2]:4000"), Bytes: []byte("question")},
		{Port: 1, Peer: netip.MustParseAddrPort("198.51.100.2:65535"), Bytes: []byte{}},
		{Port: 1, Peer: netip.MustParseAddrPort("198.51.100.2:65535"), Bytes: make([]byte, 65507)},
		{Port: 1, Peer: netip.MustParseAddrPort("[2001:db8::2]:4000"), Bytes: make([]byte, wire.DatagramMax)},
	} {
		own := owns[0]
		if d.Peer.Addr().Is6() {
			own = owns[1]
		}
		got, is := (&fragments{}).parse(built(d))
		want := wire.Datagram{Port: d.Peer.Port(), Peer: netip.AddrPortFrom(own, d.Port), Bytes: d.Bytes}
		if !is {
			t.Errorf("%s is no packet", d.Peer)
		} else if diff := cmp.Diff(want, got, sameNames); diff != "" {
			t.Errorf("%s (-want +got):\n%s", d.Peer, diff)
		}
	}
}

// TestErrors builds ICMP messages about the guest's datagrams. A message of the guest's own has the same
// form.
func TestErrorTOS(t *testing.T) {
	d := wire.Datagram{Port: 53, Peer: netip.MustParseAddrPort("198.51.100.2:4000")}
	for errno, want := range map[unix.Errno]byte{0: 0, unix.ECONNREFUSED: netns.ErrorTOS} {
		d.Errno = uint16(errno)
		head, sum := built(d)[virtioSize:][:head4], uint32(0)
		for i := 0; i < head4; i += 2 {
			sum += uint32(be.Uint16(head[i:]))
		}
		if head[1] != want || sum>>16+sum&0xffff != 0xffff {
			t.Errorf("errno %d: TOS %#x, checksum %#x", errno, head[1], sum)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, peer := range []string{"198.51.100.2:4000", "[2001:db8::2]:4000"} {
		d := wire.Datagram{Port: 53, Peer: netip.MustParseAddrPort(peer), Errno: uint16(unix.ECONNREFUSED)}
		b := built(d)
		got, is := (&fragments{}).parse(b)
		own := owns[0]
		if d.Peer.Addr().Is6() {
			own = owns[1]
		}
		// It is about a datagram from own, port 53, to the peer: to whom that port was refused.
		want := wire.Datagram{Port: 4000, Peer: netip.AddrPortFrom(own, 53), Errno: d.Errno}
		if diff := cmp.Diff(want, got, sameNames); diff != "" || !is {
			t.Errorf("%s (-want +got):\n%s", peer, diff)
		}
		d.Errno = uint16(unix.EHOSTUNREACH)
		if _, is := (&fragments{}).parse(built(d)); is {
			t.Errorf("%s: a host that is unreachable is no port", peer)
		}
	}
	for name, d := range map[string]wire.Datagram{
		"IPv4 is shorter": {Peer: netip.MustParseAddrPort("198.51.100.2:1"), Bytes: make([]byte, 65508)},
	} {
		if b := build(nil, owns, d); len(b) > 0 {
			t.Errorf("%s: %d bytes", name, len(b))
		}
	}
	if b := build(nil, owns[:1], wire.Datagram{Peer: netip.MustParseAddrPort("[2001:db8::2]:1")}); len(b) > 0 {
		t.Errorf("without an IPv6 address: %d bytes", len(b))
	}
}

// fragment cuts a packet of IPv6 as the kernel does.
func fragment(packet []byte, size int) (list [][]byte) {
	head, rest := packet[:virtioSize+head6], packet[virtioSize+head6:]
	for at := 0; at < len(rest); at += size {
		part := rest[at:min(at+size, len(rest))]
		b := bytes.Clone(head)
		next := b[virtioSize+6]
		b[virtioSize+6] = unix.IPPROTO_FRAGMENT
		be.PutUint16(b[virtioSize+4:], uint16(8+len(part)))
		offset := uint16(at)
		if at+size < len(rest) {
			offset |= 1
		}
		b = append(b, next, 0)
		b = be.AppendUint16(b, offset)
		list = append(list, append(be.AppendUint32(b, 77), part...))
	}
	return list
}

func TestFragments(t *testing.T) {
	d := wire.Datagram{Port: 53, Peer: netip.MustParseAddrPort("[2001:db8::2]:4000"), Bytes: bytes.Repeat([]byte("0123456789"), 6552)}
	parts := fragment(built(d), 60000)
	var f fragments
	for round, order := range [][]int{{0, 1}, {1}, {0, 0, 1}, {1, 0}, {1}} {
		var got wire.Datagram
		var is bool
		for _, i := range order {
			got, is = f.parse(parts[i])
		}
		whole := order[len(order)-1] == 1 && (len(order) > 1 || round == 4)
		if is != whole || is && !bytes.Equal(got.Bytes, d.Bytes) {
			t.Errorf("fragments %v: %v, %d bytes", order, is, len(got.Bytes))
		}
	}
}

// FuzzPackets reads packets, of which each may be a fragment.
func FuzzPackets(f *testing.F) {
	d := wire.Datagram{Port: 53, Peer: netip.MustParseAddrPort("[2001:db8::2]:4000"), Bytes: make([]byte, 100)}
	f.Add(built(d), built(d))
	for _, parts := range [][][]byte{fragment(built(d), 64)} {
		f.Add(parts[0], parts[1])
	}
	d.Errno, d.Bytes = 111, nil
	f.Add(built(d), built(d))
	d.Peer = netip.MustParseAddrPort("198.51.100.2:4000")
	f.Add(built(d), built(d))
	d.Errno = 0
	f.Add(built(d), built(d))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		var f fragments
		for _, b := range [][]byte{one, two} {
			m, is := f.parse(b)
			if !is {
				continue
			}
			if _, err := m.Append(nil); err != nil {
				t.Errorf("what leaves cannot be sent: %v", err)
			}
		}
	})
}

func TestListsPort(t *testing.T) {
	table := []byte("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n" +
		"  123: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1234 2 0000000000000000 0\n" +
		"  124: 0100007F:1F90 0200007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 1234 2 0000000000000000 0\n")
	for port, want := range map[uint16]bool{0x35: true, 0x1f90: true, 0x50: false, 0: false} {
		if got := listsPort(table, port); got != want {
			t.Errorf("port %d: %v", port, got)
		}
	}
}
