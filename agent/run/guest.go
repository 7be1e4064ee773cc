package run

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/kernel"
	"github.com/tsugiki/tsugiki/outsource/host"
	"github.com/tsugiki/tsugiki/outsource/vsock"
)

// Guest is a virtual machine whose sockets are this process's. It has a container without programs.
type Guest struct {
	alone    *Alone
	listener *net.UnixListener
	cid      uint64

	mu     sync.Mutex // guards what follows
	device *vsock.Device
	over   bool
}

// Attach makes the container of a virtual machine, and listens at a path for its VMM. The program
// has no command. On an error nothing is left.
func Attach(p Program, path string, cid uint64) (*Guest, error) {
	g := &Guest{alone: newAlone(&p), cid: cid}
	err := g.start(&p, path)
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

func (g *Guest) start(p *Program, path string) error {
	if err := kernel.Require(); err != nil {
		return err
	}
	a := g.alone
	if err := a.container.Prepare(); err != nil {
		return err
	}
	if err := a.useOwn(p); err != nil {
		return err
	}
	if err := a.make(p); err != nil {
		return err
	}
	if err := g.listen(path); err != nil {
		return err
	}
	a.api.Start()
	return nil
}

// listen makes the socket for the VMM. One that a killed process has left is removed.
func (g *Guest) listen(path string) error {
	addr := &net.UnixAddr{Name: path, Net: "unix"}
	l, err := net.ListenUnix("unix", addr)
	if errors.Is(err, unix.EADDRINUSE) {
		if c, derr := net.DialUnix("unix", nil, addr); errors.Is(derr, unix.ECONNREFUSED) {
			if err = os.Remove(path); err == nil {
				l, err = net.ListenUnix("unix", addr)
			}
		} else if c != nil {
			c.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("listen for the VMM: %w", err)
	}
	g.listener = l
	if err := os.Chmod(path, 0o600); err != nil {
		return fmt.Errorf("listen for the VMM: %w", err)
	}
	return nil
}

// Serve serves one VMM after another, until End.
func (g *Guest) Serve() error {
	for {
		c, err := g.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept a VMM: %w", err)
		}
		log := g.alone.container.Log()
		if err := g.serve(c); err != nil {
			log.Error("virtual machine has no sockets any more", "err", err)
		}
	}
}

// serve serves a VMM until it ends.
func (g *Guest) serve(c *net.UnixConn) error {
	peer, err := credentials(c)
	if err != nil {
		c.Close()
		return err
	}
	var vm *host.VM
	err = vsock.Serve(c, g.cid, func(d *vsock.Device) vsock.Handler {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.device = d; g.over {
			d.Close()
		}
		vm = host.New(g.alone.container.Guest(int(peer.Uid), int(peer.Gid)), d)
		return vm
	})
	if vm != nil {
		vm.Close()
	}
	return err
}

// credentials returns the user of the process at the other end.
func credentials(c *net.UnixConn) (peer *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) {
			peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		})
		err = errors.Join(err, cerr)
	}
	if err != nil {
		return nil, fmt.Errorf("find the VMM's user: %w", err)
	}
	return peer, nil
}

// End makes Serve return, also while a VMM runs: its guest loses its sockets.
func (g *Guest) End() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	if g.device != nil {
		g.device.Close()
	}
	g.listener.Close()
}

// Close removes the container, after Serve has returned.
func (g *Guest) Close() error {
	if g.listener != nil {
		g.listener.Close()
	}
	return g.alone.Close()
}
