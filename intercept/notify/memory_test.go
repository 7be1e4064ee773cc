package notify

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// newPage returns a page of memory, and its address.
func newPage(t *testing.T) (page []byte, at uint64) {
	t.Helper()
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(page) })
	return page, uint64(uintptr(unsafe.Pointer(&page[0])))
}

// ownMemory is that of the test's process.
func ownMemory(t *testing.T) *memory {
	t.Helper()
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{fd}
	t.Cleanup(m.close)
	return m
}

// Memory is read and written as far as it is there, and a pointer that leads
// nowhere is errFault.
func TestMemory(t *testing.T) {
	pages, at := newPage(t)
	m := ownMemory(t)
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

// readSome reads what there is, which may be nothing. A file that is not open is a fault of
// ours, and not the program's.
func TestReadSome(t *testing.T) {
	pages, at := newPage(t)
	m := ownMemory(t)
	copy(pages, "hello")
	b := make([]byte, len(pages))
	if n, err := m.readSome(at, b); err != nil || n != len(pages) || string(b[:5]) != "hello" {
		t.Errorf("a page: %d bytes, %v, %q", n, err, b[:5])
	}
	for _, bad := range []uint64{0, 1, 1 << 62, 1 << 63, 1<<64 - 1} {
		if n, err := m.readSome(bad, b); err != nil || n != 0 {
			t.Errorf("%#x: %d bytes, %v; want none", bad, n, err)
		}
	}
	closed := &memory{-1}
	if n, err := closed.readSome(at, b); n != 0 || !errors.Is(err, unix.EBADF) {
		t.Errorf("a file that is not open: %d bytes, %v", n, err)
	}
	if err := closed.read(at, b); !errors.Is(err, unix.EBADF) || errors.Is(err, errFault) {
		t.Errorf("a file that is not open: %v", err)
	}
}

// A request that points where the program has nothing is its own fault, and changes nothing.
func TestReadThroughNowhere(t *testing.T) {
	page, at := newPage(t)
	r := interfaceRequest{number: unix.SIOCETHTOOL, memory: ownMemory(t), file: -1}
	if err := r.readThrough(); !errors.Is(err, errFault) {
		t.Errorf("no struct ifreq: %v", err)
	}
	r.at = at
	if err := r.readThrough(); !errors.Is(err, errFault) { // its pointer is 0
		t.Errorf("no data: %v", err)
	}
	binary.NativeEndian.PutUint64(page[offData:], r.at+ifreqSize)
	if err := r.readThrough(); !errors.Is(err, unix.EBADF) {
		t.Errorf("a file that is not open: %v", err)
	}
	for i, b := range page[ifreqSize:] {
		if b != 0 {
			t.Fatalf("byte %d was written", i)
		}
	}
}
