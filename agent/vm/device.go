package vm

import (
	"bytes"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/outsource/holder"
	"github.com/tsugiki/tsugiki/outsource/host"
	"github.com/tsugiki/tsugiki/outsource/vsock"
)

// # A device over the end of this process
//
// While a VMM's device is served, a holder (package holder) has its files. The next process that attaches the
// same machine at the same place goes on with the device: its guest's connections end, and new ones work. The
// holder ends with the VMM, and when the machine ends. One that is killed is replaced.

// The pauses before a holder that has ended is replaced. They begin anew after one that has lasted.
const (
	holdAgain    = time.Second
	holdAgainMax = time.Minute
	holdLasting  = time.Minute
)

// heldAgain is the pause before a held device is tried again: this process may be short of files or memory, or
// somebody has stopped the holder.
const heldAgain = time.Second

// HolderIn returns the path of the socket of a machine's holder, by the machine's name in a run directory.
func HolderIn(runDir, name string) string { return filepath.Join(runDir, name+".device") }

// Forget ends the device that an earlier process has left; kept is as HolderIn returns it. Its VMM loses it.
func Forget(kept string) error { return holder.Forget(kept) }

// placed is a holder for the device of a place.
type placed struct {
	*holder.Holder
	place Place
}

// label is what a place's states begin with.
func (p Place) label() []byte { return append(strconv.AppendQuote(nil, p.String()), '\n') }

// Put implements vsock.Keeper.
func (p placed) Put(state []byte, files []int) error {
	return p.Holder.Put(append(p.place.label(), state...), files)
}

// serveHeld serves the device that an earlier process has left, if there is one. After an error the holder has it
// still, and it is to be tried again.
func (m *Machine) serveHeld() error {
	h, state, files, err := holder.Open(m.kept)
	if errors.Is(err, holder.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	state, is := bytes.CutPrefix(state, m.place.label())
	var peer *unix.Ucred
	if is && len(files) > 0 {
		peer, err = unix.GetsockoptUcred(files[0], unix.SOL_SOCKET, unix.SO_PEERCRED)
	}
	if !is || peer == nil {
		for _, file := range files {
			unix.Close(file)
		}
		m.container.Log().Warn("the device of a virtual machine that was elsewhere ends", "err", err)
		m.endHolder(h)
		return nil
	}
	m.container.Log().Info("virtual machine goes on", "pid", peer.Pid)
	return m.serve(peer, h, func(started func(*vsock.Device) vsock.Handler) error { return vsock.Resume(state, files, started) })
}

// serveNew serves the device of a VMM that has connected.
func (m *Machine) serveNew(c *net.UnixConn) {
	peer, err := credentials(c)
	if err != nil {
		c.Close()
		m.container.Log().Error("virtual machine has no sockets until it boots again", "err", err)
		return
	}
	h, err := holder.Start(m.kept)
	if err != nil {
		m.container.Log().Error("virtual machine will have no sockets after the end of this process", "err", err)
	}
	err = m.serve(peer, h, func(started func(*vsock.Device) vsock.Handler) error { return vsock.Serve(c, m.place.cid, started) })
	if err != nil {
		m.container.Log().Error("virtual machine has no sockets until it boots again", "err", err)
	}
}

// serve serves a VMM's device until it ends. The holder may be nil. After an error the device was not begun, and the
// holder, if it has the device, has it still.
func (m *Machine) serve(peer *unix.Ucred, h *holder.Holder, serve func(func(*vsock.Device) vsock.Handler) error) error {
	if m.vmm != nil {
		m.vmm(int(peer.Pid))
		defer m.vmm(0)
	}
	var vm *host.VM
	over, held := make(chan struct{}), make(chan *holder.Holder, 1)
	err := serve(func(d *vsock.Device) vsock.Handler {
		m.boots.Add(1)
		d.Observe(&m.counters, &m.work)
		go func() { held <- m.hold(d, h, over) }()
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.device = d; m.over {
			m.endDevice()
		}
		vm = host.New(m.container.Guest(int(peer.Uid), int(peer.Gid)), d)
		return vm
	})
	switch {
	case vm != nil:
		vm.Close()
		close(over)
		h = <-held
	case !errors.Is(err, vsock.ErrGuest) && !errors.Is(err, vsock.ErrKept):
		if h != nil {
			_ = h.Close()
		}
		return err
	}
	if errors.Is(err, vsock.ErrGuest) {
		m.faults.Add(1)
	}
	if err != nil {
		m.container.Log().Error("virtual machine has no sockets until it boots again", "err", err)
	}
	m.mu.Lock()
	m.device = nil
	leaving := m.leaving
	m.mu.Unlock()
	switch {
	case h == nil:
	case leaving && err == nil:
		_ = h.Close()
	default:
		m.endHolder(h)
	}
	return nil
}

func (m *Machine) endHolder(h *holder.Holder) {
	if err := h.End(); err != nil {
		m.container.Log().Error("end the device of a virtual machine", "err", err)
	}
}

// endDevice ends the device, which is there. The caller holds mu.
func (m *Machine) endDevice() {
	if m.leaving {
		m.device.Leave()
	} else {
		m.device.Close()
	}
}

// forget ends the holder that this process is not the owner of, if there is one.
func (m *Machine) forget() {
	if err := Forget(m.kept); err != nil {
		m.container.Log().Error("end the device of a virtual machine", "err", err)
	}
}

// hold has a holder hold a device, and replaces one that ends, until over is closed. It returns the last one,
// or nil.
func (m *Machine) hold(d *vsock.Device, h *holder.Holder, over <-chan struct{}) *holder.Holder {
	for pause := holdAgain; ; pause = min(2*pause, holdAgainMax) {
		if h != nil {
			began := time.Now()
			d.KeepBy(placed{h, m.place})
			select {
			case <-over:
				return h
			case <-h.Ended():
			}
			h.Close()
			m.forget() // one that took no messages was let go of, and has what the device was before
			if time.Since(began) >= holdLasting {
				pause = holdAgain
			}
		}
		select {
		case <-over:
			return nil
		case <-time.After(pause):
		}
		m.container.Log().Warn("the process that holds a virtual machine's device is gone; another is started")
		var err error
		if h, err = holder.Start(m.kept); err != nil {
			h = nil
			m.container.Log().Error("virtual machine will have no sockets after the end of this process", "err", err)
		}
	}
}
