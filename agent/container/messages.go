package container

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/tsugiki/tsugiki/policy/enforcer"
	"github.com/tsugiki/tsugiki/translate"
	"github.com/tsugiki/tsugiki/translate/sip"
)

// messages rewrites SIP's datagrams of a container. The kernel programs give each of them to us instead of
// sending it on (bpf/messages.h). They have judged what the program sends. What it is to receive they judge
// after us, so we neither answer nor remember what a sender whom the rules do not cover has sent.
type messages struct {
	t        *translation
	d        *datagrams
	enforced *enforcer.Enforcement
	raw      *rawSockets
	rewriter *sip.Datagrams
	counts   *relayCounts
	warned   time.Time // when the log last said why a message does not go on
}

// warnAgain is how long the log is silent about messages that do not go on: peers can send many.
const warnAgain = time.Minute

// serveMessages rewrites SIP's datagrams, if there are any, until ctx ends. It comes before the programs
// that give them to us translate.
func (c *Container) serveMessages(ctx context.Context) error {
	t, d := c.translation, c.translation.udp.Load()
	if d == nil || len(c.spec.Translation.SIP) == 0 {
		return nil
	}
	m := &messages{t: t, d: d, enforced: c.enforced, rewriter: sip.NewDatagrams(), counts: &t.relayed}
	var err error
	if m.raw, err = openRaw(c.host[""].ns, c.enforced.LoopbackID()); err != nil {
		return err
	}
	t.work.Go(func() {
		err := d.Messages(ctx, m.pass)
		if err = errors.Join(err, m.raw.close()); err != nil {
			c.log.Error("SIP over UDP is not translated any more", "err", err)
		}
	})
	return nil
}

// errUnheard says that no rule covers the sender of a message.
var errUnheard = errors.New("the program may not hear its sender by the rules")

// pass sends a datagram on, or says why it does not go on.
func (m *messages) pass(is enforcer.Message) {
	m.counts.datagrams.Add(1)
	if !is.Outwards && !m.d.Hears(is) {
		m.counts.sip.noted(true)
		m.warn(is, errUnheard)
		return
	}
	own := is.Here.Addr()
	out, err := sip.Rewritten{}, sip.ErrTooLarge
	if is.Fragment {
		m.counts.sip.noted(true)
	} else {
		out, err = m.rewriter.Rewrite(sip.Config{
			Own4: translate.Own, Own6: own, V6: m.v6, V4: m.v4,
			Port:  func(port uint16) uint16 { return m.enforced.PublicPort(own, port) },
			Media: func(port uint16) uint16 { return m.enforced.PublicPort(own, port) },
			Known: func(port uint16) uint16 { return m.enforced.KnownPort(own, port) },
			Noted: m.counts.sip.noted,
		}, sip.Datagram{Outwards: is.Outwards, Peer: is.Host.Addr(), Payload: is.Payload, Length: is.Length, Now: time.Now()})
	}
	for _, media := range out.Media {
		err = errors.Join(err, m.d.Expect(media.Host, media.Port, sip.CallLifetime))
	}
	switch {
	case out.Payload != nil:
		err = errors.Join(err, m.send(is, is.Outwards, out.Payload))
	case out.Answer != nil:
		err = errors.Join(err, m.send(is, !is.Outwards, out.Answer))
	}
	if err != nil {
		m.warn(is, err)
	}
}

// send sends a datagram to the peer, or to the program.
func (m *messages) send(is enforcer.Message, outwards bool, payload []byte) error {
	way := rawWay{from: is.Here, to: is.Host, tos: is.TOS, ttl: is.TTL}
	if !outwards {
		way.from = netip.AddrPortFrom(is.Alias, is.Host.Port())
		way.to = netip.AddrPortFrom(loopback4, is.Port)
	}
	return m.raw.send(way, payload)
}

var loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// v6 returns the IPv6 address for one that the program has named. It does not wait for the NAT64.
func (m *messages) v6(v4 netip.Addr) (netip.Addr, bool) { return m.t.known6(v4) }

// v4 returns the address by which the program knows a host that its peer has named.
func (m *messages) v4(v6 netip.Addr) (netip.Addr, bool) {
	v4, err := m.t.Map(v6, sip.CallLifetime)
	return v4, err == nil
}

func (m *messages) warn(is enforcer.Message, err error) {
	level := slog.LevelDebug
	if time.Since(m.warned) >= warnAgain {
		level, m.warned = slog.LevelWarn, time.Now()
	}
	m.t.decisions.Log(context.Background(), level, "a SIP message does not go on",
		"peer", is.Host, "outwards", is.Outwards, "fragment", is.Fragment, "err", err)
}
