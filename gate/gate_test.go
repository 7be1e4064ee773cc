package gate

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"unsafe"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/wire"
)

func message(version uint32, call Call, id uint64, length uint16) []byte {
	m := requestMessage{version: version, call: call, id: id, thread: 77, number: -1, backlog: 128, length: length}
	copy(m.address[:], "0123456789")
	return wire.Append(nil, m)
}

// The C side's numbers and layouts are those of this package.
func TestProtocolIsTheGates(t *testing.T) {
	testkit.CheckC(t, "c/protocol.h", map[string]any{
		"GATE_VERSION":       version,
		"BOARD_ADDRESS_MAX":  addressMax,
		"BOARD_HOST_FIRST_4": hostFirst4,
		"BOARD_HOST_FIRST_6": hostFirst6,
		"GATE_TIMES":         TimeBuckets,

		"BOARD_UNTRAPPED_DESTINATIONS": untrappedDestinations,
		"BOARD_UNTRAPPED_PORT_0":       untrappedPort0,
		"BOARD_TRANSLATED":             translated,
		"BOARD_RELAYED":                relayed,

		"GATE_HELLO":       hello,
		"GATE_SOCKET":      Socket,
		"GATE_CONNECT":     Connect,
		"GATE_BIND":        Bind,
		"GATE_LISTEN":      Listen,
		"GATE_SEND":        Send,
		"GATE_SETSOCKOPT":  SetOption,
		"GATE_GETSOCKOPT":  GetOption,
		"GATE_GETSOCKNAME": GetName,
		"GATE_IOCTL":       Ioctl,
		"GATE_OTHER":       Other,
		"GATE_CALLS":       calls,
		"GATE_DONE":        done,
		"GATE_STATS":       stats,
		"GATE_BYE":         bye,
		"GATE_TAKEN":       taken,
		"GATE_REFUSED":     refused,

		"GATE_ORDER_SET":    opSet,
		"GATE_ORDER_RULES":  opRules,
		"GATE_ORDER_STATS":  opStats,
		"GATE_ORDER_END":    opEnd,
		"GATE_ORDER_MEMORY": opMemory,
		"GATE_ORDER_NAME":   opName,

		"GATE_NAME_OWN":      OwnName,
		"GATE_NAME_PEER":     PeerName,
		"GATE_NAME_ACCEPT":   AcceptName,
		"GATE_NAME_ACCEPTED": AcceptedName,
		"GATE_NAME_WAITS":    WaitName,

		"GATE_WORD_OWN_SOCKETS":     OwnSockets,
		"GATE_WORD_SERVICES":        Services,
		"GATE_WORD_AFGRAFT_SOCKETS": AFGraftSockets,
		"GATE_WORD_BOUND_CLIENTS":   BoundClients,
		"GATE_WORD_EXPECTS":         Expects,
		"GATE_WORD_TRACED":          traced,
		"GATE_WORD_SERVED":          served,
		"GATE_WORD_NAMES_PEERS":     namesPeers,

		"struct gate_request":                  requestMessage{},
		"struct gate_order":                    orderMessage{},
		"offsetof(struct gate_stats, version)": unsafe.Offsetof(messageHead{}.version),
		"offsetof(struct gate_stats, call)":    unsafe.Offsetof(messageHead{}.call),

		"struct gate_stats":      statsMessage{},
		"struct gate_counters":   Stats{},
		"struct gate_call_stats": CallStats{},
		"struct gate_admission":  admissionMessage{},
	})
}

func TestParse(t *testing.T) {
	a, err := parse(message(version, Connect, 1<<40, 10))
	if err != nil {
		t.Fatal(err)
	}
	if a.Call != Connect || a.ID != 1<<40 || a.Thread != 77 || a.Number != -1 || a.Backlog != 128 || a.Answered || !bytes.Equal(a.Address, []byte("0123456789")) {
		t.Errorf("parse: %+v", a)
	}
	for name, b := range map[string][]byte{
		"short":          message(version, Socket, 0, 0)[:unsafe.Sizeof(requestMessage{})-1],
		"long":           append(message(version, Socket, 0, 0), 0),
		"version":        message(version+1, Socket, 0, 0),
		"address length": message(version, Socket, 0, addressMax+1),
	} {
		if _, err := parse(b); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v, want ErrProtocol", name, err)
		}
	}
}

// TestRequestsOfGone has a gate ask for callers that are gone at once, all but a few, while
// nobody takes a Request: those few are taken then, and the others have taken no memory.
func TestRequestsOfGone(t *testing.T) {
	const every = 100 // caller waits
	c := newControl(nil)
	begun, goOn := make(chan bool, 1), make(chan bool)
	var taken []uint64
	ended := make(chan error, 1)
	c.serve(func(a Request) {
		if len(taken) == 0 {
			begun <- true
			<-goOn
		}
		taken = append(taken, a.ID)
	}, func(id uint64) bool { return id%every == 0 }, func(err error) { ended <- err })
	receive := func(id uint64) {
		if err := c.receive(message(version, Bind, id, 16)); err != nil {
			t.Fatal(err)
		}
	}
	const asks = 20 * pendingRoom
	receive(0)
	<-begun
	for id := range uint64(asks) {
		receive(id + 1)
		if len(c.pending) > pendingRoom {
			t.Fatalf("after %d asks %d are kept", id+1, len(c.pending))
		}
	}
	c.stop(io.EOF)
	close(goOn)
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	var next uint64
	for _, id := range taken {
		if id == next {
			next += every
		}
	}
	if next <= asks {
		t.Errorf("%d is not among the %d that were taken, in their order", next, len(taken))
	}
}

func FuzzParse(f *testing.F) {
	f.Add(message(version, Bind, 0, 28))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := parse(b); err == nil && len(a.Address) > addressMax {
			t.Errorf("an address of %d bytes", len(a.Address))
		}
	})
}
