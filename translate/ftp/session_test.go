package ftp

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

var (
	own   = netip.MustParseAddr("192.0.0.2")
	peer  = netip.MustParseAddr("2001:db8::6")
	peer4 = netip.MustParseAddr("198.18.0.1")
	open  = netip.MustParseAddrPort("[2001:db8::7]:50001")
)

var errClosed = errors.New("nobody listens\r\nthere")

// newSession is a session in which port 40000 is the program's, and nothing else.
func newSession(serverInside bool) *Session {
	return New(Config{
		Own: own, Peer: peer, Peer4: peer4, ServerInside: serverInside,
		Expect: func(port uint16) (netip.AddrPort, error) {
			if port != 40000 {
				return netip.AddrPort{}, errClosed
			}
			return open, nil
		},
		Published: func(port uint16) (uint16, bool) { return port + 1, port == 40000 },
	})
}

// A step is what one side sends, and what both get then. "\n" stands for CRLF.
type step struct {
	from           byte // 'c' or 's'
	sends          string
	client, server string
}

func lines(text string) string { return strings.ReplaceAll(text, "\n", "\r\n") }

func run(t *testing.T, s *Session, steps []step) {
	t.Helper()
	for _, st := range steps {
		take := s.FromClient
		if st.from == 's' {
			take = s.FromServer
		}
		out, err := take([]byte(lines(st.sends)))
		if err != nil || string(out.Client) != lines(st.client) || string(out.Server) != lines(st.server) {
			t.Errorf("%c sends %q: the client gets %q, the server %q, %v; want %q, %q", st.from, st.sends, out.Client, out.Server, err, st.client, st.server)
		}
	}
}

func TestClientInside(t *testing.T) {
	for name, steps := range map[string][]step{
		"passive": {
			{'s', "220-Hello\n229 x (\n", "220-Hello\n229 x (\n", ""},
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "USER a b\n", "", "USER a b\n"},
			{'s', "230 ok\n", "230 ok\n", ""},
			{'c', "pasv\n", "", "EPSV\n"},
			{'s', "229 Entering Extended Passive Mode (|||40001|)\n", "227 Entering Passive Mode (198,18,0,1,156,65).\n", ""},
			{'c', "RETR 227\n", "", "RETR 227\n"},
			{'s', "150 229 (|||1|)\n226 done\n", "150 229 (|||1|)\n226 done\n", ""},
		},
		"reply of several lines": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "PASV\n", "", "EPSV\n"},
			{'s', "229-one\n227 two\n229 (|||256|)\n", "227-one\n227 two\n227 Entering Passive Mode (198,18,0,1,1,0).\n", ""},
		},
		"pieces": {
			{'s', "22", "", ""},
			{'s', "0 there\n", "220 there\n", ""},
			{'c', "PA", "", ""},
			{'c', "SV\nNOOP\n", "", "EPSV\nNOOP\n"},
			{'s', "500 what\n200 noop\n", "500 what\n200 noop\n", ""},
		},
		"no port": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "PASV\nPASV\nPASV\n", "", "EPSV\nEPSV\nEPSV\n"},
			{'s', "229 (|||0|)\n", "425 Cannot open data connection: the server names no port.\n", ""},
			{'s', "229 (|||65536|)\n", "425 Cannot open data connection: the server names no port.\n", ""},
			{'s', "229\n", "425 Cannot open data connection: the server names no port.\n", ""},
		},
		"extended passive": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "EPSV\nEPSV 1\nEPSV ALL\n", "", "EPSV\nEPSV\nEPSV ALL\n"},
			{'s', "229 (|||5|)\n", "229 (|||5|)\n", ""},
		},
		"active": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "PORT 192,0,0,2,156,64\n", "", "EPRT |2|2001:db8::7|50001|\n"},
			{'s', "200 EPRT\n", "200 EPRT\n", ""},
			{'c', "EPRT |1|192.0.0.2|40000|\n", "", "EPRT |2|2001:db8::7|50001|\n"},
		},
		"bounce": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "PORT 198,18,0,1,156,64\n", "501 The address has to be the client's own, 192.0.0.2.\n", ""},
			{'c', "PORT 127,0,0,1,156,64\n", "501 The address has to be the client's own, 192.0.0.2.\n", ""},
			{'c', "PORT 192,0,0,2,0,22\n", "501 The port is a privileged one.\n", ""},
			{'c', "PORT 192,0,0,2,156,65\n", "425 Cannot open data connection: nobody listens  there.\n", ""},
			{'c', "PORT 192,0,0,2,256,65\n", "501 Syntax error.\n", ""},
			{'c', "PORT\n", "501 Syntax error.\n", ""},
			{'c', "EPRT |1|198.18.0.1|40000|\n", "501 The address has to be the client's own, 192.0.0.2.\n", ""},
			{'c', "EPRT |2|2001:db8::6|40000|\n", "522 Network protocol not supported, use (1).\n", ""},
			{'c', "EPRT |1|192.0.0.2|40000|5|\n", "501 Syntax error.\n", ""},
			{'c', "LPRT 4,4,192,0,0,2,2,156,64\n", "502 Not implemented; use EPRT or EPSV.\n", ""},
			{'c', "LPSV\n", "502 Not implemented; use EPRT or EPSV.\n", ""},
		},
		"own replies wait for those before": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "NOOP\nLPSV\nNOOP\n", "", "NOOP\nNOOP\n"},
			{'s', "200 one\n200 two\n", "200 one\n502 Not implemented; use EPRT or EPSV.\n200 two\n", ""},
		},
		"abort": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "RETR x\n\xff\xf4\xff\xf2ABOR\nPASV\n", "", "RETR x\n\xff\xf4\xff\xf2ABOR\nEPSV\n"},
			{'s', "150 x\n426 aborted\n226 ok\n", "150 x\n426 aborted\n226 ok\n", ""},
			{'s', "229 (|||256|)\n", "227 Entering Passive Mode (198,18,0,1,1,0).\n", ""},
		},
		"Telnet before a command": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "\xff\xf1\xff\xfd\x01PORT 127,0,0,1,156,64\n", "501 The address has to be the client's own, 192.0.0.2.\n", ""},
		},
		"encrypted": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "AUTH TLS\n", "", "AUTH TLS\n"},
			{'s', "234 go\n", "234 go\n", ""},
			{'c', "\x16\x03\x01PASV\n", "", "\x16\x03\x01PASV\n"},
			{'s', "229 (|||5|", "229 (|||5|", ""},
			{'c', strings.Repeat("x", 2*LineMax), "", strings.Repeat("x", 2*LineMax)},
		},
		"not encrypted": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "AUTH TLS\n", "", "AUTH TLS\n"},
			{'s', "500 no\n", "500 no\n", ""},
			{'c', "PASV\n", "", "EPSV\n"},
		},
	} {
		t.Run(name, func(t *testing.T) { run(t, newSession(false), steps) })
	}
}

