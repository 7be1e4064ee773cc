// Package mapped keeps small tables of fixed layout in a file that is mapped into
// memory, so that what one process stored is there after a SIGKILL.
//
// It owns the file: that it is root's alone, that one process uses it at a time
// (flock), and that what another boot or another version wrote is not taken for
// ours. It knows nothing of the tables. Power loss is no concern: what these
// tables speak of, cgroups and processes, does not survive it either.
//
// It needs no privileges beyond writing the folder; any kernel will do.
package mapped

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/lock"
)

// HeaderSize is how much of the start of a file is this package's: 8 bytes of magic,
// 36 of the boot's id. The rest of the page, from Spare on, is the owner's.
const (
	HeaderSize = 4096
	Spare      = 64

	magicSize = 8
	bootSize  = 36
	retry     = 5 * time.Millisecond
)

// ErrBusy means that another process has the file.
var ErrBusy = errors.New("another process uses the file")

// File is a mapped file. Data begins with the header.
type File struct {
	Data []byte
	// Aside says, when it is not empty, where a file that could not be trusted has
	// been moved and why.
	Aside string
	// File has the lock; a process that inherits it has the lock as well.
	File *os.File
}

// Open maps a file of size bytes, header included, whose content is known by magic
// (8 characters; another layout has another). The file is made if there is none,
// emptied if it is of another boot, and put aside if it is anything else or check,
// where there is one, finds fault with its data. While another process has it, Open
// waits as long as told, then returns ErrBusy.
func Open(path, magic string, size int, wait time.Duration, check func(data []byte) error) (*File, error) {
	if len(magic) != magicSize || size < HeaderSize {
		return nil, fmt.Errorf("open %s: magic %q or size %d is of no use", path, magic, size)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	header := append([]byte(magic), bytes.TrimSpace(boot)...)
	if len(header) != magicSize+bootSize {
		return nil, fmt.Errorf("open %s: boot id %q has an unknown form", path, boot)
	}
	aside := ""
	for end := time.Now().Add(wait); ; {
		f, err := lockNamed(path, end)
		if err != nil {
			return nil, err
		}
		data, why, err := mapIn(f, header, size, check)
		if err == nil && why == nil {
			return &File{Data: data, Aside: aside, File: f}, nil
		}
		if err == nil {
			err = os.Rename(path, path+".bad")
			aside = fmt.Sprintf("%s.bad: %v", path, why)
		}
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", path, err)
		}
	}
}

// mapIn maps a locked file, or says why it is not to be used.
func mapIn(f *os.File, header []byte, size int, check func([]byte) error) (data []byte, why, err error) {
	if why, err := prepare(f, header, size); why != nil || err != nil {
		return nil, why, err
	}
	data, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil || check == nil {
		return data, nil, err
	}
	if why := check(data); why != nil {
		return nil, why, unix.Munmap(data)
	}
	return data, nil, nil
}

// beforeLock is called with the file open and not locked. Tests have something happen then.
var beforeLock = func() {}

// lockNamed opens the file and takes its lock. Whoever had it may have put the file
// aside meanwhile: then there is another to open.
func lockNamed(path string, end time.Time) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, err
		}
		beforeLock()
		counts, err := lock.TakeNamed(f, path)
		if counts {
			return f, nil
		}
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("lock %s: %w", path, ErrBusy)
		}
		time.Sleep(retry)
	}
}

// prepare makes a locked file ready for use, or says why it is not to be used.
func prepare(f *os.File, header []byte, size int) (why, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("it is not a regular file")
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return errors.New("others than its owner could write or read it"), nil
	}
	found := make([]byte, len(header))
	if st.Size != 0 {
		if _, err := f.ReadAt(found, 0); err != nil || st.Size != int64(size) {
			return fmt.Errorf("it has %d bytes instead of %d", st.Size, size), nil
		}
	}
	empty := len(bytes.Trim(found, "\x00")) == 0 // a start that was killed
	switch {
	case bytes.Equal(found, header):
		return nil, nil
	case !empty && !bytes.HasPrefix(found, header[:magicSize]):
		return fmt.Errorf("it begins with %q instead of %q", found[:magicSize], header[:magicSize]), nil
	}
	// The header comes last: without it, all this is done again.
	if err := errors.Join(f.Truncate(0), f.Truncate(int64(size))); err != nil {
		return nil, err
	}
	_, err = f.WriteAt(header, 0)
	return nil, err
}

// Close unmaps the file and lets go of the lock, unless another process has
// inherited it.
func (f *File) Close() error {
	return errors.Join(unix.Munmap(f.Data), f.File.Close())
}

// Reserve makes room on the disk for a part of the file. It is for what is about to be written for
// the first time: where the disk is full, such a write to the memory would be a SIGBUS. A file system
// that reserves nothing is no error.
func (f *File) Reserve(offset, size int) error {
	for {
		err := unix.Fallocate(int(f.File.Fd()), 0, int64(offset), int64(size))
		switch {
		case err == nil, errors.Is(err, unix.EOPNOTSUPP):
			return nil
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("make room in %s: %w", f.File.Name(), err)
		}
	}
}

// Text gives what a field has until its first zero byte, and whether it has one.
func Text(field []byte) (string, bool) {
	i := bytes.IndexByte(field, 0)
	if i < 0 {
		return "", false
	}
	return string(field[:i]), true
}

// SetText fills a field with a text and zero bytes; a text with a zero byte of its
// own, or one that does not leave room for one, is refused.
func SetText(field []byte, text string) error {
	if len(text) >= len(field) || strings.IndexByte(text, 0) >= 0 {
		return fmt.Errorf("%q does not fit in %d bytes", text, len(field)-1)
	}
	clear(field[copy(field, text):])
	return nil
}
