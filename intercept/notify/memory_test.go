package notify

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
