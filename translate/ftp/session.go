// Package ftp is the application-level gateway for FTP's control connections between a program that
// knows IPv4 only and a peer that it has only by IPv6 (RFC 6384 for both directions). It rewrites
// the messages that name addresses of data connections, and nothing else. It opens no socket and
// needs no privilege. All bytes are hostile, from both sides.
//
// # Theory of operation
//
// Commands and replies are lines (RFC 959 section 4). A Session gets the bytes of both sides, and
// returns what each side is to get.
//
//	                 client is IPv4 only          server is IPv4 only
//	PASV             EPSV                         as it is
//	EPSV             as it is, without "1"        PASV
//	229 to PASV      227 with the server's        -
//	                 virtual address
//	227 to EPSV      -                            229 with the port that a rule publishes
//	PORT, EPRT |1|   EPRT |2| with what           refused
//	                 Config.Expect opens
//	EPRT |2|         refused                      PORT with the client's virtual address
//	LPRT, LPSV       refused                      refused
//
// Which reply is for which command follows from their order: each command has one reply that is not
// preliminary (1xx). If a server breaks this order, it misleads its own client about ports, and
// nothing else: Expect and Published decide what is opened.
//
// A client's PORT has to name the client itself, and a client's EPRT too: otherwise a server would
// connect to third hosts in the client's name (RFC 2577 section 3).
//
// After AUTH the session is encrypted (RFC 4217, RFC 2228). From then on all bytes pass as they are.
package ftp

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync"
)

// Port is where FTP servers listen.
const Port = 21

// The limits of a session.
const (
	// LineMax is the largest length of a line in bytes, with its end. Paths have up to 4,096.
	LineMax = 8192
	// outstandingMax is the largest number of commands without a reply.
	outstandingMax = 64
	// portsMin is the first port that a client may have its server connect to: below are services
	// (RFC 2577 section 3).
	portsMin = 1024
)

// Config says between whom a session is.
type Config struct {
	// Own is the IPv4 address of the program that knows IPv4 only.
	Own netip.Addr
	// Peer and Peer4 are the addresses of its peer: the real one and the virtual one.
	Peer, Peer4 netip.Addr
	// ServerInside says that the program is the server.
	ServerInside bool
	// Expect lets the peer, a server, connect once to a port on which the program, a client, listens.
	// It returns where the peer has to connect to. nil lets no peer connect. It is not called with
	// ServerInside.
	Expect func(port uint16) (netip.AddrPort, error)
	// Published returns the port at which a rule publishes a port of the program, a server. It is
	// called only with ServerInside.
	Published func(port uint16) (uint16, bool)
	// Noted, if it is not nil, is called for each message that was changed, or refused.
	Noted func(refused bool)
}

// Errors of a session. The session ends with them.
var (
	ErrLine        = errors.New("a line of the control connection is too long")
	ErrOutstanding = errors.New("too many commands without a reply")
)

// Session is one control connection. Its methods may be called by several goroutines at once.
type Session struct {
	Config

	mu           sync.Mutex // guards what follows
	encrypted    bool
	client       []byte // the begin of a line
	server       []byte
	outstanding  []outstanding
	inside       int  // the code of the reply of several lines that is being read; 0: none
	extendedOnly bool // the client has promised to send no PORT (EPSV ALL)
}

// outstanding is a command without a reply.
type outstanding struct {
	kind kind
	// local is our own reply to a command that the server does not get. It waits until the server has
	// replied to the commands before.
	local string
}

type kind int

const (
	other  kind = iota
	passes      // PASV that is sent as EPSV, or EPSV that is sent as PASV
	encrypts
	replied // outstanding.local is the reply
)

// New returns a session that waits for the server's greeting.
func New(c Config) *Session {
	return &Session{Config: c, outstanding: []outstanding{{}}}
}

// Output is what the two sides are to get.
type Output struct{ Client, Server []byte }

