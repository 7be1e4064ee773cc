// Package sip is the application-level gateway for SIP between a program that knows IPv4 only and a
// peer that it has only by IPv6. It rewrites the addresses in a message's headers and in its session
// description (RFC 3261, RFC 4566), and nothing else. It opens no socket and needs no privilege. All
// bytes are hostile, from both sides.
//
// # Theory of operation
//
// A message is a start line, headers, an empty line, and a body of Content-Length bytes (RFC 3261
// section 18.3). A stream gets bytes of one side, and returns whole messages, rewritten, for the
// other. Between messages there may be empty lines, which keep a connection alive. A datagram is one
// message (datagram.go).
//
// Rewritten are: the URI of a request; Via, Contact, Record-Route, Route, From, To, and headers like
// these; of a session description c=, o=, a=rtcp, and the ports of m=. Each address becomes its
// counterpart of the other family. The way back gives the same bytes again, so that both sides
// recognize their own Via, From and To. An address without a counterpart stays.
//
// Ports change only for the program's own address: a rule may publish a port under another number, and
// a port of UDP that a program binds is another one for its peers. An own address without a port, in
// a place where a peer answers, gets one if it is not the default.
package sip

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Port is where SIP servers listen, and the port of an address without one.
const Port = 5060

// The limits of a message, in bytes.
const (
	headersMax = 16 << 10
	bodyMax    = 64 << 10
)

// Errors of a stream. The connection ends with them.
var (
	ErrHeaders = errors.New("a SIP message has too long headers")
	ErrBody    = errors.New("a SIP message says of its body no length, or a too large one")
)

// Config says between whom a connection is.
type Config struct {
	// Own4 and Own6 are the addresses of the program: the one that it knows, and the one that its
	// peer knows.
	Own4, Own6 netip.Addr
	// V6 and V4 return the counterpart of an address that is not the program's.
	V6, V4 func(netip.Addr) (netip.Addr, bool)
	// Port and Media return what a peer has to name in the place of a port of the program: one of the
	// messages' protocol, and one of UDP.
	Port, Media func(uint16) uint16
	// Noted, if it is not nil, is called for each message that was changed, or refused.
	Noted func(refused bool)
	// Known returns the port of the program for one that a peer has named. It is the way back from Port.
	Known func(uint16) uint16
}

// side is a side that sends.
type side struct {
	Config
	outwards bool // it is the program
}

// stream is one direction of a connection.
type stream struct {
	side
	buf []byte
}

// take takes bytes, and returns the messages that are complete.
func (s *stream) take(p []byte) (out []byte, err error) {
	s.buf = append(s.buf, p...)
	for {
		rest := bytes.TrimLeft(s.buf, "\r\n")
		out = append(out, s.buf[:len(s.buf)-len(rest)]...)
		s.buf = rest
		head, rest, found := bytes.Cut(s.buf, []byte("\r\n\r\n"))
		if len(head) > headersMax {
			return out, ErrHeaders
		}
		if !found {
			return out, nil
		}
		lines := strings.Split(string(head), "\r\n")
		length, known, err := contentLength(lines)
		if err == nil && !known {
			err = ErrBody // it is required by a stream
		}
		if err != nil {
			return out, err
		}
		if len(rest) < length {
			return out, nil
		}
		message := s.message(lines, rest[:length])
		s.note(nil, s.buf[:len(s.buf)-len(rest)+length], message)
		out = append(out, message...)
		s.buf = rest[length:]
	}
}

// note reports what becomes of a message.
func (s *side) note(err error, was, is []byte) {
	if s.Noted != nil && (err != nil || !bytes.Equal(was, is)) {
		s.Noted(err != nil)
	}
}

// compact are the short names of headers (RFC 3261 section 7.3.3, RFC 3515).
var compact = map[string]string{"v": "via", "m": "contact", "f": "from", "t": "to", "l": "content-length", "c": "content-type", "r": "refer-to", "e": "content-encoding"}

// header returns the name of a header in lower case, and where its value begins.
func header(line string) (name string, value int) {
	i := strings.IndexByte(line, ':')
	if i < 0 {
		return "", len(line)
	}
	name = strings.ToLower(strings.TrimRight(line[:i], " \t"))
	if long, is := compact[name]; is {
		name = long
	}
	return name, i + 1
}

// contentLength returns the length that a message says that its body has.
func contentLength(lines []string) (length int, known bool, err error) {
	for _, line := range lines[1:] {
		name, value := header(line)
		if name != "content-length" {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(line[value:]), 10, 31)
		if err != nil || n > bodyMax || known && length != int(n) {
			return 0, false, ErrBody
		}
		length, known = int(n), true
	}
	return length, known, nil
}

// Headers that have addresses: those to which a peer sends, and others.
var (
	reached = []string{"via", "contact", "record-route", "route", "path", "service-route"}
	named   = []string{"from", "to", "refer-to", "referred-by", "p-asserted-identity", "p-preferred-identity", "remote-party-id", "diversion"}
)

