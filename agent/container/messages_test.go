package container

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/tsugiki/tsugiki/policy/enforcer"
	"github.com/tsugiki/tsugiki/translate/sip"
)

// What a sender that no rule covers sends is neither answered nor remembered.
func TestUnheardMessages(t *testing.T) {
	m := &messages{t: &translation{decisions: slog.New(slog.DiscardHandler)}, d: inKernel(t), rewriter: sip.NewDatagrams()}
	m.counts = &m.t.relayed // without raw sockets, an answer would panic
	m.pass(enforcer.Message{
		Host: netip.MustParseAddrPort("[2001:db8::6]:5060"), Here: netip.MustParseAddrPort("[2001:db8::1]:5060"), Port: 5060, Length: 10000,
		Payload: []byte("OPTIONS sip:a SIP/2.0\r\nVia: a\r\nFrom: a\r\nTo: a\r\nCall-ID: 1\r\nCSeq: 1 OPTIONS\r\n\r\n"),
	})
	if n := m.t.relays(); n.SIP.Refused != 1 || n.Datagrams != 1 {
		t.Errorf("%+v", n)
	}
}
