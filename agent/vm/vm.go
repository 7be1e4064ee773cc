// Package vm attaches virtual machines to their containers. It makes the sockets at which a VMM gives its
// guest's vsock connections, and serves one boot of the guest after another.
//
// It decides nothing about the guest's calls: package host has the container do so. It needs root, and Linux
// 5.15.
package vm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
	"github.com/tsugiki/tsugiki/outsource/host"
	"github.com/tsugiki/tsugiki/outsource/stream"
	"github.com/tsugiki/tsugiki/outsource/vsock"
)

// nobody is the user whom unix sockets see of a guest whose VMM's user is not known.
const nobody = 65534

// Contexts has the AF_VSOCK sockets that all guests of a process share. Its zero value is ready.
type Contexts struct {
	mu      sync.Mutex // guards what follows
	sockets *stream.Sockets
}

func (c *Contexts) get() (*stream.Sockets, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sockets == nil {
		s, err := stream.Listen()
		if err != nil {
			return nil, err
		}
		c.sockets = s
	}
	return c.sockets, nil
}

// Close ends the sockets.
func (c *Contexts) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sockets == nil {
		return nil
	}
	return c.sockets.Close()
}

// Machine is a virtual machine that is attached to a container.
type Machine struct {
	place     Place
	container *container.Container
	counters  vsock.Counters
	work      cputime.Meter
	faults    atomic.Uint64
	boots     atomic.Uint64

	ended    chan struct{}     // closed by End
	listener *net.UnixListener // for a device
	kept     string            // path of the socket of the device's holder
	guest    *stream.Guest     // for other kinds
	vm       *host.VM          // of guest

	mu      sync.Mutex // guards what follows
	device  *vsock.Device
	over    bool
	leaving bool // over, and the next process goes on with the device

	telling sync.Mutex // held while vmm is told of hybrid vsock; guards last and process
	last    int        // pid of the VMM; 0: there is none
	process *os.File   // the same, to await its end; or nil

	vmm func(pid int) // is told the pid of a VMM that has connected, and 0 at its end
}

// Attach makes the sockets for a VMM. The container has begun. kept is as HolderIn returns it. vmm, which may be
// nil, is told the pid of a VMM that connects, and 0 when its device, or with hybrid vsock its process, ends. On
// an error nothing is left, but what an earlier process has left.
func Attach(c *container.Container, p Place, contexts *Contexts, kept string, vmm func(pid int)) (*Machine, error) {
	m := &Machine{place: p, container: c, kept: kept, ended: make(chan struct{}), vmm: vmm}
	config := stream.Config{Counters: &m.counters, Work: &m.work, VMM: m.seen, Log: c.Log()}
	var err error
	if p.kind != device {
		err = Forget(kept) // the machine had one before
	}
	switch {
	case err != nil:
	case p.kind == device:
		m.listener, err = stream.ListenUnix(p.path)
	case p.kind == hybrid:
		var uid, gid int
		if uid, gid, err = stream.Owner(p.path); err == nil {
			m.guest, err = stream.Hybrid(p.path, config, m.handler(uid, gid))
		}
	case p.kind == context:
		var sockets *stream.Sockets
		if sockets, err = contexts.get(); err == nil {
			m.guest, err = sockets.Guest(uint32(p.cid), config, m.handler(nobody, nobody))
		}
	}
	if err != nil {
		return nil, attachError(p, err)
	}
	return m, nil
}

func (m *Machine) handler(uid, gid int) func(*stream.Guest) vsock.Handler {
	return func(g *stream.Guest) vsock.Handler {
		config := m.container.Guest(uid, gid)
		config.Shared = true
		m.vm = host.New(config, g)
		return m.vm
	}
}

// seen notes the VMM of a guest that opens a control stream; 0: there is none any more.
func (m *Machine) seen(pid int) {
	m.telling.Lock()
	defer m.telling.Unlock()
	select {
	case <-m.ended: // a connection may come late
		pid = 0
	default:
	}
	if pid != m.last {
		m.note(pid)
	}
}

// note notes another VMM than the last. The caller holds telling.
func (m *Machine) note(pid int) {
	if m.process != nil {
		m.process.Close()
		m.process = nil
	}
	if pid != 0 {
		m.boots.Add(1)
		process, err := pidfd.Open(pid)
		switch {
		case err == nil:
			m.process = process
			go m.awaitEnd(process)
		case errors.Is(err, unix.ESRCH):
			pid = 0
		default:
			m.container.Log().Warn("the end of a VMM will not be noted", "pid", pid, "err", err)
		}
	}
	m.last = pid
	if m.vmm != nil {
		m.vmm(pid)
	}
}

// awaitEnd notes the end of a VMM: another process may get its pid.
func (m *Machine) awaitEnd(process *os.File) {
	pidfd.Await(process)
	m.telling.Lock()
	defer m.telling.Unlock()
	if m.process == process { // else note has closed it
		m.note(0)
	}
}

// Place is where the machine was attached.
func (m *Machine) Place() Place { return m.place }

// Work is the CPU time that this process has used to move the machine's bytes.
func (m *Machine) Work() *cputime.Meter { return &m.work }

// Counts returns the counters of its connections, how often a VMM has connected a device, and how often a
// device ended because its guest or VMM has broken the rules.
func (m *Machine) Counts() (c *vsock.Counters, boots, faults uint64) {
	return &m.counters, m.boots.Load(), m.faults.Load()
}

// acceptAgain is the pause after a VMM that could not be accepted, or whose device has ended: each VMM makes this
// process start another one.
const acceptAgain = 100 * time.Millisecond

// Serve serves the machine until End.
func (m *Machine) Serve() error {
	if m.listener == nil {
		<-m.ended
		m.seen(0)
		err := m.guest.Close()
		m.vm.Close()
		m.guest.Wait()
		return err
	}
	m.serveDevices()
	m.mu.Lock()
	leaving := m.leaving
	m.mu.Unlock()
	if !leaving {
		m.forget() // of a device that was not served
	}
	return nil
}

// serveDevices serves the device that an earlier process has left, and that of each VMM that connects, until end.
func (m *Machine) serveDevices() {
	said := ""
	held := true // there may be a device that was left
	for next := time.Now(); ; {
		if held && !time.Now().Before(next) {
			err := m.serveHeld()
			if held = err != nil; held && err.Error() != said {
				said = err.Error()
				m.container.Log().Error("virtual machine has no sockets; it is tried again", "err", err)
			}
			next = time.Now().Add(heldAgain)
		}
		deadline := time.Time{}
		if held {
			deadline = next
		}
		_ = m.listener.SetDeadline(deadline) // it is closed: so says AcceptUnix
		c, err := m.listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil: // there may be a file for it later
			m.container.Log().Error("accept a VMM", "err", err)
		default: // it has booted anew: what was left ends
			held = false
			m.serveNew(c)
		}
		select {
		case <-time.After(acceptAgain):
		case <-m.ended:
		}
	}
}

// credentials returns the process at the other end.
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
func (m *Machine) End() { m.end(false) }

// Leave makes Serve return. The connections of the guest end. The next process that attaches the machine goes on
// with the guest's device.
func (m *Machine) Leave() { m.end(true) }

func (m *Machine) end(leave bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return
	}
	m.over, m.leaving = true, leave
	close(m.ended)
	if m.device != nil {
		m.endDevice()
	}
	if m.listener != nil {
		m.listener.Close()
	}
}
