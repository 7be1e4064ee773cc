package container

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/translate"
)

// oneHost is a translator that knows one host.
type oneHost struct{ v4, v6 netip.Addr }

func (o oneHost) V6(v4 netip.Addr) (netip.Addr, bool) { return o.v6, v4 == o.v4 }

func (o oneHost) Map(v6 netip.Addr, _ time.Duration) (netip.Addr, error) {
	if v6 != o.v6 {
		return netip.Addr{}, errors.New("another host")
	}
	return o.v4, nil
}

// Connections and messages of the relays are counted by protocol.
func TestGatewayCounts(t *testing.T) {
	hosts := oneHost{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("2001:db8::6")}
	own6 := netip.MustParseAddr("2001:db8::1")
	tr := &translation{}
	g := &gateway{ftp: []uint16{21}, sip: []uint16{5060}, addrs: hosts, counts: &tr.relayed, log: slog.New(slog.DiscardHandler)}
	for _, tt := range []struct {
		port                uint16
		says, peer          string // the program's message, and what its peer gets of it
		answers, understood string
	}{
		{21, "PASV\r\n", "EPSV\r\n", "220 here\r\n", "220 here\r\n"},
		{5060, "A sip:198.18.0.1 SIP/2.0\r\nl: 0\r\n\r\n", "A sip:[2001:db8::6] SIP/2.0\r\nl: 0\r\n\r\n", "\r\n", "\r\n"},
	} {
		program, inside := net.Pipe()
		outside, peer := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			g.Relay(graft.Relayed{
				Program: inside, Peer: outside, Port: tt.port, Own: translate.Own, Own6: own6,
				PeerAddr: netip.AddrPortFrom(hosts.v6, tt.port), PeerAddr4: netip.AddrPortFrom(hosts.v4, tt.port),
				Published: func(uint16) (uint16, bool) { return 0, false },
			})
		}()
		for _, way := range []struct {
			from, to   net.Conn
			says, gets string
		}{{program, peer, tt.says, tt.peer}, {peer, program, tt.answers, tt.understood}} {
			for _, c := range []net.Conn{way.from, way.to} {
				if err := c.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := io.WriteString(way.from, way.says); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(way.gets))
			if _, err := io.ReadFull(bufio.NewReader(way.to), got); err != nil || string(got) != way.gets {
				t.Errorf("%q becomes %q, %v", way.says, got, err)
			}
		}
		if tt.port == 5060 {
			if _, err := io.WriteString(peer, "A sip:b SIP/2.0\r\n\r\n"); err != nil { // without a length
				t.Fatal(err)
			}
		} else {
			program.Close()
		}
		<-done
	}
	full, client := net.Pipe()
	go g.Full(full, 21)
	if text, err := io.ReadAll(client); err != nil || string(text) != "421 Too many control connections.\r\n" {
		t.Errorf("a client too many gets %q, %v", text, err)
	}
	want := api.Relays{FTP: api.RelayedProtocol{Connections: 1, Full: 1, Rewritten: 1}, SIP: api.RelayedProtocol{Connections: 1, Rewritten: 1, Refused: 1}}
	testkit.Eventually(t, func() error {
		if got := tr.relays(); got != want {
			return errors.New("counted is not what has gone by")
		}
		return nil
	})
}
