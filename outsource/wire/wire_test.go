package wire

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var sameNames = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

var samples = []Message{
	{Op: Hello, ID: 1, Number: Version},
	{Op: Connect, Flags: Flag6, Type: 1, ID: 7, Name: netip.MustParseAddrPort("198.51.100.2:80"), Options: []Option{{6, 1, []byte{1, 0, 0, 0}}, {1, 9, []byte{}}}},
	{
		Op: Names, Flags: FlagReply, ID: ^uint32(0), Handle: HandleMax, Errno: 111,
		Name: netip.MustParseAddrPort("[2001:db8::1]:1"), Peer: netip.MustParseAddrPort("[::ffff:198.51.100.2]:65535"),
	},
}

func TestMessages(t *testing.T) {
	var stream []byte
	for _, m := range samples {
		var err error
		if stream, err = m.Append(stream); err != nil {
			t.Fatal(err)
		}
	}
	r := bytes.NewReader(stream)
	for _, want := range samples {
		got, err := Read(r)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&want, got, sameNames); diff != "" {
			t.Errorf("message changed (-sent +read):\n%s", diff)
		}
	}
	if _, err := Read(r); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestTooLarge(t *testing.T) {
	long := Option{Value: make([]byte, ValueMax+1)}
	full := Option{Value: make([]byte, ValueMax)}
	for name, options := range map[string][]Option{
		"long value": {long}, "many options": make([]Option, OptionsMax+1), "long message": {full, full, full, full, full, full, full, full, full, full, full, full, full, full, full, full},
	} {
		if b, err := (&Message{Op: Set, Options: options}).Append([]byte{9}); !errors.Is(err, ErrMessage) || len(b) != 1 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}

func TestNoMessage(t *testing.T) {
	good, err := samples[1].Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"short size":    func(b []byte) []byte { le.PutUint32(b, headerSize-1); return b },
		"long size":     func(b []byte) []byte { le.PutUint32(b, SizeMax+1); return b },
		"cut":           func(b []byte) []byte { return b[:len(b)-1] },
		"op 0":          func(b []byte) []byte { b[4] = 0; return b },
		"later op":      func(b []byte) []byte { b[4] = uint8(ops); return b },
		"flags":         func(b []byte) []byte { b[5] |= 0x80; return b },
		"more options":  func(b []byte) []byte { b[7]++; return b },
		"fewer options": func(b []byte) []byte { b[7]--; return b },
		"many options":  func(b []byte) []byte { b[7] = OptionsMax + 1; return b },
		"handle":        func(b []byte) []byte { b[15] = 1; return b },
		"family":        func(b []byte) []byte { b[24] = 5; return b },
		"wide IPv4":     func(b []byte) []byte { b[32] = 1; return b },
		"option size":   func(b []byte) []byte { le.PutUint16(b[4+headerSize+4:], ValueMax+1); return b },
	} {
		if m, err := Read(bytes.NewReader(change(bytes.Clone(good)))); err == nil {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

func TestPorts(t *testing.T) {
	for _, handle := range []uint32{1, 1000, HandleMax} {
		if got, is := HandleOf(DataPort(handle)); !is || got != handle {
			t.Errorf("handle %d became %d, %v", handle, got, is)
		}
		if got, err := ParsePreamble(Preamble(handle)); err != nil || got != handle {
			t.Errorf("handle %d became %d, %v", handle, got, err)
		}
	}
	for _, port := range []uint32{0, 1, ControlPort, DataPort(0), 0xffffffff} {
		if handle, is := HandleOf(port); is {
			t.Errorf("port %#x has handle %d", port, handle)
		}
	}
	for _, b := range [][8]byte{{}, Preamble(0), {'t', 's', 'g', Version + 1, 1}, Preamble(HandleMax + 1)} {
		if handle, err := ParsePreamble(b); err == nil {
			t.Errorf("% x: handle %d", b, handle)
		}
	}
}

// FuzzRead reads what a guest may send. What is taken is the same message after it was written.
func FuzzRead(f *testing.F) {
	for _, m := range samples {
		b, err := m.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := m.Append(nil)
		if err != nil {
			t.Fatalf("message was read and cannot be written: %v", err)
		}
		got, err := Read(bytes.NewReader(again))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, got, sameNames); diff != "" {
			t.Errorf("message changed:\n%s", diff)
		}
	})
}
