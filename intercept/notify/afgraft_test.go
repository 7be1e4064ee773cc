package notify

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/graft"
)

func transparentBytes(level, name int32, size uint32, value ...byte) []byte {
	e := binary.NativeEndian
	b := e.AppendUint32(e.AppendUint32(e.AppendUint32(nil, uint32(level)), uint32(name)), size)
	return append(b, value...)
}

func TestParseTransparent(t *testing.T) {
	for _, tt := range []struct {
		name  string
		in    []byte
		value []byte // nil: not taken
	}{
		{"int", transparentBytes(1, -2, 4, 1, 2, 3, 4), []byte{1, 2, 3, 4}},
		{"with more behind it", transparentBytes(1, -2, 2, 1, 2, 3, 4), []byte{1, 2}},
		{"no value", transparentBytes(1, -2, 0), []byte{}},
		{"longest", transparentBytes(1, -2, 116, make([]byte, 116)...), make([]byte, 116)},
		{"too long", transparentBytes(1, -2, 4, make([]byte, 117)...), nil},
		{"more than there is", transparentBytes(1, -2, 5, 1, 2, 3, 4), nil},
		{"length that overflows", transparentBytes(1, -2, 0xffffffff, 1, 2, 3, 4), nil},
		{"cut short", transparentBytes(1, -2, 0)[:11], nil},
		{"nothing", nil, nil},
	} {
		level, name, value, ok := parseTransparent(tt.in)
		if ok != (tt.value != nil) || ok && (level != 1 || name != -2 || !bytes.Equal(value, tt.value)) {
			t.Errorf("%s: %d, %d, % x, %v; want % x", tt.name, level, name, value, ok, tt.value)
		}
	}
}

func FuzzParseTransparent(f *testing.F) {
	f.Add(transparentBytes(1, 2, 4, 1, 0, 0, 0))
	f.Add(transparentBytes(1, 2, 0xfffffff4))
	f.Fuzz(func(t *testing.T, b []byte) {
		level, name, value, ok := parseTransparent(b)
		if !ok {
			return
		}
		if len(b) > transparentMax || !bytes.HasPrefix(b, transparentBytes(int32(level), int32(name), uint32(len(value)), value...)) {
			t.Errorf("%d, %d, % x of % x", level, name, value, b)
		}
	})
}

// What is written for a result is what programs read.
func FuzzAppendResult(f *testing.F) {
	f.Add(int32(1), int32(2), int32(-22))
	f.Fuzz(func(t *testing.T, level, name, result int32) {
		b := appendResult(nil, graft.DelayedOption{Level: int(level), Name: int(name), Result: int(result)})
		e := binary.NativeEndian
		if len(b) != resultSize || int32(e.Uint32(b)) != level || int32(e.Uint32(b[4:])) != name || int32(e.Uint32(b[8:])) != result {
			t.Errorf("%d, %d, %d: % x", level, name, result, b)
		}
	})
}

func FuzzParseSockaddrGr(f *testing.F) {
	f.Add(sockaddrGr("ep-test"))
	f.Add(append(sockaddrGr("0123456789abcdef"), 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, ok := parseSockaddrGr(b)
		if ok != (len(b) >= sockaddrGrSize && isGraftAddr(b)) {
			t.Errorf("taken: %v, % x", ok, b)
		}
		if !ok {
			return
		}
		again, ok := parseSockaddrGr(sockaddrGr(name))
		if !ok || again != name || bytes.IndexByte([]byte(name), 0) >= 0 || !bytes.HasPrefix(b[2:], []byte(name)) {
			t.Errorf("%q of % x, and again %q", name, b, again)
		}
	})
}

// Memory is read and written as far as it is there, and a pointer that leads
// nowhere is errFault.
func TestMemory(t *testing.T) {
	pages, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(pages)
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{fd}
	defer m.close()
	at := uint64(uintptr(unsafe.Pointer(&pages[0])))
	if err := m.write(at+8, []byte("hello")); err != nil || string(pages[8:13]) != "hello" {
		t.Errorf("write: %v, memory is %q", err, pages[8:13])
	}
	b := make([]byte, 5)
	if err := m.read(at+8, b); err != nil || string(b) != "hello" {
		t.Errorf("read: %v, %q", err, b)
	}
	for _, bad := range []uint64{0, 1, 1 << 47, 1 << 62, 1<<63 - 1, 1 << 63, 1<<64 - 1, 1<<64 - 4096} {
		if err := m.read(bad, b); !errors.Is(err, errFault) {
			t.Errorf("read at %#x: %v", bad, err)
		}
		if err := m.write(bad, b); !errors.Is(err, errFault) {
			t.Errorf("write at %#x: %v", bad, err)
		}
		if err := m.read(bad, nil); err != nil {
			t.Errorf("read nothing at %#x: %v", bad, err)
		}
	}
}
