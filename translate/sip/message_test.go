package sip

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

var (
	own4, own6 = netip.MustParseAddr("192.0.0.2"), netip.MustParseAddr("2001:db8:1::9")
	peers      = map[netip.Addr]netip.Addr{netip.MustParseAddr("198.18.0.1"): netip.MustParseAddr("2001:db8:1::2")}
)

// newConfig is of a program that binds 5060 of TCP and 6000 of UDP, which are 15060 and 16000 for others.
func newConfig() Config {
	return Config{
		Own4: own4, Own6: own6,
		V6: func(v4 netip.Addr) (netip.Addr, bool) { v6, is := peers[v4]; return v6, is },
		V4: func(v6 netip.Addr) (netip.Addr, bool) {
			for v4, is := range peers {
				if is == v6 {
					return v4, true
				}
			}
			return netip.Addr{}, false
		},
		Port:  func(port uint16) uint16 { return port + 10000 },
		Media: func(port uint16) uint16 { return port + 10000 },
		Known: func(port uint16) uint16 {
			if port < 10000 {
				return port
			}
			return port - 10000
		},
	}
}

func newStream(outwards bool) stream {
	return stream{side: side{Config: newConfig(), outwards: outwards}}
}

// crlf makes a message of a text. LENGTH stands for the length of its body.
func crlf(text string) string {
	text = strings.ReplaceAll(text, "\n", "\r\n")
	_, body, _ := strings.Cut(text, "\r\n\r\n")
	return strings.ReplaceAll(text, "LENGTH", strconv.Itoa(len(body)))
}

// The messages of a call: what a side sends, and what the other gets.
func TestMessages(t *testing.T) {
	for name, tt := range map[string]struct {
		outwards    bool
		sends, gets string
	}{
		"INVITE of the program": {true, `INVITE sip:service@198.18.0.1:5060 SIP/2.0
Via: SIP/2.0/TCP 192.0.0.2:5060;branch=z9hG4bK-1
From: sipp <sip:sipp@192.0.0.2:5060>;tag=1
To: service <sip:service@198.18.0.1:5060>
Call-ID: 1@192.0.0.2
CSeq: 1 INVITE
m: sip:sipp@192.0.0.2:5060
Subject: 192.0.0.2
Content-Type: application/sdp
Content-Length: LENGTH

v=0
o=user1 53655765 2353687637 IN IP4 192.0.0.2
s=-
c=IN IP4 192.0.0.2
t=0 0
m=audio 6000 RTP/AVP 0
a=rtcp:6001 IN IP4 192.0.0.2
m=video 0 RTP/AVP 1
`, `INVITE sip:service@[2001:db8:1::2]:5060 SIP/2.0
Via: SIP/2.0/TCP [2001:db8:1::9]:15060;branch=z9hG4bK-1
From: sipp <sip:sipp@[2001:db8:1::9]:15060>;tag=1
To: service <sip:service@[2001:db8:1::2]:5060>
Call-ID: 1@192.0.0.2
CSeq: 1 INVITE
m: sip:sipp@[2001:db8:1::9]:15060
Subject: 192.0.0.2
Content-Type: application/sdp
Content-Length: LENGTH

v=0
o=user1 53655765 2353687637 IN IP6 2001:db8:1::9
s=-
c=IN IP6 2001:db8:1::9
t=0 0
m=audio 16000 RTP/AVP 0
a=rtcp:16001 IN IP6 2001:db8:1::9
m=video 0 RTP/AVP 1
`},
		"response to the program": {false, `SIP/2.0 200 OK [2001:db8:1::2]
v: SIP/2.0/TCP [2001:db8:1::9]:5060;branch=1;received=2001:db8:1::9, SIP/2.0/TCP [2001:db8:1::2]
Record-Route: <sip:[2001:DB8:1:0::2];lr>,
 <sip:[2001:db8:1::77];lr>
Contact: <sip:[2001:db8:1::2]:5060;transport=TCP>
c: application/sdp
l: LENGTH

v=0
o=- 1 1 IN IP6 [2001:db8:1::2]
c=IN IP6 2001:db8:1::2
m=audio 6000 RTP/AVP 0
`, `SIP/2.0 200 OK [2001:db8:1::2]
v: SIP/2.0/TCP 192.0.0.2:5060;branch=1;received=192.0.0.2, SIP/2.0/TCP 198.18.0.1
Record-Route: <sip:198.18.0.1;lr>,
 <sip:[2001:db8:1::77];lr>
Contact: <sip:198.18.0.1:5060;transport=TCP>
c: application/sdp
l: LENGTH

v=0
o=- 1 1 IN IP4 198.18.0.1
c=IN IP4 198.18.0.1
m=audio 6000 RTP/AVP 0
`},
		"no address": {true, `OPTIONS sip:a@192.0.0.2.example SIP/2.0
Via: SIP/2.0/TCP host.example;received=192.0.0.2
Contact: <sip:192.0.0.2-a.example>, <sip:1.2.3.4>, <sip:300.1.1.1>
Content-Length: 0

`, `OPTIONS sip:a@192.0.0.2.example SIP/2.0
Via: SIP/2.0/TCP host.example;received=2001:db8:1::9
Contact: <sip:192.0.0.2-a.example>, <sip:1.2.3.4>, <sip:300.1.1.1>
Content-Length: 0

`},
		"own ports by default": {true, `REGISTER sip:198.18.0.1 SIP/2.0
Via: SIP/2.0/UDP 192.0.0.2;branch=1;rport
From: <sip:a@192.0.0.2>
Contact: <sip:a@192.0.0.2>, <sip:b@192.0.0.2:7000>
Content-Length: 0

`, `REGISTER sip:[2001:db8:1::2] SIP/2.0
Via: SIP/2.0/UDP [2001:db8:1::9]:15060;branch=1;rport
From: <sip:a@[2001:db8:1::9]>
Contact: <sip:a@[2001:db8:1::9]:15060>, <sip:b@[2001:db8:1::9]:17000>
Content-Length: 0

`},
		"own ports that the peer has seen": {false, `SIP/2.0 200 OK
Via: SIP/2.0/UDP [2001:db8:1::9]:15060;rport=15060;received=2001:db8:1::9, SIP/2.0/UDP [2001:db8:1::2]:15060;rport=15060
Contact: <sip:b@[2001:db8:1::9]:17000>, <sip:a@[2001:db8:1::2]:15060>
Content-Length: 0

`, `SIP/2.0 200 OK
Via: SIP/2.0/UDP 192.0.0.2:5060;rport=5060;received=192.0.0.2, SIP/2.0/UDP 198.18.0.1:15060;rport=15060
Contact: <sip:b@192.0.0.2:7000>, <sip:a@198.18.0.1:15060>
Content-Length: 0

`},
		"keep-alive": {true, "\n\n", "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStream(tt.outwards)
			var got []byte
			for _, b := range []byte(crlf(tt.sends)) {
				out, err := s.take([]byte{b})
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, out...)
			}
			if string(got) != crlf(tt.gets) {
				t.Errorf("it becomes\n%s\nwant\n%s", got, tt.gets)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		sends string
		want  error
	}{
		"no end":      {strings.Repeat("x", headersMax+5), ErrHeaders},
		"no length":   {"A sip:b SIP/2.0\n\n", ErrBody},
		"two lengths": {"A sip:b SIP/2.0\nl: 1\nContent-Length: 2\n\n", ErrBody},
		"too large":   {"A sip:b SIP/2.0\nl: 65537\n\n", ErrBody},
		"negative":    {"A sip:b SIP/2.0\nl: -1\n\n", ErrBody},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStream(false)
			if out, err := s.take([]byte(crlf(tt.sends))); !errors.Is(err, tt.want) || len(out) > 0 {
				t.Errorf("%q, %v, want %v", out, err, tt.want)
			}
		})
	}
}

