package notify

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/tracee"
)

// ownMemory is that of the test's process.
func ownMemory(t *testing.T) *tracee.Memory {
	t.Helper()
	m, err := tracee.OpenMemory(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

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

// A request that points where the program has nothing is its own fault, and changes nothing.
func TestReadThroughNowhere(t *testing.T) {
	page, at := newPage(t)
	r := interfaceRequest{number: unix.SIOCETHTOOL, memory: ownMemory(t), file: -1}
	if err := r.readThrough(); !errors.Is(err, tracee.ErrFault) {
		t.Errorf("no struct ifreq: %v", err)
	}
	r.at = at
	if err := r.readThrough(); !errors.Is(err, tracee.ErrFault) { // its pointer is 0
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
