package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
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

func FuzzParse(f *testing.F) {
	f.Add(message(version, uint32(Bind), 28))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := parse(b); err == nil && len(a.Address) > addressMax {
			t.Errorf("an address of %d bytes", len(a.Address))
		}
	})
}
