package graft

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// Accept accepts a connection of a program's listener, without waiting, if the listener is
// translated or has connections of the container's own namespace too. waits says that the program's
// call would wait for a connection. If there is no connection, file is -1, and the answer says how
// the call goes on.
func (e *Engine) Accept(p Program, number int) (file int, peer netip.AddrPort, waits bool, answer Answer, err error) {
	listener, err := p.File(number)
	if err != nil {
		return -1, peer, false, Answer{}, ignoreBadFile(err)
	}
	defer unix.Close(listener)
	s, err := inspect(listener)
	if err != nil || s.state != tcpListen {
		return -1, peer, false, Answer{}, err
	}
	own := e.ownListenerOf(s)
	waitsForServer := own == nil && !s.translated() && e.relays.expects(s.local.Port())
	if own == nil && !s.translated() && !waitsForServer {
		return -1, peer, false, Answer{}, nil
	}
	if own == nil && !waitsForServer && e.isRelayed(s.local.Port()) {
		file, peer, waits, err = e.begin().acceptRelayedAtOnce(s)
	} else {
		file, peer, waits, err = e.acceptAtOnce(listener)
	}
	if errors.Is(err, unix.EAGAIN) && waits {
		return -1, peer, true, Answer{}, nil
	}
	if err != nil {
		answer, err = answerFor(refusal(err))
		return -1, peer, false, answer, err
	}
	switch {
	case waitsForServer:
		file, peer = e.begin().exchangeExpected(s, file, peer)
		return file, peer, false, Answer{}, nil
	case own == nil:
		return file, e.peerName4(peer), false, Answer{}, nil
	}
	file, peer = e.begin().exchange(own, s, file, peer)
	return file, peer, false, Answer{}, nil
}

// acceptAtOnce calls accept(2) without waiting, and tells whether the program's call would wait.
func (e *Engine) acceptAtOnce(listener int) (file int, peer netip.AddrPort, waits bool, err error) {
	waits, err = e.withoutWaiting(listener, func() (err error) {
		file, peer, err = acceptFrom(listener)
		return err
	})
	return file, peer, waits, err
}

// withoutWaiting makes a call on a program's file without waiting, and tells whether the program's
// call would wait. It sets O_NONBLOCK on the file, which the program can see. So it clears the flag
// right after the call.
func (e *Engine) withoutWaiting(file int, call func() error) (waits bool, err error) {
	e.accepting.Lock() // or another call has set the flag
	defer e.accepting.Unlock()
	flags, err := unix.FcntlInt(uintptr(file), unix.F_GETFL, 0)
	if err != nil {
		return false, fmt.Errorf("read file flags: %w", err)
	}
	if waits = flags&unix.O_NONBLOCK == 0; waits {
		if _, err := unix.FcntlInt(uintptr(file), unix.F_SETFL, flags|unix.O_NONBLOCK); err != nil {
			return false, fmt.Errorf("keep a call from waiting: %w", err)
		}
		defer unix.FcntlInt(uintptr(file), unix.F_SETFL, flags) //nolint:errcheck // it did just now
	}
	return waits, call()
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
