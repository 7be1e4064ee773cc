package sip

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// # Datagrams
//
// A datagram is one message, of which the body ends with the datagram if no header says its length (RFC
// 3261 section 18.3). It has no state, unless it has a session description: then it belongs to a call
// (media.go).
//
// A message that cannot go on is refused. If it is a request, its sender gets a response that says why,
// and that is not longer than the request.

// Errors of a datagram. It does not go on.
var (
	ErrTooLarge = errors.New("a SIP message over UDP is too large: send it over TCP (RFC 3261 section 18.1.1)")
	ErrRoom     = errors.New("SIP messages name too many new hosts")
	ErrRate     = errors.New("there are too many SIP messages over UDP")
)

// To rewrite a datagram takes up to a few milliseconds, by its length. So there is a limit of each direction,
// in bytes. A datagram counts as datagramCost more than its payload has.
const (
	bytesBurst   = 256 << 10
	bytesRate    = 128 << 10 // a second
	datagramCost = 128
)

// A new host is one that no peer of the container has named for CallLifetime. Each gets a virtual address,
// which is in use for CallLifetime and translate.Grace. All senders together take no more of the pool's
// 65,534 addresses than 256 and 32 for each second of these six minutes: 11,776.
const (
	newHostsBurst = 256
	newHostsRate  = 32 // a second
	// newHostsMax is how many new hosts one message may name.
	newHostsMax = 16
	// hostsMax is how many hosts are known at a time. The one that was named longest ago is
	// forgotten, and is a new one then.
	hostsMax = 1024
)

// Datagrams rewrites the datagrams of one container. One goroutine may use it.
type Datagrams struct {
	hosts    map[netip.Addr]time.Time // that peers have named, and until when they are known
	newHosts bucket
	calls    calls
	in, out  bucket // bytes
}

// NewDatagrams makes a Datagrams.
func NewDatagrams() *Datagrams {
	return &Datagrams{
		hosts: map[netip.Addr]time.Time{}, newHosts: bucket{burst: newHostsBurst, rate: newHostsRate},
		calls: calls{}, in: bucket{burst: bytesBurst, rate: bytesRate}, out: bucket{burst: bytesBurst, rate: bytesRate},
	}
}

// Datagram is one datagram.
type Datagram struct {
	Outwards bool       // from the program to its peer
	Peer     netip.Addr // the peer's IPv6 address
	// Payload is the datagram, or its beginning. Length is the length of all of it in bytes.
	Payload []byte
	Length  int
	Now     time.Time
}

// Rewritten is what becomes of a datagram.
type Rewritten struct {
	// Payload goes on; nil: nothing does.
	Payload []byte
	// Answer goes back to the sender; nil: nothing does.
	Answer []byte
	// Media is what the program and its peer have agreed upon.
	Media []Media
	// IsMessage says that it is a message of SIP. Others go on as they are.
	IsMessage bool
}

// Rewrite rewrites a datagram. The error says why it does not go on.
func (d *Datagrams) Rewrite(c Config, in Datagram) (Rewritten, error) {
	bytes := &d.in
	if in.Outwards {
		bytes = &d.out
	}
	var out Rewritten
	err := ErrRate
	if cost := float64(len(in.Payload) + datagramCost); bytes.has(cost, in.Now) {
		bytes.left -= cost
		out, err = d.rewrite(c, in)
	}
	(&side{Config: c}).note(err, in.Payload, out.Payload)
	return out, err
}

