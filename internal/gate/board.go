package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The layout of struct board, native/rules/board.h.
const (
	boardMagic   = 0x6f627374
	boardVersion = 1
	boardSize    = 0x49000
	boardRules   = 64

	wordSequence   = 4
	wordOwnSockets = 5
	wordServices   = 6
	wordAPI        = 8
	wordTraced     = 9
	wordDatagrams  = 10
	wordBound      = 11
	wordBorn       = 12
)

// board is what the gate and the shims in the container's programs read at every
// call.
type board struct {
	file *os.File
	mu   sync.Mutex // makes changes one after another, guards mem
	mem  []byte     // nil once it is closed: calls may be being answered yet
}

func newBoard(own uint64, rules []byte) (*board, error) {
	fd, err := unix.MemfdCreate("board", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make board: %w", err)
	}
	b := &board{file: os.NewFile(uintptr(fd), "board")}
	if err = b.file.Truncate(boardSize); err == nil {
		b.mem, err = unix.Mmap(fd, 0, boardSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make board: %w", err), b.file.Close())
	}
	e := binary.NativeEndian
	e.PutUint32(b.mem[0:], boardMagic)
	e.PutUint32(b.mem[4:], boardVersion)
	e.PutUint64(b.mem[8:], own)
	if err := b.setRules(rules); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// seal keeps all but those who have mapped the board by now from writing to it.
func (b *board) seal() error {
	_, err := unix.FcntlInt(b.file.Fd(), unix.F_ADD_SEALS,
		unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE)
	if err != nil {
		return fmt.Errorf("seal board: %w", err)
	}
	return nil
}

// setRules changes the rules under the eyes of their readers. Every word is
// written atomically: plain writes might be seen before the first change of the
// sequence, or after the second.
func (b *board) setRules(image []byte) error {
	if len(image) > boardSize-boardRules {
		return fmt.Errorf("rules of %d bytes, at most %d fit", len(image), boardSize-boardRules)
	}
	padded := append(image[:len(image):len(image)], make([]byte, 4)...)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mem == nil {
		return fmt.Errorf("change rules: %w", os.ErrClosed)
	}
	atomic.AddUint32(b.word(wordSequence), 1)
	for at := 0; at < len(image); at += 4 {
		atomic.StoreUint32(b.word((boardRules+at)/4), binary.NativeEndian.Uint32(padded[at:]))
	}
	atomic.AddUint32(b.word(wordSequence), 1)
	return nil
}

func (b *board) set(word int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mem != nil {
		atomic.StoreUint32(b.word(word), 1)
	}
}

func (b *board) word(n int) *uint32 { return (*uint32)(unsafe.Pointer(&b.mem[4*n])) }

func (b *board) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	mem := b.mem
	b.mem = nil
	return errors.Join(unix.Munmap(mem), b.file.Close())
}
