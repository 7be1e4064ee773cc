package container

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/translate/ftp"
	"github.com/tsugiki/tsugiki/translate/sip"
)

// gateway rewrites the messages of FTP and SIP, which name addresses. It implements graft.Gateway.
type gateway struct {
	ftp, sip []uint16 // ports of FTP's control connections, and of SIP
	addrs    graft.Translator
	log      *slog.Logger
}

func (g *gateway) Serves(port uint16) bool {
	return slices.Contains(g.ftp, port) || slices.Contains(g.sip, port)
}

// Relay carries a connection.
func (g *gateway) Relay(c graft.Relayed) {
	relay := g.relayFTP
	if slices.Contains(g.sip, c.Port) {
		relay = g.relaySIP
	}
	err := relay(c)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		g.log.Debug("relayed connection ends", "port", c.Port, "peer", c.PeerAddr, "err", err)
	}
}

func (g *gateway) relaySIP(c graft.Relayed) error {
	return sip.Relay(c.Program, c.Peer, sip.Config{
		Own4: c.Own, Own6: c.Own6, V6: g.addrs.V6, Media: c.Datagrams,
		V4: func(v6 netip.Addr) (netip.Addr, bool) {
			v4, err := g.addrs.Map(v6, 0)
			return v4, err == nil
		},
		Port: func(port uint16) uint16 {
			if public, is := c.Published(port); is {
				return public
			}
			return port
		},
	})
}

func (g *gateway) relayFTP(c graft.Relayed) error {
	config := ftp.Config{
		Own: c.Own, Peer: c.PeerAddr.Addr(), Peer4: c.PeerAddr4.Addr(), ServerInside: c.ServerInside,
		Expect: c.Expect, Published: c.Published,
	}
	client, server := c.Program, c.Peer
	if c.ServerInside {
		client, server = server, client
	}
	return ftp.Relay(client, server, config)
}

// fullPatience is how long a client has to take the reply that there is no room for it.
const fullPatience = time.Second

// Full closes a client's connection. FTP has a reply that says why.
func (g *gateway) Full(client net.Conn, port uint16) {
	if slices.Contains(g.ftp, port) {
		_ = client.SetWriteDeadline(time.Now().Add(fullPatience)) // the reply is a courtesy
		_, _ = io.WriteString(client, "421 Too many control connections.\r\n")
	}
	client.Close()
}

// servesRelayed tells whether a rule publishes a port whose connections are relayed.
func (c *Container) servesRelayed() bool {
	t := c.spec.Translation
	if t == nil {
		return false
	}
	return slices.ContainsFunc(c.spec.Ingress, func(r policy.Ingress) bool {
		return slices.ContainsFunc(slices.Concat(t.FTP, t.SIP), r.Ports.Contains)
	})
}
