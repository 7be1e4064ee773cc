package sip

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	peer6 = netip.MustParseAddr("2001:db8:1::2")
	start = time.Unix(1, 0)
)

const offer = `INVITE sip:a@198.18.0.1 SIP/2.0
Via: SIP/2.0/UDP 192.0.0.2:5060;branch=1
From: <sip:b@192.0.0.2>;tag=1
To: <sip:a@198.18.0.1>
Call-ID: 1
CSeq: 1 INVITE
Content-Type: application/sdp

v=0
o=- 1 1 IN IP4 192.0.0.2
c=IN IP4 192.0.0.2
m=audio 6000 RTP/AVP 0
`

// datagram returns a datagram at a time after start.
func datagram(outwards bool, text string, after time.Duration) Datagram {
	p := []byte(crlf(text))
	return Datagram{Outwards: outwards, Peer: peer6, Payload: p, Length: len(p), Now: start.Add(after)}
}

// A datagram's body ends with it, or where a header says. What is no message of SIP goes on.
func TestDatagrams(t *testing.T) {
	const headers = "OPTIONS sip:198.18.0.1 SIP/2.0\n"
	const wants = "OPTIONS sip:[2001:db8:1::2] SIP/2.0\n"
	for name, tt := range map[string]struct{ sends, gets string }{
		"no length":  {headers + "\nbody", wants + "\nbody"},
		"length":     {headers + "l: 2\n\nbody", wants + "l: 2\n\nbo"},
		"keep-alive": {"\n\n", "\n\n"},
		"STUN":       {"\x00\x01\x00\x00 192.0.0.2", "\x00\x01\x00\x00 192.0.0.2"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := NewDatagrams().Rewrite(newConfig(), datagram(true, tt.sends, 0))
			if err != nil || string(out.Payload) != crlf(tt.gets) || out.Answer != nil {
				t.Errorf("it becomes %q, with the answer %q, %v; want %q", out.Payload, out.Answer, err, crlf(tt.gets))
			}
		})
	}
}

// A datagram that does not go on is an error. The sender of a request gets a response to it.
func TestRefused(t *testing.T) {
	copied := "Via: SIP/2.0/UDP 192.0.0.2:5060;branch=1\nFrom: <sip:b@192.0.0.2>;tag=1\nTo: <sip:a@198.18.0.1>"
	for name, tt := range map[string]struct {
		sends  string
		more   int // bytes that are cut off
		want   error
		answer string // the status
	}{
		"too large":                     {offer, 1, ErrTooLarge, "513 "},
		"too large, no message":         {"\x00", 1, ErrTooLarge, ""},
		"too large response":            {strings.Replace(offer, "INVITE sip:a@198.18.0.1 SIP/2.0", "SIP/2.0 200 OK", 1), 1, ErrTooLarge, ""},
		"too large ACK":                 {strings.Replace(offer, "INVITE", "ACK", 1), 1, ErrTooLarge, ""},
		"too large, without Call-ID":    {strings.Replace(offer, "Call-ID", "X", 1), 1, ErrTooLarge, ""},
		"longer than it is":             {strings.Replace(offer, "CSeq", "l: 1000\nCSeq", 1), 0, ErrBody, "400 "},
		"two lengths":                   {strings.Replace(offer, "CSeq", "l: 1\nl: 2\nCSeq", 1), 0, ErrBody, "400 "},
		"no end of headers":             {"A sip:b SIP/2.0\nVia: x", 0, ErrHeaders, ""},
		"headers end with another line": {"A sip:b SIP/2.0\r\r", 0, ErrHeaders, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := datagram(true, tt.sends, 0)
			in.Length += tt.more
			out, err := NewDatagrams().Rewrite(newConfig(), in)
			if !errors.Is(err, tt.want) || out.Payload != nil {
				t.Errorf("it becomes %q, %v; want %v", out.Payload, err, tt.want)
			}
			answer := string(out.Answer)
			if tt.answer == "" {
				if answer != "" {
					t.Errorf("it is answered by %q", answer)
				}
				return
			}
			if !strings.HasPrefix(answer, "SIP/2.0 "+tt.answer) || !strings.Contains(answer, strings.ReplaceAll(copied, "\n", "\r\n")+";tag=") ||
				!strings.HasSuffix(answer, "\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n") {
				t.Errorf("it is answered by %q", answer)
			}
		})
	}
}

// A message of a peer that names another host, by its number.
func naming(host int) string {
	return fmt.Sprintf(`OPTIONS sip:[2001:db8:1::9]:15060 SIP/2.0
Via: SIP/2.0/UDP [2001:db8:1::2]:5060
From: <sip:b@[2001:db8:1::2]>
To: <sip:a@[2001:db8:1::9]>
Call-ID: 1
CSeq: 1 OPTIONS
Contact: <sip:b@[2001:db8:2::%x]>

`, host)
}

