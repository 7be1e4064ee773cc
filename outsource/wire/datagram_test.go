package wire

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var datagrams = []Datagram{
	{Port: 1, Peer: netip.MustParseAddrPort("198.51.100.2:53"), Bytes: []byte("question")},
	{Port: 65535, Peer: netip.MustParseAddrPort("[2001:db8::1]:65535"), Bytes: []byte{}},
	{Port: 40000, Peer: netip.MustParseAddrPort("198.51.100.2:9"), Errno: 111, Bytes: []byte{}},
	{Port: 7, Peer: netip.MustParseAddrPort("0.0.0.0:0"), Bytes: bytes.Repeat([]byte("x"), DatagramMax)},
}

func TestDatagrams(t *testing.T) {
	var stream []byte
	for range 5 { // more than the reader has room for
		for _, d := range datagrams {
			var err error
			if stream, err = d.Append(stream); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := NewDatagramReader(bytes.NewReader(stream))
	for range 5 {
		for _, want := range datagrams {
			got, err := ReadDatagram(r)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, sameNames); diff != "" {
				t.Fatalf("frame changed (-sent +read):\n%s", diff)
			}
		}
	}
	if _, err := ReadDatagram(r); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestNoDatagram(t *testing.T) {
	for name, d := range map[string]Datagram{
		"no peer":     {Port: 1},
		"too long":    {Peer: datagrams[0].Peer, Bytes: make([]byte, DatagramMax+1)},
		"error bytes": {Peer: datagrams[0].Peer, Errno: 1, Bytes: []byte{1}},
	} {
		if b, err := d.Append([]byte{9}); !errors.Is(err, ErrMessage) || len(b) != 1 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	good, err := datagrams[0].Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"short size":  func(b []byte) []byte { le.PutUint32(b, frameHeader-1); return b },
		"long size":   func(b []byte) []byte { le.PutUint32(b, frameHeader+DatagramMax+1); return b },
		"cut":         func(b []byte) []byte { return b[:len(b)-1] },
		"cut size":    func(b []byte) []byte { return b[:3] },
		"errno":       func(b []byte) []byte { b[4] = 1; return b },
		"family":      func(b []byte) []byte { b[8] = 5; return b },
		"no family":   func(b []byte) []byte { clear(b[8:12]); return b },
		"wide IPv4":   func(b []byte) []byte { b[16] = 1; return b },
		"only a size": func(b []byte) []byte { return b[:4] },
	} {
		if d, err := ReadDatagram(NewDatagramReader(bytes.NewReader(change(bytes.Clone(good))))); !errors.Is(err, ErrMessage) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
}

// FuzzReadDatagram reads what a guest or its host may send. What is taken is the same frame after it was
// written.
func FuzzReadDatagram(f *testing.F) {
	for _, d := range datagrams[:3] {
		b, err := d.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ReadDatagram(NewDatagramReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		again, err := d.Append(nil)
		if err != nil {
			t.Fatalf("frame was read and cannot be written: %v", err)
		}
		got, err := ParseDatagram(again[4:])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(d, got, sameNames); diff != "" {
			t.Errorf("frame changed:\n%s", diff)
		}
	})
}
