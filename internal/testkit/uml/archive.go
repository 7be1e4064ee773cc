package uml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// archive writes a cpio archive, in the format of the kernel's initramfs
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w    io.Writer
	last int
	has  map[string]bool
	err  error
}

// add writes a file, and the folders above it. Of two files of one name, the first is there.
func (a *archive) add(name string, mode uint32, data []byte) {
	if a.has[name] {
		return
	}
	if parent := filepath.Dir(name); parent != "." {
		a.dir(parent)
	}
	a.write(name, mode, data)
}

func (a *archive) dir(name string) { a.add(name, unix.S_IFDIR|0o755, nil) }

func (a *archive) write(name string, mode uint32, data []byte) {
	if a.has == nil {
		a.has = map[string]bool{}
	}
	a.has[name] = true
	a.last++
	links := 1
	var b bytes.Buffer
	fmt.Fprintf(&b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.last, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	pad := func() { b.Write(make([]byte, -b.Len()&3)) }
	pad()
	b.Write(data)
	pad()
	_, err := a.w.Write(b.Bytes())
	a.err = errors.Join(a.err, err)
}

func (a *archive) copy(name, from string) {
	data, err := os.ReadFile(from)
	a.err = errors.Join(a.err, err)
	a.add(name, unix.S_IFREG|0o755, data)
}

// end writes the end of the archive, and returns the first error.
func (a *archive) end() error {
	a.write("TRAILER!!!", 0, nil)
	return a.err
}
