package ftp

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Telnet's commands in a control connection (RFC 959 section 3.1, RFC 854).
const (
	telnetIAC  = 255
	telnetWill = 251 // this and greater ones have one more byte
)

// skipTelnet returns the length of the Telnet commands with which a line begins: clients send some
// before ABOR.
func skipTelnet(line []byte) (n int) {
	for n+1 < len(line) && line[n] == telnetIAC && line[n+1] != telnetIAC {
		if line[n+1] >= telnetWill {
			n++
		}
		n += 2
	}
	return min(n, len(line))
}

// command splits a line, without its end, into the verb in upper case and the argument.
func command(line []byte) (verb, arg string) {
	line = line[skipTelnet(line):]
	word, rest, _ := bytes.Cut(line, []byte{' '})
	return strings.ToUpper(string(word)), strings.TrimSpace(string(rest))
}

// reply returns the code of a line that is one of a reply, and whether the line is the reply's last.
func reply(line []byte) (code int, last, ok bool) {
	if len(line) < 3 {
		return 0, false, false
	}
	for _, b := range line[:3] {
		if b < '0' || b > '9' {
			return 0, false, false
		}
		code = 10*code + int(b-'0')
	}
	switch {
	case len(line) == 3, line[3] == ' ':
		return code, true, true
	case line[3] == '-':
		return code, false, true
	}
	return 0, false, false
}

// parsePort reads h1,h2,h3,h4,p1,p2 (RFC 959 section 4.1.2, PORT).
func parsePort(text string) (netip.AddrPort, bool) {
	fields := strings.Split(text, ",")
	var b [6]byte
	if len(fields) != len(b) {
		return netip.AddrPort{}, false
	}
	for i, f := range fields {
		n, err := strconv.ParseUint(strings.TrimSpace(f), 10, 8)
		if err != nil {
			return netip.AddrPort{}, false
		}
		b[i] = byte(n)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[:4])), uint16(b[4])<<8|uint16(b[5])), true
}

// formatPort writes h1,h2,h3,h4,p1,p2.
func formatPort(at netip.AddrPort) string {
	a := at.Addr().As4()
	return fmt.Sprintf("%d,%d,%d,%d,%d,%d", a[0], a[1], a[2], a[3], at.Port()>>8, at.Port()&0xff)
}

// The network protocols of RFC 2428.
const (
	protocol4 = "1"
	protocol6 = "2"
)

// parseExtended reads |protocol|address|port| with any delimiter (RFC 2428 section 2).
func parseExtended(text string) (protocol, addr string, port uint16, ok bool) {
	if text == "" {
		return "", "", 0, false
	}
	fields := strings.Split(text, text[:1])
	if len(fields) != 5 || fields[0] != "" || fields[4] != "" {
		return "", "", 0, false
	}
	n, err := strconv.ParseUint(fields[3], 10, 16)
	return fields[1], fields[2], uint16(n), err == nil
}

// passivePort reads the port of a 227 reply. Servers write the numbers with parentheses or without.
func passivePort(line []byte) (uint16, bool) {
	text := string(line[min(3, len(line)):])
	if i := strings.IndexByte(text, '('); i >= 0 {
		text, _, _ = strings.Cut(text[i+1:], ")")
	} else if i := strings.IndexAny(text, "0123456789"); i >= 0 {
		text = text[i:]
		if end := strings.IndexFunc(text, func(r rune) bool { return r != ',' && (r < '0' || r > '9') }); end >= 0 {
			text = text[:end]
		}
	}
	at, ok := parsePort(text)
	return at.Port(), ok && at.Port() != 0
}

// extendedPort reads the port of a 229 reply (RFC 2428 section 3).
func extendedPort(line []byte) (uint16, bool) {
	_, rest, found := strings.Cut(string(line), "(")
	text, _, closed := strings.Cut(rest, ")")
	if !found || !closed {
		return 0, false
	}
	_, _, port, ok := parseExtended(text)
	return port, ok && port != 0
}