func TestServerInside(t *testing.T) {
	for name, steps := range map[string][]step{
		"passive": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "EPSV\nEPSV 2\nPASV\n", "", "PASV\nPASV\nPASV\n"},
			{'s', "227 Entering Passive Mode (192,0,0,2,156,64).\n", "229 Entering Extended Passive Mode (|||40001|)\n", ""},
			{'s', "227 =10,1,2,3,156,64 and 5\n", "229 Entering Extended Passive Mode (|||40001|)\n", ""},
			{'s', "227 (192,0,0,2,156,64)\n", "227 (192,0,0,2,156,64)\n", ""},
		},
		"no port": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "EPSV\nEPSV\nEPSV\n", "", "PASV\nPASV\nPASV\n"},
			{'s', "227 (192,0,0,2,156,65)\n", "425 Cannot open data connection: no rule publishes port 40001.\n", ""},
			{'s', "227 (192,0,0,2,0,0)\n", "425 Cannot open data connection: the server names no port.\n", ""},
			{'s', "227\n", "425 Cannot open data connection: the server names no port.\n", ""},
		},
		"protocols": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "EPSV 1\n", "522 Network protocol not supported, use (2).\n", ""},
			{'c', "EPSV all\n", "200 Only EPSV from now on.\n", ""},
			{'c', "EPRT |2|2001:db8::6|40000|\n", "501 Only EPSV after EPSV ALL.\n", ""},
		},
		"active": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "EPRT |2|2001:DB8:0::6|40000|\n", "", "PORT 198,18,0,1,156,64\n"},
		},
		"bounce": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "EPRT |2|2001:db8::7|40000|\n", "501 The address has to be the client's own.\n", ""},
			{'c', "EPRT |2|2001:db8::6|22|\n", "501 The port is a privileged one.\n", ""},
			{'c', "EPRT |2||40000|\n", "501 Syntax error.\n", ""},
			{'c', "EPRT\n", "501 Syntax error.\n", ""},
			{'c', "EPRT |1|198.18.0.1|40000|\n", "522 Network protocol not supported, use (2).\n", ""},
			{'c', "PORT 198,18,0,1,156,64\n", "522 Network protocol not supported, use (2).\n", ""},
			{'c', "LPRT 4,4,127,0,0,1,2,156,64\n", "502 Not implemented; use EPRT or EPSV.\n", ""},
		},
		"encrypted": {
			{'s', "220 there\n", "220 there\n", ""},
			{'c', "AUTH TLS\n", "", "AUTH TLS\n"},
			{'s', "234 go\n", "234 go\n", ""},
			{'c', "\x16EPSV\n", "", "\x16EPSV\n"},
		},
	} {
		t.Run(name, func(t *testing.T) { run(t, newSession(true), steps) })
	}
}

// A line without an end, and commands without replies, end the session with a reply that says so.
func TestLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		sends string
		from  byte
		err   error
	}{
		"client": {strings.Repeat("x", LineMax), 'c', ErrLine},
		"line":   {"PORT" + strings.Repeat(" ", LineMax) + "192,0,0,2,156,64\r\n", 'c', ErrLine},
		"server": {strings.Repeat("2", LineMax), 's', ErrLine},
		"many":   {strings.Repeat("NOOP\r\n", outstandingMax), 'c', ErrOutstanding},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSession(false)
			take := s.FromClient
			if tt.from == 's' {
				take = s.FromServer
			}
			out, err := take([]byte(tt.sends))
			want := "421 Connection closed: " + tt.err.Error() + ".\r\n"
			if !errors.Is(err, tt.err) || string(out.Client) != want || strings.Contains(string(out.Server), "PORT") {
				t.Errorf("%v, the client gets %q, the server %q; want %v, %q", err, out.Client, out.Server, tt.err, want)
			}
		})
	}
}
