package graft

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// Connection is one that Accept has taken off a program's listener.
type Connection struct {
	File int // of the caller of Accept
	Peer netip.AddrPort
	own  *ownListener // of the listener, if it has one
}

// GiveBack ends a connection that the program could not be given. If its listener has connections of two
// network namespaces, it is the listener's next one instead, as the kernel keeps a connection of an
// accept(2) that fails.
func (c *Connection) GiveBack() {
	if c.own == nil || !c.own.giveBack(c.File, c.Peer) {
		unix.Close(c.File)
	}
}

// Accept accepts a connection of a program's listener, without waiting, if the listener is
// translated or has connections of the container's own namespace too. waits says that the program's
// call would wait for a connection. If there is no connection, it is nil, and the answer says how
// the call goes on. If the answer is Fail and there is an error, a fault of ours, the kernel must not carry on
// with the call: the listener may have markers (own.go).
func (e *Engine) Accept(p Program, number int) (c *Connection, waits bool, answer Answer, err error) {
	listener, err := p.File(number)
	if err != nil {
		return nil, false, Answer{}, ignoreBadFile(err)
	}
	defer unix.Close(listener)
	s, err := inspect(listener)
	if err != nil || s.state != tcpListen {
		return nil, false, Answer{}, err
	}
	own := e.ownListenerOf(s)
	waitsForServer := own == nil && !s.translated() && e.relays.expects(s.local.Port())
	if own == nil && !s.translated() && !waitsForServer {
		return nil, false, Answer{}, nil
	}
	var file int
	var peer netip.AddrPort
	if own == nil && !waitsForServer && e.isRelayed(s.local.Port()) {
		file, peer, waits, err = e.begin().acceptRelayedAtOnce(s)
	} else {
		file, peer, waits, err = e.acceptAtOnce(listener)
	}
	if errors.Is(err, unix.EAGAIN) && waits {
		return nil, true, Answer{}, nil
	}
	if err != nil {
		answer, err = acceptFailed(err)
		return nil, false, answer, err
	}
	switch {
	case waitsForServer:
		file, peer = e.begin().exchangeExpected(s, file, peer)
	case own == nil:
		peer = e.peerName4(peer)
	default:
		file, peer = e.begin().exchange(own, s, file, peer)
	}
	return &Connection{file, peer, own}, false, Answer{}, nil
}

// acceptFailed says how a call ends whose accept(2) has failed. What this process lacks is no limit of the program.
func acceptFailed(err error) (Answer, error) {
	if Lacks(err) {
		return fail(unix.ECONNABORTED), fmt.Errorf("accept a program's connection: %w", err)
	}
	answer, err := answerFor(refusal(err))
	if err != nil {
		answer = fail(unix.ECONNABORTED)
	}
	return answer, err
}

// Lacks tells whether a call of ours has failed because there was no descriptor or no memory for it.
func Lacks(err error) bool {
	for _, errno := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// acceptAtOnce calls accept(2) without waiting, and tells whether the program's call would wait.
func (e *Engine) acceptAtOnce(listener int) (file int, peer netip.AddrPort, waits bool, err error) {
	waits, err = e.withoutWaiting(listener, unix.POLLIN, func() (err error) {
		file, peer, err = acceptFrom(listener)
		return err
	})
	return file, peer, waits, err
}

// withoutWaiting makes a call on a program's file without waiting, and tells whether the program's
// call would wait. It sets O_NONBLOCK on the file, which the program can see. So it clears the flag
// right after the call. If events of poll(2) are given, and none of them is there, the call would fail with EAGAIN, and
// the flag stays as it is.
func (e *Engine) withoutWaiting(file int, events int16, call func() error) (waits bool, err error) {
	e.accepting.Lock() // or another call has set the flag
	defer e.accepting.Unlock()
	flags, err := unix.FcntlInt(uintptr(file), unix.F_GETFL, 0)
	if err != nil {
		return false, fmt.Errorf("read file flags: %w", err)
	}
	if waits = flags&unix.O_NONBLOCK == 0; waits {
		if events != 0 && !ready(file, events) {
			return true, unix.EAGAIN
		}
		if _, err := unix.FcntlInt(uintptr(file), unix.F_SETFL, flags|unix.O_NONBLOCK); err != nil {
			return false, fmt.Errorf("keep a call from waiting: %w", err)
		}
		defer unix.FcntlInt(uintptr(file), unix.F_SETFL, flags) //nolint:errcheck // it did just now
	}
	return waits, call()
}

// ready tells whether a file has one of some events, or an error.
func ready(file int, events int16) bool {
	list := []unix.PollFd{{Fd: int32(file), Events: events}}
	for {
		n, err := unix.Poll(list, 0)
		if !errors.Is(err, unix.EINTR) {
			return n != 0 // else the call says what is wrong
		}
	}
}

// acceptFrom accepts a connection of a listener, and returns the name of its peer in the listener's
// family.
func acceptFrom(listener int) (int, netip.AddrPort, error) {
	file, from, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return -1, netip.AddrPort{}, err
	}
	switch peer := from.(type) {
	case *unix.SockaddrInet4:
		return file, netip.AddrPortFrom(netip.AddrFrom4(peer.Addr), uint16(peer.Port)), nil
	case *unix.SockaddrInet6:
		addr := netip.AddrFrom16(peer.Addr)
		if peer.ZoneId != 0 {
			addr = addr.WithZone(strconv.FormatUint(uint64(peer.ZoneId), 10))
		}
		return file, netip.AddrPortFrom(addr, uint16(peer.Port)), nil
	}
	unix.Close(file)
	return -1, netip.AddrPort{}, unix.ECONNABORTED
}