// FromClient takes bytes of the client. If the error is not nil, the output is the last one.
func (s *Session) FromClient(p []byte) (out Output, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.client = append(s.client, p...)
	for err == nil && !s.encrypted {
		line, ok := cutLine(&s.client)
		if !ok {
			break
		}
		err = s.command(line, &out)
	}
	if s.encrypted {
		out.Server = append(out.Server, s.client...)
		s.client = nil
	}
	if err == nil && len(s.client) >= LineMax {
		err = ErrLine
	}
	if err != nil {
		out.Client = append(out.Client, fmt.Sprintf("421 Connection closed: %s.\r\n", err)...)
	}
	return out, err
}

// FromServer takes bytes of the server. If the error is not nil, the output is the last one.
func (s *Session) FromServer(p []byte) (out Output, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = append(s.server, p...)
	for !s.encrypted {
		line, ok := cutLine(&s.server)
		if !ok {
			break
		}
		s.reply(line, &out)
	}
	if s.encrypted {
		out.Client = append(out.Client, s.server...)
		s.server = nil
	}
	if len(s.server) >= LineMax {
		err = ErrLine
		out.Client = append(out.Client, fmt.Sprintf("421 Connection closed: %s.\r\n", err)...)
	}
	return out, err
}

// cutLine takes a line with its end from the front of a buffer.
func cutLine(buf *[]byte) (line []byte, ok bool) {
	end := bytes.IndexByte(*buf, '\n') + 1
	if end == 0 {
		return nil, false
	}
	line, *buf = (*buf)[:end], (*buf)[end:]
	return line, true
}

func trimEnd(line []byte) []byte { return bytes.TrimRight(line, "\r\n") }

// command handles a line of the client.
func (s *Session) command(line []byte, out *Output) error {
	if len(line) > LineMax {
		return ErrLine
	}
	if len(s.outstanding) >= outstandingMax {
		return ErrOutstanding
	}
	verb, arg := command(trimEnd(line))
	sent, k, refused := string(line), other, ""
	switch verb {
	case "":
		out.Server = append(out.Server, line...)
		return nil // servers do not reply to an empty line
	case "AUTH":
		k = encrypts
	case "LPRT", "LPSV":
		refused = "502 Not implemented; use EPRT or EPSV." // RFC 1639
	case "PASV", "EPSV", "PORT", "EPRT":
		sent, k, refused = s.dataCommand(verb, arg, sent)
	}
	s.note(refused != "", sent != string(line))
	if refused != "" {
		s.outstanding = append(s.outstanding, outstanding{replied, refused + "\r\n"})
		s.flush(out)
		return nil
	}
	s.outstanding = append(s.outstanding, outstanding{kind: k})
	out.Server = append(out.Server, sent...)
	return nil
}

func (s *Session) note(refused, changed bool) {
	if s.Noted != nil && (refused || changed) {
		s.Noted(refused)
	}
}

// dataCommand returns what is sent in the place of a command for data connections, or a reply.
func (s *Session) dataCommand(verb, arg, line string) (sent string, k kind, refused string) {
	if s.ServerInside {
		return s.toServerInside(verb, arg, line)
	}
	switch verb {
	case "PASV":
		return "EPSV\r\n", passes, ""
	case "EPSV":
		if arg == protocol4 {
			return "EPSV\r\n", other, ""
		}
		return line, other, ""
	}
	at, ok := parsePort(arg)
	if verb == "EPRT" {
		protocol, addr, port, parsed := parseExtended(arg)
		if parsed && protocol != protocol4 {
			return "", other, "522 Network protocol not supported, use (1)."
		}
		ip, err := netip.ParseAddr(addr)
		at, ok = netip.AddrPortFrom(ip, port), parsed && err == nil
	}
	switch {
	case !ok:
		return "", other, "501 Syntax error."
	case at.Addr() != s.Own:
		return "", other, fmt.Sprintf("501 The address has to be the client's own, %s.", s.Own)
	case at.Port() < portsMin:
		return "", other, "501 The port is a privileged one."
	case s.Expect == nil:
		return "", other, "502 Not implemented; use PASV."
	}
	open, err := s.Expect(at.Port())
	if err != nil {
		return "", other, fmt.Sprintf("425 Cannot open data connection: %s.", oneLine(err))
	}
	return fmt.Sprintf("EPRT |%s|%s|%d|\r\n", protocol6, open.Addr(), open.Port()), other, ""
}

