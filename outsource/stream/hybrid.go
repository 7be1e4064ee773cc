package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/thread"
	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// # Hybrid vsock
//
// The VMM has a unix socket at PATH (Firecracker's docs/vsock.md; cloud-hypervisor's is the same). For a
// connection of the guest to a port, it connects to PATH_PORT. Who wants to connect to the guest connects to
// PATH, sends "CONNECT PORT\n", and reads "OK PORT\n", with the port of the host that the guest sees; or the
// end, if nobody listens there.

// hybrid is the transport by a VMM's unix sockets.
type hybrid struct {
	path      string
	listeners []*net.UnixListener
}

// Owner returns the owner of the folder of a VMM's socket. It stands for the VMM's user, who has to be able
// to make a socket there.
func Owner(path string) (uid, gid int, err error) {
	info, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return 0, 0, fmt.Errorf("find the folder of the VMM's socket: %w", err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return int(st.Uid), int(st.Gid), nil
}

// Hybrid listens for a guest beside its VMM's unix socket, and serves it. The VMM may come and go. handler is
// called once, before the first connection. The sockets belong to the folder's owner, and nobody else has
// access to them.
func Hybrid(path string, c Config, handler func(*Guest) vsock.Handler) (*Guest, error) {
	h := &hybrid{path: path}
	g := newGuest(c, h)
	for _, port := range ports() {
		l, err := ListenUnix(fmt.Sprintf("%s_%d", path, port))
		if err != nil {
			return nil, errors.Join(err, h.close())
		}
		h.listeners = append(h.listeners, l)
	}
	g.handler = handler(g)
	for i, port := range ports() {
		go g.acceptUnix(h.listeners[i], port)
	}
	return g, nil
}

// ListenUnix makes a socket for a VMM. It belongs to the owner of its folder, and nobody else has access to
// it. One that a killed process has left is removed.
func ListenUnix(path string) (l *net.UnixListener, err error) {
	uid, gid, err := Owner(path)
	if err != nil {
		return nil, err
	}
	err = as(uid, gid, func() (err error) {
		l, err = listenAnew(&net.UnixAddr{Name: path, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for the VMM: %w", err)
	}
	return l, nil
}

// listenAnew listens at a path. A socket there at which nobody listens is removed.
func listenAnew(addr *net.UnixAddr) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", addr)
	if !errors.Is(err, unix.EADDRINUSE) {
		return l, err
	}
	c, derr := net.DialUnix("unix", nil, addr)
	if derr == nil {
		c.Close()
	}
	info, serr := os.Lstat(addr.Name)
	if !errors.Is(derr, unix.ECONNREFUSED) || serr != nil || info.Mode().Type() != os.ModeSocket { // of other files, connect(2) says the same
		return nil, err
	}
	if err := os.Remove(addr.Name); err != nil {
		return nil, err
	}
	return net.ListenUnix("unix", addr)
}

// as runs f with the access to files that a user has, on a thread of its own. What f makes belongs to the
// user, and nobody else has access to it.
func as(uid, gid int, f func() error) error {
	return thread.Do(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil { // else the umask is that of all threads
			return fmt.Errorf("have an own umask: %w", err)
		}
		unix.Umask(0o177)
		if os.Geteuid() != uid {
			for _, call := range [][2]uintptr{{unix.SYS_SETGROUPS, 0}, {unix.SYS_SETFSGID, uintptr(gid)}, {unix.SYS_SETFSUID, uintptr(uid)}} {
				if _, _, errno := unix.RawSyscall(call[0], call[1], 0, 0); errno != 0 {
					return fmt.Errorf("become user %d: %w", uid, errno)
				}
			}
		}
		return f()
	})
}

func (g *Guest) acceptUnix(l *net.UnixListener, port uint32) {
	for {
		c, err := l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			g.Log.Error("accept a connection of a guest", "err", err)
			if pause(g.ctx) {
				continue
			}
			return
		}
		if port == wire.ControlPort && g.VMM != nil {
			onFile(c, func(fd int) {
				if peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
					g.VMM(int(peer.Pid))
				}
			})
		}
		g.arrive(c, port)
	}
}

// dial implements transport.
func (h *hybrid) dial(ctx context.Context, to uint32) (conn, uint32, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", h.path)
	if err != nil {
		if errors.Is(err, unix.ECONNREFUSED) { // the VMM is gone, and its guest too
			err = fmt.Errorf("%w: %w", vsock.ErrGone, err)
			return nil, 0, err
		}
		return nil, 0, dialError(err)
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	_, err = fmt.Fprintf(c, "CONNECT %d\n", to)
	var port uint32
	if err == nil {
		port, err = readOK(c)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		return nil, 0, fmt.Errorf("%w: %w", vsock.ErrRefused, err)
	}
	return c.(*net.UnixConn), port, nil
}

// okMax bounds the VMM's answer, in bytes.
const okMax = 32

// errAnswer says that the VMM has not answered as it has to.
var errAnswer = errors.New("no answer of hybrid vsock")

// readOK reads the VMM's answer, and no byte more.
func readOK(r interface{ Read([]byte) (int, error) }) (port uint32, err error) {
	var line []byte
	for len(line) < okMax {
		var b [1]byte
		n, err := r.Read(b[:])
		if err != nil {
			return 0, err
		}
		if n == 0 {
			continue
		}
		if b[0] != '\n' {
			line = append(line, b[0])
			continue
		}
		text, is := strings.CutPrefix(string(line), "OK ")
		number, err := strconv.ParseUint(text, 10, 32)
		if !is || err != nil {
			return 0, fmt.Errorf("%w: %q", errAnswer, line)
		}
		return uint32(number), nil
	}
	return 0, fmt.Errorf("%w: more than %d bytes", errAnswer, okMax)
}

// close implements transport.
func (h *hybrid) close() error {
	var errs []error
	for _, l := range h.listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
