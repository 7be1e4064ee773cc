package stream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/outsource/vsock"
)

// Sockets are the host's AF_VSOCK sockets at which its guests arrive, which are told apart by their context
// ids. One process of a host can have them.
type Sockets struct {
	local     uint32 // context id of the host
	listeners []*os.File

	mu     sync.Mutex // guards what follows
	guests map[uint32]*Guest
}

// Supported says why the host has no AF_VSOCK sockets for guests; nil if it has.
func Supported() error {
	sock, err := bind(unix.VMADDR_CID_HOST, unix.VMADDR_PORT_ANY)
	if err != nil {
		return err
	}
	return unix.Close(sock)
}

// bind makes a socket with a port of a context of this machine's.
func bind(local, port uint32) (int, error) {
	sock, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err == nil {
		if err = unix.Bind(sock, &unix.SockaddrVM{CID: local, Port: port}); err != nil {
			unix.Close(sock)
		}
	}
	switch {
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EADDRNOTAVAIL):
		return -1, fmt.Errorf("the kernel has no vsock for guests: %w; load the module vhost_vsock, or use another way to the guest", err)
	case errors.Is(err, unix.EADDRINUSE):
		return -1, fmt.Errorf("another process has vsock port %d: %w; one process serves all guests of a host by AF_VSOCK: have the agent do so", port, err)
	case err != nil:
		return -1, fmt.Errorf("make a vsock socket: %w", err)
	}
	return sock, nil
}

// bindTries is how many ports bindAny tries.
const bindTries = 16

// bindAny makes a socket with a port that no other one has: the kernel gives a port of a context to one socket
// at a time, whatever its peer is. The port is no data port, which the guest would take for a handle's. The
// kernel's own choice (VMADDR_PORT_ANY) counts upwards, and may be among the data ports for 2^24 sockets.
func bindAny(local uint32) (sock int, port uint32, err error) {
	for range bindTries {
		port = min(1<<31|rand.Uint32(), unix.VMADDR_PORT_ANY-1)
		if sock, err = bind(local, port); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return sock, port, err
}

// Listen listens for guests.
func Listen() (*Sockets, error) { return listen(unix.VMADDR_CID_HOST) }

func listen(local uint32) (*Sockets, error) {
	s := &Sockets{local: local, guests: map[uint32]*Guest{}}
	for _, port := range ports() {
		sock, err := bind(local, port)
		if err == nil {
			var f *os.File
			if f, err = fileOf(sock); err == nil {
				s.listeners = append(s.listeners, f)
				err = unix.Listen(sock, unix.SOMAXCONN)
			}
		}
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	for i, port := range ports() {
		go s.accept(s.listeners[i], port)
	}
	return s, nil
}

// Close ends the sockets. Connections of guests go on.
func (s *Sockets) Close() error {
	var errs []error
	for _, l := range s.listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Guest serves the guest with a context id. handler is called once, before the first connection.
func (s *Sockets) Guest(cid uint32, c Config, handler func(*Guest) vsock.Handler) (*Guest, error) {
	g := newGuest(c, &toContext{s, cid})
	g.handler = handler(g)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.guests[cid] != nil {
		return nil, fmt.Errorf("another guest has the context id %d: %w", cid, os.ErrExist)
	}
	s.guests[cid] = g
	return g, nil
}

// accept takes connections of guests, and ends those of others.
func (s *Sockets) accept(l *os.File, port uint32) {
	raw, err := l.SyscallConn()
	if err != nil {
		return
	}
	for {
		var sock int
		var from unix.Sockaddr
		var aerr error
		err := raw.Read(func(fd uintptr) bool {
			sock, from, aerr = unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return !errors.Is(aerr, unix.EAGAIN)
		})
		if err != nil {
			return // it is closed
		}
		if aerr != nil {
			if !pause(context.Background()) {
				return
			}
			continue
		}
		vm, is := from.(*unix.SockaddrVM)
		s.mu.Lock()
		var g *Guest
		if is {
			g = s.guests[vm.CID]
		}
		s.mu.Unlock()
		f, err := fileOf(sock)
		if g == nil || err != nil {
			unix.Close(sock)
			continue
		}
		g.arrive(f, port)
	}
}

// toContext is the transport to one guest.
type toContext struct {
	sockets *Sockets
	cid     uint32
}

// dial implements transport.
func (t *toContext) dial(ctx context.Context, to uint32) (conn, uint32, error) {
	sock, port, err := bindAny(t.sockets.local)
	if err != nil {
		return nil, 0, dialError(err)
	}
	f, err := fileOf(sock)
	if err != nil {
		unix.Close(sock)
		return nil, 0, err
	}
	err = unix.Connect(sock, &unix.SockaddrVM{CID: t.cid, Port: to})
	if errors.Is(err, unix.EINPROGRESS) {
		err = connected(ctx, f)
	}
	if err != nil {
		f.Close()
		return nil, 0, dialError(err)
	}
	return f, port, nil
}

// connected waits for the end of a connect.
func connected(ctx context.Context, f *os.File) error {
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errno int
	err = raw.Write(func(fd uintptr) bool {
		list := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, perr := unix.Poll(list, 0); perr != nil || n == 0 {
			return false
		}
		errno, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		return true
	})
	if err == nil && errno != 0 {
		err = unix.Errno(errno)
	}
	return err
}

// close implements transport.
func (t *toContext) close() error {
	t.sockets.mu.Lock()
	defer t.sockets.mu.Unlock()
	delete(t.sockets.guests, t.cid)
	return nil
}

// pause waits until there may be room for another connection; false if that was not to be waited for.
func pause(ctx context.Context) bool {
	const long = 100 * time.Millisecond
	select {
	case <-time.After(long):
		return true
	case <-ctx.Done():
		return false
	}
}