// oneLine returns the text of an error without line ends.
func oneLine(err error) string {
	return string(bytes.Map(func(r rune) rune {
		if r == '\r' || r == '\n' {
			return ' '
		}
		return r
	}, []byte(err.Error())))
}

func (s *Session) toServerInside(verb, arg, line string) (sent string, k kind, refused string) {
	switch verb {
	case "PASV":
		return line, other, ""
	case "EPSV":
		switch {
		case arg == "" || arg == protocol6:
			return "PASV\r\n", passes, ""
		case len(arg) == 3 && (arg == "ALL" || arg == "all" || arg == "All"):
			s.extendedOnly = true
			return "", other, "200 Only EPSV from now on."
		}
		return "", other, "522 Network protocol not supported, use (2)."
	}
	protocol, addr, port, ok := parseExtended(arg)
	ip, err := netip.ParseAddr(addr)
	switch {
	case s.extendedOnly:
		return "", other, "501 Only EPSV after EPSV ALL."
	case verb == "PORT", ok && protocol != protocol6:
		return "", other, "522 Network protocol not supported, use (2)."
	case !ok || err != nil:
		return "", other, "501 Syntax error."
	case ip != s.Peer:
		return "", other, "501 The address has to be the client's own."
	case port < portsMin:
		return "", other, "501 The port is a privileged one."
	}
	return fmt.Sprintf("PORT %s\r\n", formatPort(netip.AddrPortFrom(s.Peer4, port))), other, ""
}

// reply handles a line of the server.
func (s *Session) reply(line []byte, out *Output) {
	code, last, ok := reply(trimEnd(line))
	first := outstanding{}
	if len(s.outstanding) > 0 {
		first = s.outstanding[0]
	}
	switch {
	case s.inside != 0 && (!ok || code != s.inside):
		ok = false // a line between
	case !ok:
	case !last:
		s.inside = code
	default:
		s.inside = 0
	}
	if !ok {
		out.Client = append(out.Client, line...)
		return
	}
	if first.kind == passes {
		is := s.passive(code, last, line)
		s.note(false, !bytes.Equal(is, line))
		line = is
	}
	out.Client = append(out.Client, line...)
	if !last || code < 200 {
		return
	}
	if len(s.outstanding) > 0 {
		s.outstanding = s.outstanding[1:]
	}
	if first.kind == encrypts && (code == 234 || code == 235 || code == 334) {
		s.encrypted = true
		return
	}
	s.flush(out)
}

// passive returns what the client gets in the place of the reply to EPSV or PASV.
func (s *Session) passive(code int, last bool, line []byte) []byte {
	was, is := 229, "227"
	if s.ServerInside {
		was, is = 227, "229"
	}
	switch {
	case code != was:
		return line
	case !last:
		return append([]byte(is), line[3:]...)
	}
	if !s.ServerInside {
		port, ok := extendedPort(trimEnd(line))
		if !ok {
			return []byte("425 Cannot open data connection: the server names no port.\r\n")
		}
		return fmt.Appendf(nil, "227 Entering Passive Mode (%s).\r\n", formatPort(netip.AddrPortFrom(s.Peer4, port)))
	}
	port, ok := passivePort(trimEnd(line))
	if !ok {
		return []byte("425 Cannot open data connection: the server names no port.\r\n")
	}
	public, ok := s.Published(port)
	if !ok {
		return fmt.Appendf(nil, "425 Cannot open data connection: no rule publishes port %d.\r\n", port)
	}
	return fmt.Appendf(nil, "229 Entering Extended Passive Mode (|||%d|)\r\n", public)
}

// flush sends our own replies whose turn it is.
func (s *Session) flush(out *Output) {
	for len(s.outstanding) > 0 && s.outstanding[0].kind == replied {
		out.Client = append(out.Client, s.outstanding[0].local...)
		s.outstanding = s.outstanding[1:]
	}
}
