// Relied upon: an open /proc/PID/mem refers to the memory that the process had when
// it was opened. It reads and writes that, and once the process has executed
// another program, or is gone, nothing: neither the new program's memory nor that
// of whoever has the id by then.
//
// Since: Linux 3.2.
// By: intercept/notify (options and names of AF_GRAFT sockets): opened before
// NOTIF_ID_VALID says that the caller still waits, it is the caller's memory.

package kernel

import (
	"fmt"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	roles["remember"] = func(c *child) {
		showMemory(c)
		c.check("execute", unix.Exec("/proc/self/exe", []string{"child"}, append(os.Environ(), roleEnv+"=remember again")))
	}
	roles["remember again"] = showMemory
}

// showMemory says where it has something, and what is there then.
func showMemory(c *child) {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	c.check("map memory", err)
	copy(page, "before")
	c.say("%d", uintptr(unsafe.Pointer(&page[0])))
	c.hear()
	c.say("%s", page[:6])
	c.hear()
}

func TestProcMemIsOfOneProgram(t *testing.T) {
	p := start(t, "remember", nil)
	open := func() int {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", p.pid), unix.O_RDWR|unix.O_CLOEXEC, 0)
		try(t, "open memory", err)
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	// access returns how much was read and written.
	access := func(fd, at int) (read, written int) {
		var b [6]byte
		read, _ = unix.Pread(fd, b[:], int64(at))
		written, _ = unix.Pwrite(fd, []byte("after."), int64(at))
		return max(read, 0), max(written, 0)
	}
	var at int
	p.hearInts(t, &at)
	first := open()
	read, written := access(first, at)
	want(t, "read", read, 6)
	want(t, "written", written, 6)
	p.say("show")
	want(t, "what the program has", p.hear(t), "after.")

	p.say("execute")
	p.hearInts(t, &at)
	read, written = access(first, at)
	want(t, "read, after exec", read, 0)
	want(t, "written, after exec", written, 0)
	p.say("show")
	want(t, "what the new program has", p.hear(t), "before")
	second := open()
	read, _ = access(second, at)
	want(t, "read from the new program", read, 6)

	p.kill()
	read, written = access(second, at)
	want(t, "read, after the end", read, 0)
	want(t, "written, after the end", written, 0)
}