// Peers have virtual addresses made for a limited number of new hosts at a time. For themselves and for known
// hosts they need none of these, and each second others may be named.
func TestHostsAreLimited(t *testing.T) {
	d, c, made := NewDatagrams(), newConfig(), 0
	c.V4 = func(v6 netip.Addr) (netip.Addr, bool) {
		if v6 != peer6 {
			made++
		}
		return netip.MustParseAddr("198.18.0.1"), true
	}
	rewrite := func(text string, after time.Duration, want error) {
		t.Helper()
		out, err := d.Rewrite(c, datagram(false, text, after))
		if !errors.Is(err, want) || (out.Payload == nil) != (want != nil) || strings.HasPrefix(string(out.Answer), "SIP/2.0 503 ") != (want != nil) {
			t.Errorf("%q, %q, %v; want %v", out.Payload, out.Answer, err, want)
		}
	}
	for i := range newHostsBurst {
		rewrite(naming(i), 0, nil)
	}
	made = 0
	rewrite(naming(newHostsBurst), 0, ErrRoom)
	if made != 0 {
		t.Errorf("a message that is refused had %d addresses made", made)
	}
	rewrite(naming(0), 0, nil)
	rewrite(strings.ReplaceAll(naming(0), "2001:db8:2::0", peer6.String()), 0, nil)
	for i := range newHostsRate {
		rewrite(naming(newHostsBurst+i), time.Second, nil)
	}
	rewrite(naming(newHostsBurst+newHostsRate), time.Second, ErrRoom)
	rewrite(naming(1), CallLifetime+time.Second, nil) // new again
	for i := range 2 * hostsMax {
		rewrite(naming(i), 2*CallLifetime+time.Duration(i)*time.Second, nil)
	}
	if len(d.hosts) != hostsMax {
		t.Errorf("%d hosts are kept", len(d.hosts))
	}
}

// Of each direction, a limited number of bytes is rewritten. The others are lost, and refused without an answer.
func TestRateIsLimited(t *testing.T) {
	d, c, refused := NewDatagrams(), newConfig(), 0
	c.Noted = func(is bool) {
		if is {
			refused++
		}
	}
	const sent = 1000
	size := len(crlf(offer)) + datagramCost
	passed := func(outwards bool, after time.Duration) (n int) {
		t.Helper()
		refused = 0
		for range sent {
			switch out, err := d.Rewrite(c, datagram(outwards, offer, after)); {
			case err == nil && out.Payload != nil:
				n++
			case !errors.Is(err, ErrRate) || out.Payload != nil || out.Answer != nil:
				t.Fatalf("%q, %q, %v", out.Payload, out.Answer, err)
			}
		}
		if n+refused != sent {
			t.Errorf("%d have passed, and %d are refused, of %d", n, refused, sent)
		}
		return n
	}
	for _, outwards := range []bool{false, true} {
		if n := passed(outwards, 0); n != bytesBurst/size {
			t.Errorf("%d have passed at once", n)
		}
		if n := passed(outwards, time.Second); n < bytesRate/size || n > bytesRate/size+1 {
			t.Errorf("%d have passed in a second", n)
		}
	}
}

// One message takes little of the room for hosts, however many it names, and none for those that get no
// virtual address.
func TestHostsOfOneMessage(t *testing.T) {
	d, c, made := NewDatagrams(), newConfig(), 0
	makes := true
	c.V4 = func(v6 netip.Addr) (netip.Addr, bool) {
		if v6 != peer6 {
			made++
		}
		return netip.MustParseAddr("198.18.0.1"), makes
	}
	var via strings.Builder
	for i := range 2 * newHostsBurst {
		fmt.Fprintf(&via, ", SIP/2.0/UDP [2001:db8:3::%x]", i)
	}
	hostile := strings.Replace(naming(0), "]:5060\n", "]:5060"+via.String()+"\n", 1)
	makes = false
	if out, err := d.Rewrite(c, datagram(false, hostile, 0)); err != nil || out.Payload == nil || len(d.hosts) != 0 {
		t.Errorf("hosts without a virtual address: %v, and %d are kept", err, len(d.hosts))
	}
	makes, made = true, 0
	if out, err := d.Rewrite(c, datagram(false, hostile, 0)); !errors.Is(err, ErrRoom) || out.Payload != nil || made != newHostsMax {
		t.Errorf("it had %d addresses made, %v", made, err)
	}
	for i := range newHostsBurst - newHostsMax {
		if _, err := d.Rewrite(c, datagram(false, naming(i), 0)); err != nil {
			t.Fatalf("%d hosts of others: %v", i, err)
		}
	}
}

