package sip

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// session rewrites a session description (RFC 4566). Lines that it does not understand stay.
func (s *side) session(body []byte) []byte {
	lines := strings.SplitAfter(string(body), "\n")
	for i, line := range lines {
		text := strings.TrimRight(line, "\r\n")
		end := line[len(text):]
		switch {
		case strings.HasPrefix(text, "o="), strings.HasPrefix(text, "c="), strings.HasPrefix(text, "a=rtcp:"):
			lines[i] = s.connection(text) + end
		case strings.HasPrefix(text, "m="):
			lines[i] = s.media(text) + end
		}
	}
	return []byte(strings.Join(lines, ""))
}

// connection rewrites a line that ends in "IN IP4 ADDR" or "IN IP6 ADDR".
func (s *side) connection(line string) string {
	fields := strings.Split(line, " ")
	n := len(fields)
	kind, other := "IP6", "IP4"
	if s.outwards {
		kind, other = other, kind
	}
	if n < 3 || !strings.HasSuffix(fields[n-3], "IN") || fields[n-2] != kind {
		return line
	}
	// A multicast address has a "/", and stays. Some programs write brackets (sipp does in o=).
	addr, err := netip.ParseAddr(strings.Trim(fields[n-1], "[]"))
	if err != nil || addr.Is4() != s.outwards {
		return line
	}
	is, known := s.counterpart(addr)
	if !known {
		return line
	}
	fields[n-2], fields[n-1] = other, is.String()
	if port, is := strings.CutPrefix(fields[0], "a=rtcp:"); is {
		fields[0] = "a=rtcp:" + s.port(addr, port, s.Media)
	}
	return strings.Join(fields, " ")
}

// media rewrites "m=audio PORT ..." of the program.
func (s *side) media(line string) string {
	fields := strings.SplitN(line, " ", 3)
	if !s.outwards || len(fields) < 3 {
		return line
	}
	port, err := strconv.ParseUint(fields[1], 10, 16)
	if err != nil || port == 0 { // 0 says that the media is refused
		return line
	}
	return fmt.Sprintf("%s %d %s", fields[0], s.Media(uint16(port)), fields[2])
}
