package ftp

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
)

// FuzzSession sends hostile bytes of both sides. Before the session is encrypted, a server never gets
// an address that is not the one that Expect gave, or the client's virtual one.
func FuzzSession(f *testing.F) {
	for _, seed := range []string{
		"s220 there\r\n\x00cPASV\r\n\x00s229 (|||256|)\r\n",
		"s220-a\r\n220 b\r\n\x00cPORT 192,0,0,2,156,64\r\n\x00s200 ok\r\n",
		"cEPRT |1|192.0.0.2|40000|\r\n\x00cEPRT |2|2001:db8::6|40000|\r\n\x00cPORT 127,0,0,1,0,22\r\n",
		"cEPSV\r\nEPSV ALL\r\nLPRT 4\r\n\x00s227 (1,2,3,4,156,64)\r\n227 =1,2,3,4,5,6\r\n",
		"c\xff\xf4\xff\xf2ABOR\r\nAUTH TLS\r\n\x00s220\n234 x\r\n\x00cPORT 1,2,3,4,5,6\r\n",
	} {
		f.Add(false, []byte(seed))
		f.Add(true, []byte(seed))
	}
	f.Fuzz(func(t *testing.T, serverInside bool, script []byte) {
		s := newSession(serverInside)
		for _, part := range bytes.Split(script, []byte{0}) {
			if len(part) == 0 {
				continue
			}
			take := s.FromServer
			if part[0] == 'c' {
				take = s.FromClient
			}
			out, err := take(part[1:])
			if len(s.client) > LineMax || len(s.server) > LineMax || len(s.outstanding) > outstandingMax {
				t.Fatalf("it keeps %d and %d bytes, and %d commands", len(s.client), len(s.server), len(s.outstanding))
			}
			if len(out.Client)+len(out.Server) > 16*len(part)+2*LineMax {
				t.Fatalf("%d bytes become %d and %d", len(part), len(out.Client), len(out.Server))
			}
			if s.encrypted || err != nil {
				return
			}
			checkServed(t, serverInside, out.Server)
		}
	})
}

func checkServed(t *testing.T, serverInside bool, sent []byte) {
	t.Helper()
	for line := range strings.Lines(string(sent)) {
		verb, arg := command(trimEnd([]byte(line)))
		switch verb {
		case "PORT":
			if at, ok := parsePort(arg); !serverInside || !ok || at.Addr() != peer4 || at.Port() < portsMin {
				t.Errorf("the server gets %q", line)
			}
		case "EPRT":
			_, addr, port, ok := parseExtended(arg)
			if serverInside || !ok || netip.MustParseAddr(addr) != open.Addr() || port != open.Port() {
				t.Errorf("the server gets %q", line)
			}
		case "LPRT", "LPSV", "EPSV":
			if serverInside || verb != "EPSV" {
				t.Errorf("the server gets %q", line)
			}
		}
	}
}
