package vsock

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// known lists the connections that the guest may take for open, in a file in memory. The file outlives this
// process (Keeper), so that the next one can reset those connections.
//
// A connection is listed before the guest hears of it, and until the guest has ended it or was told of
// its end. The list has room for all connections, and for as many of which the guest was not told yet. One
// that finds no room is not listed.
//
// The file has slots of four words: the guest's port, the host's, the type, and whether the slot is used.
// The first slot is no connection's: its first word counts processes that have ended while they handled what
// the guest or its VMM had sent, and the second one says that a process does so.
type known struct {
	file  int
	slots []byte
	at    map[key]int // slots
	free  []int       // the last one is the next
}

const (
	slotSize  = 16
	slotsMax  = 1 + 2*connsMax
	knownSize = slotSize * slotsMax
)

// newKnown makes an empty list.
func newKnown() (*known, error) {
	file, err := unix.MemfdCreate("vsock connections", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a list of connections: %w", err)
	}
	if err := unix.Ftruncate(file, knownSize); err != nil {
		unix.Close(file)
		return nil, fmt.Errorf("make a list of connections: %w", err)
	}
	return openKnown(file)
}

// openKnown opens a list. It owns the file.
func openKnown(file int) (*known, error) {
	var st unix.Stat_t
	err := unix.Fstat(file, &st)
	if err == nil && st.Size != knownSize {
		err = fmt.Errorf("%w: %d bytes", ErrKept, st.Size)
	}
	var slots []byte
	if err == nil {
		slots, err = unix.Mmap(file, 0, knownSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		unix.Close(file)
		return nil, fmt.Errorf("open the list of connections: %w", err)
	}
	l := &known{file: file, slots: slots, at: map[key]int{}}
	for i := slotsMax - 1; i > 0; i-- {
		if l.used(i).Load() == 0 {
			l.free = append(l.free, i)
			continue
		}
		b := l.slots[slotSize*i:]
		l.at[key{
			guest: binary.NativeEndian.Uint32(b), host: binary.NativeEndian.Uint32(b[4:]), typ: uint16(binary.NativeEndian.Uint32(b[8:])),
		}] = i
	}
	return l, nil
}

func (l *known) word(i int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&l.slots[i])) }

func (l *known) used(slot int) *atomic.Uint32 { return l.word(slotSize*slot + 12) }

// faults is the number of processes that have ended while their thread handled the device's input. None that
// came after them has lasted.
func (l *known) faults() *atomic.Uint32 { return l.word(0) }

// handling is 1 while the device's thread handles its input.
func (l *known) handling() *atomic.Uint32 { return l.word(4) }

// add lists a connection.
func (l *known) add(k key) {
	if l == nil || l.at[k] != 0 || len(l.free) == 0 {
		return
	}
	i := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	l.at[k] = i
	b := l.slots[slotSize*i:]
	binary.NativeEndian.PutUint32(b, k.guest)
	binary.NativeEndian.PutUint32(b[4:], k.host)
	binary.NativeEndian.PutUint32(b[8:], uint32(k.typ))
	l.used(i).Store(1) // last, because this process may end at any time
}

// remove takes a connection out of the list.
func (l *known) remove(k key) {
	if l == nil {
		return
	}
	if i := l.at[k]; i != 0 {
		l.used(i).Store(0)
		delete(l.at, k)
		l.free = append(l.free, i)
	}
}

// clear takes all connections out.
func (l *known) clear() {
	if l == nil {
		return
	}
	for k := range l.at {
		l.remove(k)
	}
}

func (l *known) close() {
	if l != nil {
		_ = unix.Munmap(l.slots)
		unix.Close(l.file)
	}
}
