// Package mounts reads the list of mounts that the kernel keeps for each process,
// /proc/PID/mountinfo.
//
// github.com/moby/sys/mountinfo parses a line. This package brings it the lines, because
// it fails where one line of a list is longer than 64 KiB, as the options of an overlay of
// many layers can be, or is not of the form that it knows. Names in the list are the choice
// of whoever has mounted; the kernel escapes white space and backslashes in them.
//
// It mounts nothing. It needs no privileges; Linux 2.6.26.
package mounts

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"

	"github.com/moby/sys/mountinfo"
)

// Mount is one mount. Its texts are parts of a line: clone what is kept.
type Mount = mountinfo.Info

// Self is the list of this process.
const Self = "/proc/self/mountinfo"

// lineMax is how much of a line is read: more than an id, two paths of 4 KiB and a name of 4
// KiB can be with each character escaped. What is cut off are options of the file system.
const lineMax = 60 << 10

// Read lists the mounts of a file. A line for which want returns false is not parsed.
func Read(file string, want func(line []byte) bool) ([]*Mount, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Parse(f, want)
}

// Parse lists the mounts of a text. A line that is none is left out.
func Parse(r io.Reader, want func(line []byte) bool) ([]*Mount, error) {
	var all []*Mount
	for lines := bufio.NewReaderSize(r, lineMax); ; {
		line, err := nextLine(lines)
		if len(line) > 0 && want(line) {
			if some, err := mountinfo.GetMountsFromReader(bytes.NewReader(line), nil); err == nil {
				all = append(all, some...)
			}
		}
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// nextLine reads a line, or the beginning of one that is too long. It is valid until the
// next call.
func nextLine(lines *bufio.Reader) ([]byte, error) {
	line, more, err := lines.ReadLine()
	if more {
		line = bytes.Clone(line)
	}
	for more && err == nil {
		_, more, err = lines.ReadLine()
	}
	return line, err
}

// Any is for Read and Parse: it wants every line.
func Any([]byte) bool { return true }

// Of is for Read and Parse: it wants the lines of a type of file system, and of those
// whose names begin so.
func Of(fsType string) func(line []byte) bool {
	text := []byte(" - " + fsType)
	return func(line []byte) bool { return bytes.Contains(line, text) }
}

// ID is for Read and Parse: it wants the line of one mount.
func ID(id string) func(line []byte) bool {
	return func(line []byte) bool {
		first, _, more := bytes.Cut(line, []byte{' '})
		return more && string(first) == id
	}
}
