package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
)

func message(version, call, length uint32) []byte {
	b := make([]byte, askSize)
	e := binary.NativeEndian
	e.PutUint32(b, version)
	e.PutUint32(b[4:], call)
	e.PutUint64(b[8:], 1<<40)
	e.PutUint32(b[16:], 77)
	e.PutUint32(b[20:], ^uint32(0)) // descriptor -1
	e.PutUint32(b[24:], 128)
	e.PutUint32(b[32:], length)
	copy(b[offAddress:], "0123456789")
	return b
}

func TestParse(t *testing.T) {
	a, err := parse(message(version, uint32(Connect), 10))
	if err != nil {
		t.Fatal(err)
	}
	if a.Call != Connect || a.ID != 1<<40 || a.Thread != 77 || a.Number != -1 || a.Backlog != 128 || a.Answered || !bytes.Equal(a.Address, []byte("0123456789")) {
		t.Errorf("parse: %+v", a)
	}
	for name, b := range map[string][]byte{
		"short":          message(version, 1, 0)[:askSize-1],
		"long":           append(message(version, 1, 0), 0),
		"version":        message(version+1, 1, 0),
		"address length": message(version, 1, addressMax+1),
	} {
		if _, err := parse(b); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v, want ErrProtocol", name, err)
		}
	}
}

// TestAsksOfGone has a gate ask for callers that are gone at once, all but a few, while
// nobody takes an Ask: those few are taken then, and the others have taken no memory.
func TestAsksOfGone(t *testing.T) {
	const every = 100 // caller waits
	c := newControl(nil)
	begun, goOn := make(chan bool, 1), make(chan bool)
	var taken []uint64
	ended := make(chan error, 1)
	c.serve(func(a Ask) {
		if len(taken) == 0 {
			begun <- true
			<-goOn
		}
		taken = append(taken, a.ID)
	}, func(id uint64) bool { return id%every == 0 }, func(err error) { ended <- err })
	receive := func(id uint64) {
		b := message(version, uint32(Bind), 16)
		binary.NativeEndian.PutUint64(b[8:], id)
		if err := c.receive(b); err != nil {
			t.Fatal(err)
		}
	}
	const asks = 20 * asksRoom
	receive(0)
	<-begun
	for id := range uint64(asks) {
		receive(id + 1)
		if len(c.asks) > asksRoom {
			t.Fatalf("after %d asks %d are kept", id+1, len(c.asks))
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
	f.Add(message(version, uint32(Bind), 28))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := parse(b); err == nil && len(a.Address) > addressMax {
			t.Errorf("an address of %d bytes", len(a.Address))
		}
	})
}