// message returns a rewritten message.
func (s *side) message(lines []string, body []byte) []byte {
	sdp, name := false, ""
	for i, line := range lines {
		value := 0
		switch {
		case i == 0:
			if strings.HasPrefix(line, "SIP/") { // a response
				continue
			}
			name = "via"
		case line != "" && (line[0] == ' ' || line[0] == '\t'): // the header goes on
		default:
			name, value = header(line)
		}
		if name == "content-type" && strings.HasPrefix(strings.ToLower(strings.TrimSpace(line[value:])), "application/sdp") {
			sdp = true
		}
		if is := slices.Contains(reached, name); is || slices.Contains(named, name) {
			text := s.addresses(line[value:], is)
			if name == "via" && !s.outwards {
				text = s.seenPorts(text)
			}
			lines[i] = line[:value] + text
		}
	}
	if sdp {
		body = s.session(body)
		for i, line := range lines[1:] {
			if name, value := header(line); name == "content-length" {
				lines[i+1] = fmt.Sprintf("%s %d", line[:value], len(body))
			}
		}
	}
	return append([]byte(strings.Join(lines, "\r\n")+"\r\n\r\n"), body...)
}

// Addresses in a header, with a port. In received= an IPv6 address has no brackets.
var (
	inHeader4 = regexp.MustCompile(`(received=)?\b(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})(?::(\d{1,5}))?`)
	inHeader6 = regexp.MustCompile(`(received=)?(\[[0-9A-Fa-f:.]{2,45}\]|received=[0-9A-Fa-f:.]{2,45})(?::(\d{1,5}))?`)
)

// addresses rewrites the addresses of a header's value; those to which peers send if reached is set.
func (s *side) addresses(value string, reached bool) string {
	pattern := inHeader6
	if s.outwards {
		pattern = inHeader4
	}
	out, last := strings.Builder{}, 0
	for _, m := range pattern.FindAllStringSubmatchIndex(value, -1) {
		text, port := value[m[4]:m[5]], ""
		if m[6] >= 0 {
			port = value[m[6]:m[7]]
		}
		received := m[2] >= 0
		if bare, is := strings.CutPrefix(text, "received="); is {
			text, received = bare, true
		}
		end := m[1]
		if s.outwards && (m[0] > 0 && isPart(value[m[0]-1]) || end < len(value) && isPart(value[end])) {
			continue // of a name, such as 192.0.0.2.example
		}
		addr, err := netip.ParseAddr(strings.Trim(text, "[]"))
		if err != nil {
			continue
		}
		is, known := s.counterpart(addr)
		if !known {
			continue
		}
		out.WriteString(value[last:m[0]])
		if received {
			out.WriteString("received=")
		}
		if is.Is6() && !received {
			fmt.Fprintf(&out, "[%s]", is)
		} else {
			out.WriteString(is.String())
		}
		if port = s.portAfter(addr, port, reached && !received); port != "" {
			out.WriteString(":" + port)
		}
		last = end
	}
	out.WriteString(value[last:])
	return out.String()
}

// portAfter returns the port to be written after an address that had a port, or none.
func (s *side) portAfter(addr netip.Addr, port string, reached bool) string {
	if port != "" || !reached {
		return s.port(addr, port, s.Port)
	}
	byDefault := strconv.Itoa(Port)
	if port = s.port(addr, byDefault, s.Port); port == byDefault {
		return ""
	}
	return port
}

var rport = regexp.MustCompile(`(;\s*rport=)(\d{1,5})`)

// seenPorts rewrites the program's ports that peers have seen (RFC 3581), in a Via that is rewritten.
func (s *side) seenPorts(value string) string {
	parts := strings.Split(value, ",")
	for i, part := range parts {
		if !strings.Contains(part, s.Own4.String()) {
			continue
		}
		parts[i] = rport.ReplaceAllStringFunc(part, func(is string) string {
			m := rport.FindStringSubmatch(is)
			return m[1] + s.port(s.Own6, m[2], nil)
		})
	}
	return strings.Join(parts, ",")
}

// isPart tells whether a byte next to an IPv4 address makes a name of it.
func isPart(b byte) bool {
	return b == '.' || b == '-' || b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

// port returns what a port of an address becomes.
func (s *side) port(addr netip.Addr, text string, public func(uint16) uint16) string {
	n, err := strconv.ParseUint(text, 10, 16)
	switch {
	case err != nil || n == 0:
	case s.outwards && addr == s.Own4:
		return strconv.Itoa(int(public(uint16(n))))
	case !s.outwards && addr == s.Own6:
		return strconv.Itoa(int(s.Known(uint16(n))))
	}
	return text
}

// counterpart returns the address of the other family.
func (s *side) counterpart(addr netip.Addr) (netip.Addr, bool) {
	switch {
	case s.outwards && addr == s.Own4:
		return s.Own6, true
	case s.outwards:
		return s.V6(addr)
	case addr == s.Own6:
		return s.Own4, true
	case addr.Is6() && !addr.Is4In6() && addr.Zone() == "":
		return s.V4(addr)
	}
	return addr, false
}
