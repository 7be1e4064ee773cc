package container

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
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
	media    func(at netip.Addr, port uint16) uint16 // see enforcer.Enforcement.PublicPort
	counts   *relayCounts
	log      *slog.Logger
}

func (g *gateway) Serves(port uint16) bool {
	return slices.Contains(g.ftp, port) || slices.Contains(g.sip, port)
}

// Relay carries a connection.
func (g *gateway) Relay(c graft.Relayed) {
	relay, counts := g.relayFTP, &g.counts.ftp
	if slices.Contains(g.sip, c.Port) {
		relay, counts = g.relaySIP, &g.counts.sip
	}
	counts.connections.Add(1)
	err := relay(c)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		g.log.Debug("relayed connection ends", "port", c.Port, "peer", c.PeerAddr, "err", err)
	}
}

func (g *gateway) relaySIP(c graft.Relayed) error {
	ports := publicPorts{find: c.Published}
	if at, is := c.Peer.LocalAddr().(*net.TCPAddr); is && c.ServerInside {
		ports.known.Store(at.AddrPort().Port(), c.Port)
	}
	return sip.Relay(c.Program, c.Peer, sip.Config{
		Own4: c.Own, Own6: c.Own6, V6: g.addrs.V6, Port: ports.public, Known: ports.own, Noted: g.counts.sip.noted,
		Media: func(port uint16) uint16 { return g.media(c.Own6, port) },
		V4: func(v6 netip.Addr) (netip.Addr, bool) {
			v4, err := g.addrs.Map(v6, 0)
			return v4, err == nil
		},
	})
}

// publicPorts are the ports of TCP by which rules publish those that a program names in its messages.
type publicPorts struct {
	find  func(port uint16) (uint16, bool)
	known sync.Map // the program's port, by the public one
}

func (p *publicPorts) public(port uint16) uint16 {
	public, is := p.find(port)
	if !is {
		return port
	}
	p.known.Store(public, port)
	return public
}

// own is the way back from public.
func (p *publicPorts) own(port uint16) uint16 {
	if own, is := p.known.Load(port); is {
		return own.(uint16)
	}
	return port
}

func (g *gateway) relayFTP(c graft.Relayed) error {
	config := ftp.Config{
		Own: c.Own, Peer: c.PeerAddr.Addr(), Peer4: c.PeerAddr4.Addr(), ServerInside: c.ServerInside,
		Expect: c.Expect, Published: c.Published, Noted: g.counts.ftp.noted,
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
	counts := &g.counts.sip
	if slices.Contains(g.ftp, port) {
		counts = &g.counts.ftp
		_ = client.SetWriteDeadline(time.Now().Add(fullPatience)) // the reply is a courtesy
		_, _ = io.WriteString(client, "421 Too many control connections.\r\n")
	}
	counts.full.Add(1)
	client.Close()
}

// servesRelayed tells whether a rule of the Spec publishes a port whose connections are relayed.
func (c *Container) servesRelayed() bool { return slices.ContainsFunc(c.spec.Ingress, c.relays) }

// relays tells whether connections to a port of a rule are relayed.
func (c *Container) relays(r policy.Ingress) bool {
	t := c.spec.Translation
	return t != nil && slices.ContainsFunc(slices.Concat(t.FTP, t.SIP), r.Ports.Contains)
}