// The ports that a program's session description names are open for the addresses that its peer's names,
// of one call.
func TestMedia(t *testing.T) {
	answer := func(id, addr string) string {
		return "SIP/2.0 200 OK\nCall-ID: " + id + "\nContent-Type: application/sdp\n\nv=0\nc=IN IP6 " + addr + "\nm=audio 9000 RTP/AVP 0\n"
	}
	d := NewDatagrams()
	note := func(outwards bool, text string, after time.Duration, want ...Media) {
		t.Helper()
		out, err := d.Rewrite(newConfig(), datagram(outwards, text, after))
		if err != nil || !slices.Equal(out.Media, want) {
			t.Errorf("%v, %v; want %v", out.Media, err, want)
		}
	}
	open := func(addr string) []Media {
		host := netip.MustParseAddr(addr)
		return []Media{{6000, host}, {6001, host}}
	}
	note(true, offer, 0)
	note(false, answer("2", "2001:db8:1::2"), 0)
	note(false, answer("1", "2001:db8:1::2"), 0, open("2001:db8:1::2")...)
	note(true, strings.ReplaceAll(offer, "m=audio 6000", "m=audio 0"), 0)
	note(false, answer("1", "::ffff:1.2.3.4"), 0)
	note(false, answer("1", "2001:db8:1::9"), 0)                        // the program itself
	note(false, answer("1", "2001:db8:1::2"), CallLifetime+time.Second) // the call is over
	// Peers invent calls. One that the program has described stays, and what is new makes room.
	note(true, strings.ReplaceAll(offer, "Call-ID: 1", "Call-ID: x1"), 2*CallLifetime)
	for i := range 2 * callsMax {
		note(false, answer(fmt.Sprint("y", i), "2001:db8:1::2"), 2*CallLifetime+time.Duration(i))
	}
	if len(d.calls) != callsMax || d.calls["y0"] != nil || d.calls[fmt.Sprint("y", 2*callsMax-1)] == nil {
		t.Errorf("%d calls are kept", len(d.calls))
	}
	note(false, answer("x1", "2001:db8:1::2"), 2*CallLifetime, open("2001:db8:1::2")...)
	for i := range 2 * callsMax {
		note(true, strings.ReplaceAll(offer, "Call-ID: 1", fmt.Sprint("Call-ID: z", i)), 2*CallLifetime+time.Second+time.Duration(i))
	}
	if len(d.calls) != callsMax || d.calls["x1"] != nil {
		t.Errorf("%d calls are kept", len(d.calls))
	}
	note(true, strings.ReplaceAll(offer, "Call-ID: 1", "Call-ID: x1"), 2*CallLifetime+time.Second)
	for i := range 3 * mediaMax {
		d.calls.note(&side{Config: newConfig()}, []string{"", "Call-ID: x1"}, fmt.Sprintf("v=0\r\nc=IN IP6 2001:db8:2::%x\r\n", i), start.Add(2*CallLifetime))
	}
	if is := d.calls["x1"]; len(is.hosts) != mediaMax {
		t.Errorf("%d hosts of a call are kept", len(is.hosts))
	}
}

// FuzzDatagram takes hostile datagrams. What is kept is bounded, an answer is not much longer than its
// request, and what goes on is whole.
func FuzzDatagram(f *testing.F) {
	for _, seed := range []string{offer, naming(1), "\n\n", "SIP/2.0 200 OK\nv: x;rport=1, 192.0.0.2\nCall-ID: 1\n\nv=0\nc=IN IP6 2001:db8:1::2\n"} {
		f.Add(true, 0, []byte(crlf(seed)))
		f.Add(false, 1, []byte(crlf(seed)))
	}
	d := NewDatagrams()
	now := start
	f.Fuzz(func(t *testing.T, outwards bool, more int, p []byte) {
		now = now.Add(time.Second)
		in := Datagram{Outwards: outwards, Peer: peer6, Payload: p, Length: len(p) + max(0, more), Now: now}
		out, err := d.Rewrite(newConfig(), in)
		if (out.Payload == nil) != (err != nil) && len(p) > 0 || out.Payload != nil && out.Answer != nil {
			t.Errorf("%q, %q, %v", out.Payload, out.Answer, err)
		}
		if len(out.Answer) > len(p)+100 || len(out.Payload) > 16*len(p)+64 {
			t.Errorf("%d bytes become %d, and the answer has %d", len(p), len(out.Payload), len(out.Answer))
		}
		if len(d.hosts) > hostsMax || len(d.calls) > callsMax || len(out.Media) > mediaMax*mediaMax {
			t.Errorf("%d hosts, %d calls, %d of media", len(d.hosts), len(d.calls), len(out.Media))
		}
		if err == nil && !out.IsMessage && string(out.Payload) != string(p) {
			t.Errorf("%q becomes %q", p, out.Payload)
		}
	})
}
