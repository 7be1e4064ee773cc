package graft

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/keeper"
)

// newUnixWorld makes a container that reaches and serves 203.0.113.9:80 at a path.
func newUnixWorld(t *testing.T, host, own *fakePlace, path string) *world {
	t.Helper()
	w := newWorld(t, host, own, false)
	w.name("un type unix path " + path)
	w.rule("203.0.113.9:80=un", "0.0.0.0:8080=un")
	return w
}

// serveAt makes a server at a path, which the test ends.
func serveAt(t *testing.T, path string, typ int) (server int) {
	t.Helper()
	server, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(server, &unix.SockaddrUnix{Name: path})
	}
	if err == nil && typ != unix.SOCK_DGRAM {
		err = unix.Listen(server, 8)
	}
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// What becomes of a client whose endpoint is a path.
func TestConnectToPaths(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	for _, c := range []struct {
		name  string
		typ   int
		serve func(path string) // what is at the path
		fault func(w *world)

		want  Answer
		err   error
		moved bool
	}{
		{name: "a server", typ: tcp, serve: func(p string) { s := serveAt(t, p, tcp); t.Cleanup(func() { unix.Close(s) }) }, want: succeeded, moved: true},
		{name: "nobody has ever listened", typ: tcp, want: fail(unix.ECONNREFUSED)},
		{name: "a server that has ended", typ: tcp, serve: func(p string) { unix.Close(serveAt(t, p, tcp)) }, want: fail(unix.ECONNREFUSED)},
		{name: "a server of datagrams", typ: tcp, serve: func(p string) { s := serveAt(t, p, udp); t.Cleanup(func() { unix.Close(s) }) }, want: fail(unix.EPROTOTYPE)},
		{name: "a datagram", typ: udp, want: fail(unix.EPROTOTYPE)},
		{name: "no maker", typ: tcp, fault: func(w *world) { w.own.err = unix.ENODATA }, want: proceed, err: unix.ENODATA},
		{name: "the kernel makes no socket", typ: tcp, fault: func(w *world) { w.own.made = &keeper.SocketError{Errno: unix.ENFILE} }, want: fail(unix.ENFILE)},
		{name: "the program cannot be given it", typ: tcp, serve: func(p string) { s := serveAt(t, p, tcp); t.Cleanup(func() { unix.Close(s) }) }, fault: func(w *world) { w.program.install = unix.ENODATA }, want: proceed, err: unix.ENODATA},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			w := newUnixWorld(t, host, own, path)
			number := w.socket(own, ip4, c.typ)
			if c.serve != nil {
				c.serve(path)
			}
			if c.fault != nil {
				c.fault(w)
			}
			answer, err := w.Connect(w.program, number, addr("203.0.113.9:80"))
			if answer != c.want || !errors.Is(err, c.err) {
				t.Errorf("%+v, %v; want %+v, %v", answer, err, c.want, c.err)
			}
			for _, n := range []int{3, 4} {
				family, err := unix.GetsockoptInt(w.program.files[n], unix.SOL_SOCKET, unix.SO_DOMAIN)
				if err != nil || (family == unix.AF_UNIX) != c.moved {
					t.Errorf("descriptor %d is of family %d, %v", n, family, err)
				}
			}
		})
	}
}

// What becomes of a server whose endpoint is a path, and of the file there.
func TestListenAtPaths(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	for _, c := range []struct {
		name  string
		typ   int
		there func(path string)
		want  Answer
	}{
		{name: "nothing is there", typ: tcp, want: succeeded},
		{name: "a server that has ended", typ: tcp, there: func(p string) { unix.Close(serveAt(t, p, tcp)) }, want: succeeded},
		{name: "a server", typ: tcp, there: func(p string) { s := serveAt(t, p, tcp); t.Cleanup(func() { unix.Close(s) }) }, want: fail(unix.EADDRINUSE)},
		{name: "another file", typ: tcp, there: func(p string) { must(t, os.WriteFile(p, []byte("x"), 0o600)) }, want: fail(unix.EADDRINUSE)},
		{name: "datagrams", typ: udp, want: fail(unix.EPROTOTYPE)},
		{name: "no folder", typ: tcp, there: func(p string) { must(t, os.Remove(filepath.Dir(p))) }, want: fail(unix.ENOENT)},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "folder", "s")
			must(t, os.Mkdir(filepath.Dir(path), 0o755))
			w := newUnixWorld(t, host, own, path)
			number := w.socket(own, ip4, c.typ)
			if c.there != nil {
				c.there(path)
			}
			before, _ := os.Lstat(path)
			answer, err := w.Bind(w.program, number, addr("0.0.0.0:8080"))
			if err != nil || answer != c.want {
				t.Errorf("%+v, %v; want %+v", answer, err, c.want)
			}
			if c.want != succeeded {
				if after, _ := os.Lstat(path); before != nil && !os.SameFile(before, after) {
					t.Error("the file at the path is another one")
				}
				if place, _ := w.at(); place != "own" {
					t.Errorf("the socket is in %q", place)
				}
				return
			}
			// It goes with the container.
			must(t, w.Close())
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

// Who connects to a path, and who makes one, is the program's user, of no group of ours.
func TestAsUserOf(t *testing.T) {
	p := &fakeProgram{uid: 1234, gid: 5678}
	want := fmt.Sprint([]int{1234, 5678}, []int{})
	err := asUserOf(p, func() error {
		groups, err := unix.Getgroups()
		if got := fmt.Sprint([]int{unix.Geteuid(), unix.Getegid()}, groups); got != want || err != nil {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
		return unix.ENODATA
	})
	if !errors.Is(err, unix.ENODATA) {
		t.Error(err)
	}
	p.user = unix.ESRCH
	if err := asUserOf(p, func() error { t.Error("without knowing who"); return nil }); !errors.Is(err, unix.ESRCH) {
		t.Error(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
