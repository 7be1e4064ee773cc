package container

import (
	"sync/atomic"

	"github.com/tsugiki/tsugiki/api"
)

// relayCounts counts what goes by the relays of one container's translation.
type relayCounts struct {
	ftp, sip  protocolCounts
	datagrams atomic.Uint64 // of SIP
}

// protocolCounts counts the connections of one protocol, the messages that were passed on, and those that
// were refused.
type protocolCounts struct{ connections, full, rewritten, refused atomic.Uint64 }

// noted counts a message that was changed, or refused.
func (p *protocolCounts) noted(refused bool) {
	if refused {
		p.refused.Add(1)
	} else {
		p.rewritten.Add(1)
	}
}

func (p *protocolCounts) shown() api.RelayedProtocol {
	return api.RelayedProtocol{Connections: p.connections.Load(), Full: p.full.Load(), Rewritten: p.rewritten.Load(), Refused: p.refused.Load()}
}

// relays returns the counts of the container's relays.
func (t *translation) relays() api.Relays {
	r := api.Relays{FTP: t.relayed.ftp.shown(), SIP: t.relayed.sip.shown(), Datagrams: t.relayed.datagrams.Load()}
	if d := t.udp.Load(); d != nil {
		r.Lost, _ = d.MessagesLost() // it reads memory
	}
	return r
}
