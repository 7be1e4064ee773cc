package stream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

func TestDial(t *testing.T) {
	r := newRig(t)
	guests := make(chan *net.UnixConn, 1)
	r.vmm(func(c *net.UnixConn, command string) {
		if command != fmt.Sprintf("CONNECT %d\n", wire.DataPort(8)) {
			t.Errorf("command %q", command)
		}
		if _, err := io.WriteString(c, "OK 1073741824\nhello"); err != nil {
			t.Error(err)
		}
		guests <- c
	})
	s, peer := tcp(t)
	var named uint32
	s.Named = func(port uint32) { named = port }
	if err := r.dial(wire.DataPort(8), s); err != nil || named != 1073741824 {
		t.Fatalf("port %d, %v", named, err)
	}
	c := <-guests
	limit(t, c)
	b := make([]byte, 5)
	if _, err := io.ReadFull(peer, b); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	peer.Close()
	r.closed()
}

// TestPorts has a guest find the host at the ports that have no preamble.
func TestPorts(t *testing.T) {
	r := newRig(t)
	for _, port := range []uint32{wire.ControlPort, wire.DatagramPort} {
		c := r.open(port)
		q := r.request()
		if q.To != port {
			t.Errorf("a request for port %d, want %d", q.To, port)
		}
		s, peer := tcp(t)
		q.Accept(s)
		if _, err := io.WriteString(peer, "hello"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
			t.Errorf("port %d: %q, %v", port, b, err)
		}
	}
}

// TestHostileVMM has a VMM answer what it must not. The socket stays the caller's.
func TestHostileVMM(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":     "",
		"cut":         "OK 10737",
		"no number":   "OK many\n",
		"negative":    "OK -1\n",
		"large":       "OK 4294967296\n",
		"another":     "NO 1073741824\n",
		"empty lines": "\n\n",
		"long":        "OK " + strings.Repeat("1", 100) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.vmm(func(c *net.UnixConn, _ string) {
				_, _ = io.WriteString(c, answer)
				c.Close()
			})
			s, peer := tcp(t)
			if err := r.dial(wire.DataPort(8), s); !errors.Is(err, vsock.ErrRefused) {
				t.Errorf("dial: %v", err)
			}
			if err := unix.Close(s.File); err != nil {
				t.Errorf("the socket is closed already: %v", err)
			}
			peer.Close()
			if n := r.counters.Open.Load(); n != 0 {
				t.Errorf("%d connections are open", n)
			}
		})
	}
	t.Run("mute", func(t *testing.T) {
		r := newRig(t)
		asked := make(chan struct{})
		r.vmm(func(*net.UnixConn, string) { close(asked) })
		s, _ := tcp(t)
		defer unix.Close(s.File)
		go func() {
			<-asked
			r.guest.Close()
		}()
		if err := r.dial(wire.DataPort(8), s); !errors.Is(err, vsock.ErrGone) {
			t.Errorf("dial: %v", err)
		}
	})
	t.Run("gone", func(t *testing.T) {
		r := newRig(t)
		s, _ := tcp(t)
		defer unix.Close(s.File)
		if err := r.dial(wire.DataPort(8), s); !errors.Is(err, vsock.ErrGone) {
			t.Errorf("dial: %v", err)
		}
	})
}

// TestSockets has the sockets for a VMM belong to the owner of their folder, replace those of a killed
// process, and leave others alone.
func TestSockets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const uid, gid = 12345, 12346
	dir := t.TempDir()
	for p := dir; p != "/tmp" && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "socket")
	l, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != uid || st.Gid != gid || info.Mode().Perm() != 0o600 {
		t.Errorf("owner %d:%d, mode %v", st.Uid, st.Gid, info.Mode())
	}
	if _, err := ListenUnix(path); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a socket at which another listens: %v", err)
	}
	l.SetUnlinkOnClose(false) // as if its process was killed
	l.Close()
	if l, err = ListenUnix(path); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, uid, gid); err != nil {
		t.Fatal(err)
	}
	_, lerr := ListenUnix(path)
	if b, err := os.ReadFile(path); lerr == nil || err != nil || string(b) != "precious" {
		t.Errorf("a file was replaced: %q, %v, %v", b, err, lerr)
	}
	if _, err := ListenUnix("/proc/none/socket"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

// FuzzOK has a VMM answer anything. What is read is never more than the line.
func FuzzOK(f *testing.F) {
	f.Add([]byte("OK 1073741824\nhello"))
	f.Add([]byte("OK 99999999999999999999999999999999999999"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		port, err := readOK(r)
		read := b[:len(b)-r.Len()]
		if len(read) > okMax || err == nil && string(read) != fmt.Sprintf("OK %d\n", port) && !bytes.HasPrefix(read, []byte("OK 0")) {
			t.Errorf("%q is port %d, %v", read, port, err)
		}
	})
}

// FuzzArrive has a guest write anything to the shared data port. It is refused, or asked for a handle.
func FuzzArrive(f *testing.F) {
	good := wire.Preamble(7)
	f.Add(good[:])
	f.Add(append(good[:], "data"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newRig(t)
		c := r.open(wire.DataPort(0))
		_, _ = c.Write(b) // it may be refused before the end
		_ = c.CloseWrite()
		refused := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, c)
			close(refused)
		}()
		select {
		case q := <-r.requests:
			if _, is := wire.HandleOf(q.To); !is || len(b) < 8 {
				t.Errorf("% x: %+v", b, q)
			}
			q.Refuse()
			<-refused
		case <-refused:
		}
	})
}