// A peer does not have a virtual address made for each address that it can think of.
func TestAddressesAreLimited(t *testing.T) {
	made := 0
	v4 := limited(func(addr netip.Addr) (netip.Addr, bool) { made++; return own4, true })
	addr := own6
	for range 10 * addressesMax {
		addr = addr.Next()
		v4(addr)
	}
	if _, known := v4(own6.Next()); made != addressesMax+1 || !known {
		t.Errorf("%d addresses are asked for, and the first is known: %v", made, known)
	}
}

// Relay carries messages both ways, and ends both connections with the first error.
func TestRelay(t *testing.T) {
	program, inside := net.Pipe()
	outside, peer := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- Relay(inside, outside, newConfig()) }()
	for _, way := range []struct {
		from, to    net.Conn
		sends, gets string
	}{
		{program, peer, "A sip:198.18.0.1 SIP/2.0\nl: 0\n\n", "A sip:[2001:db8:1::2] SIP/2.0\nl: 0\n\n"},
		{peer, program, "A sip:[2001:db8:1::9] SIP/2.0\nl: 0\n\n", "A sip:192.0.0.2 SIP/2.0\nl: 0\n\n"},
	} {
		if _, err := io.WriteString(way.from, crlf(way.sends)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(crlf(way.gets)))
		if _, err := io.ReadFull(way.to, got); err != nil || string(got) != crlf(way.gets) {
			t.Errorf("%q becomes %q, %v", way.sends, got, err)
		}
	}
	if _, err := io.WriteString(peer, "A sip:b SIP/2.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrBody) {
		t.Errorf("%v, want %v", err, ErrBody)
	}
	if _, err := program.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the program reads %v", err)
	}
}

// FuzzStream takes hostile bytes in pieces. What a stream keeps is bounded, and does not depend on the
// pieces. What comes out is not much longer.
func FuzzStream(f *testing.F) {
	for _, seed := range []string{
		"A sip:198.18.0.1 SIP/2.0\nVia: SIP/2.0/TCP 192.0.0.2:5060;received=192.0.0.2\nl: 0\n\n",
		"SIP/2.0 200 OK\nv: x [2001:db8:1::9]:5060\nc: application/sdp\nl: 33\n\nv=0\nc=IN IP6 2001:db8:1::2\nm=a 1 x\n",
		"\n\nA sip:b SIP/2.0\nl:4\n\n\x00\x01\x02\x03",
	} {
		f.Add(true, 3, []byte(crlf(seed)))
		f.Add(false, 7, []byte(crlf(seed)))
	}
	f.Fuzz(func(t *testing.T, outwards bool, piece int, data []byte) {
		whole, pieces := newStream(outwards), newStream(outwards)
		want, werr := whole.take(data)
		var got []byte
		var err error
		size := max(1, piece%64)
		for rest := data; len(rest) > 0 && err == nil; {
			n := min(size, len(rest))
			var out []byte
			out, err = pieces.take(rest[:n])
			got, rest = append(got, out...), rest[n:]
			if len(pieces.buf) > headersMax+bodyMax+2*64 {
				t.Fatalf("it keeps %d bytes", len(pieces.buf))
			}
		}
		if werr == nil && (err != nil || string(got) != string(want)) {
			t.Errorf("whole it becomes %q, in pieces %q, %v", want, got, err)
		}
		if len(want) > 16*len(data)+64 {
			t.Errorf("%d bytes become %d", len(data), len(want))
		}
	})
}
