package machine

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is a guest's file system. It has busybox with all its commands in /bin.
type Root struct {
	// Script is what the guest's first program runs, in busybox's shell, when the modules are
	// loaded and the loopback is up. The guest powers off at its end.
	Script  string
	Modules []string          // Accelerator.Modules
	Files   map[string]string // what is copied: a path in the guest, without the first slash, and one here
	Texts   map[string]string // other files: a path in the guest and the content
}

// begin is the start of the guest's first program.
const begin = `#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/tmp
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
ln -s /proc/self/fd /dev/fd
for m in /lib/*.ko; do insmod $m; done
ip link set lo up
`

// Write writes the initramfs.
func (r *Root) Write(to string) (err error) {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return err
	}
	a := archive{w: z, folders: map[string]bool{".": true}}
	for _, dir := range []string{"bin", "dev", "etc", "lib", "proc", "run", "sys", "tmp"} {
		a.folder(dir)
	}
	a.file("init", []byte(begin+r.Script+"\npoweroff -f\n"))
	a.file("etc/passwd", []byte("root:x:0:0::/:/bin/sh\n"))
	a.file("etc/group", []byte("root:x:0:\n"))
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	a.copy("bin/busybox", busybox)
	for i, module := range r.Modules {
		a.copy(fmt.Sprintf("lib/%02d.ko", i), module)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Files)) {
		a.copy(name, r.Files[name])
	}
	for _, name := range slices.Sorted(maps.Keys(r.Texts)) {
		a.file(name, []byte(r.Texts[name]))
	}
	a.add("TRAILER!!!", 0, nil)
	if err := errors.Join(a.err, z.Close()); err != nil {
		return fmt.Errorf("write a guest's root: %w", err)
	}
	return nil
}

// archive writes a cpio archive, in the format of the kernel's initramfs
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w       io.Writer
	folders map[string]bool // those that are in it
	last    int
	err     error
}

func (a *archive) add(name string, mode uint32, data []byte) {
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

// folder makes a folder and those that it is in.
func (a *archive) folder(name string) {
	if a.folders[name] {
		return
	}
	a.folder(path.Dir(name))
	a.folders[name] = true
	a.add(name, unix.S_IFDIR|0o755, nil)
}

func (a *archive) file(name string, data []byte) {
	a.folder(path.Dir(name))
	a.add(name, unix.S_IFREG|0o755, data)
}

func (a *archive) copy(name, from string) {
	data, err := os.ReadFile(from)
	a.err = errors.Join(a.err, err)
	a.file(name, data)
}

// library is the path of a library in the output of ldd.
var library = regexp.MustCompile(`(?m)(?:=> |^\s+)(/\S+) \(0x`)

// AddProgram adds a program to Files, with the libraries that it needs, at their places.
func (r *Root) AddProgram(name string) error {
	file, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("add a program to a guest's root: %w", err)
	}
	out, err := exec.Command("ldd", file).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("not a dynamic executable")) {
		return fmt.Errorf("list libraries of %s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	if r.Files == nil {
		r.Files = map[string]string{}
	}
	r.Files["bin/"+path.Base(name)] = file
	for _, found := range library.FindAllSubmatch(out, -1) {
		at := string(found[1])
		r.Files[strings.TrimPrefix(at, "/")] = at
	}
	return nil
}
