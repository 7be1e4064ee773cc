package notify

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
)

// A name is written as far as the program has room for it, and its whole size is told, as
// getsockname(2) does.
func TestGiveName(t *testing.T) {
	p := waits(t)
	page, at := newPage(t)
	const room, name, noWhere = 0, 64, 1
	whole := sockaddr.Bytes(netip.MustParseAddrPort("192.0.2.1:80"))
	for what, test := range map[string]struct {
		size         int32
		name, length uint64
		errno        unix.Errno
		written      int
	}{
		"all":              {128, at + name, at + room, 0, len(whole)},
		"just enough":      {int32(len(whole)), at + name, at + room, 0, len(whole)},
		"cut":              {3, at + name, at + room, 0, 3},
		"none, no pointer": {0, noWhere, at + room, 0, 0},
		"negative":         {-1, at + name, at + room, unix.EINVAL, 0},
		"bad pointer":      {128, noWhere, at + room, unix.EFAULT, 0},
		"bad length":       {128, at + name, noWhere, unix.EFAULT, 0},
	} {
		clear(page)
		binary.NativeEndian.PutUint32(page[room:], uint32(test.size))
		errno, err := giveName(p, netip.MustParseAddrPort("192.0.2.1:80"), test.name, test.length)
		if err != nil || errno != test.errno {
			t.Errorf("%s: %v, %v; want %v", what, errno, err, test.errno)
			continue
		}
		want := make([]byte, len(whole)+1)
		copy(want, whole[:test.written])
		if got := page[name : name+len(want)]; string(got) != string(want) {
			t.Errorf("%s: the name is % x, want % x", what, got, want)
		}
		size := test.size
		if test.errno == 0 {
			size = int32(len(whole))
		}
		if got := int32(binary.NativeEndian.Uint32(page[room:])); got != size {
			t.Errorf("%s: the size is %d, want %d", what, got, size)
		}
	}
}