func (d *Datagrams) rewrite(c Config, in Datagram) (Rewritten, error) {
	if !isMessage(in.Payload) {
		if in.Length > len(in.Payload) {
			return Rewritten{}, ErrTooLarge
		}
		return Rewritten{Payload: in.Payload}, nil
	}
	out := Rewritten{IsMessage: true}
	head, body, found := strings.Cut(string(in.Payload), "\r\n\r\n")
	if !found || len(head) > headersMax {
		return out, ErrHeaders
	}
	lines := strings.Split(head, "\r\n")
	answer := func(status string) { out.Answer = response(lines, status) }
	length, known, err := contentLength(lines)
	switch {
	case in.Length > len(in.Payload):
		answer("513 Message Too Large")
		return out, ErrTooLarge
	case err != nil || known && length > len(body):
		answer("400 Bad Content-Length")
		return out, ErrBody
	case known:
		body = body[:length]
	}
	full := d.limit(&c, in)
	s := side{Config: c, outwards: in.Outwards}
	original := slices.Clone(lines)
	out.Payload = s.message(lines, []byte(body))
	if *full {
		out.Payload, lines = nil, original
		answer("503 Too Many Hosts")
		return out, ErrRoom
	}
	out.Media = d.calls.note(&s, original, body, in.Now)
	return out, nil
}

// isMessage tells whether a datagram is a message, rather than one that keeps a way open.
func isMessage(p []byte) bool {
	line, _, _ := strings.Cut(string(p[:min(len(p), headersMax)]), "\n")
	return strings.HasPrefix(line, "SIP/2.0 ") || strings.HasSuffix(strings.TrimRight(line, "\r"), " SIP/2.0")
}

// limit has V4 of a message's configuration answer for a limited number of new hosts. It returns whether
// the message names more.
func (d *Datagrams) limit(c *Config, in Datagram) (full *bool) {
	v4, count := c.V4, 0
	full = new(bool)
	c.V4 = func(host netip.Addr) (netip.Addr, bool) {
		if host == in.Peer {
			return v4(host)
		}
		isNew := !in.Now.Before(d.hosts[host])
		if *full = *full || isNew && (count == newHostsMax || !d.newHosts.has(1, in.Now)); *full {
			return host, false
		}
		is, ok := v4(host)
		if ok && isNew {
			count++
			d.newHosts.left--
		}
		if ok {
			d.keep(host, in.Now)
		}
		return is, ok
	}
	return full
}

// keep keeps a host that a peer has named.
func (d *Datagrams) keep(host netip.Addr, now time.Time) {
	if _, known := d.hosts[host]; !known && len(d.hosts) >= hostsMax {
		delete(d.hosts, first(d.hosts, time.Time.Before))
	}
	d.hosts[host] = now.Add(CallLifetime)
}

// first returns the key of the value that is before all others, of a map that is not empty.
func first[K comparable, V any](m map[K]V, before func(a, b V) bool) (found K) {
	some := false
	for k, v := range m {
		if !some || before(v, m[found]) {
			found, some = k, true
		}
	}
	return found
}

// copied are the headers of a request that its response has (RFC 3261 section 8.2.6.2).
var copied = []string{"via", "from", "to", "call-id", "cseq"}

// response returns a response to a request, or nil if there is none.
func response(lines []string, status string) []byte {
	if strings.HasPrefix(lines[0], "SIP/") || strings.HasPrefix(lines[0], "ACK ") {
		return nil
	}
	out, name := []string{"SIP/2.0 " + status}, ""
	var seen [5]bool
	for _, line := range lines[1:] {
		if line == "" || line[0] != ' ' && line[0] != '\t' {
			name, _ = header(line)
		}
		i := slices.Index(copied, name)
		if i < 0 {
			continue
		}
		seen[i] = true
		if name == "to" && !strings.Contains(strings.ToLower(line), ";tag=") {
			line += fmt.Sprintf(";tag=%08x", tagOf(lines))
		}
		out = append(out, line)
	}
	if slices.Contains(seen[:], false) {
		return nil // no response could be told from others
	}
	return []byte(strings.Join(append(out, "Content-Length: 0"), "\r\n") + "\r\n\r\n")
}

// tagOf returns a number that is the same for each copy of a request.
func tagOf(lines []string) uint32 {
	h := fnv.New32a()
	for _, line := range lines {
		h.Write([]byte(line))
	}
	return h.Sum32()
}
