package tracee

import (
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
func ownMemory(t *testing.T) *Memory {
	t.Helper()
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := &Memory{fd}
	t.Cleanup(m.Close)
	return m
}

// Memory is read and written as far as it is there, and a pointer that leads
// nowhere is ErrFault.
func TestMemory(t *testing.T) {
	pages, at := newPage(t)
	m := ownMemory(t)
	if err := m.Write(at+8, []byte("hello")); err != nil || string(pages[8:13]) != "hello" {
		t.Errorf("write: %v, memory is %q", err, pages[8:13])
	}
	b := make([]byte, 5)
	if err := m.Read(at+8, b); err != nil || string(b) != "hello" {
		t.Errorf("read: %v, %q", err, b)
	}
	for _, bad := range []uint64{0, 1, 1 << 47, 1 << 62, 1<<63 - 1, 1 << 63, 1<<64 - 1, 1<<64 - 4096} {
		if err := m.Read(bad, b); !errors.Is(err, ErrFault) {
			t.Errorf("read at %#x: %v", bad, err)
		}
		if err := m.Write(bad, b); !errors.Is(err, ErrFault) {
			t.Errorf("write at %#x: %v", bad, err)
		}
		if err := m.Read(bad, nil); err != nil {
			t.Errorf("read nothing at %#x: %v", bad, err)
		}
	}
}

// ReadSome reads what there is, which may be nothing. A file that is not open is a fault of
// ours, and not the program's.
func TestReadSome(t *testing.T) {
	pages, at := newPage(t)
	m := ownMemory(t)
	copy(pages, "hello")
	b := make([]byte, len(pages))
	if n, err := m.ReadSome(at, b); err != nil || n != len(pages) || string(b[:5]) != "hello" {
		t.Errorf("a page: %d bytes, %v, %q", n, err, b[:5])
	}
	for _, bad := range []uint64{0, 1, 1 << 62, 1 << 63, 1<<64 - 1} {
		if n, err := m.ReadSome(bad, b); err != nil || n != 0 {
			t.Errorf("%#x: %d bytes, %v; want none", bad, n, err)
		}
	}
	closed := &Memory{-1}
	if n, err := closed.ReadSome(at, b); n != 0 || !errors.Is(err, unix.EBADF) {
		t.Errorf("a file that is not open: %d bytes, %v", n, err)
	}
	if err := closed.Read(at, b); !errors.Is(err, unix.EBADF) || errors.Is(err, ErrFault) {
		t.Errorf("a file that is not open: %v", err)
	}
}
