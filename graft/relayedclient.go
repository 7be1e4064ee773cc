package graft

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
)

// connectRelayed answers connect(2) to a virtual address at a port of the gateway. The rules cover
// the destination, and connect6 judges it again.
func (e call) connectRelayed(p Program, number int, s *socket, to, to6 netip.AddrPort) (Answer, error) {
	leave, ok := e.relays.enter()
	if !ok {
		e.Log.Warn("no room for another relayed connection", "pid", p.Thread(), "addr", to, "limit", relayedMax)
		return fail(unix.ENOBUFS), nil
	}
	flags, err := unix.FcntlInt(uintptr(s.file), unix.F_GETFL, 0)
	if err != nil {
		err = fmt.Errorf("read file flags: %w", err)
	} else {
		err = e.beginRelayed(p, number, s, to, to6, leave)
	}
	switch {
	case err != nil:
		leave()
		return answerFor(err)
	case flags&unix.O_NONBLOCK != 0:
		return fail(unix.EINPROGRESS), nil
	}
	return Answer{}, nil
}

// beginRelayed begins to connect both sides. If there is no error, leave is called when the
// connection has ended.
func (e call) beginRelayed(p Program, number int, s *socket, to, to6 netip.AddrPort, leave func()) error {
	k, err := e.makeSink()
	if err != nil {
		return err
	}
	file, err := e.make6(s, rebind{}) // connect6 chooses the source
	if err != nil {
		return err
	}
	peer, err := e.startConnect(file, to6)
	if err != nil {
		return err
	}
	if s.translated() {
		if s, err = e.untranslate(p, number, s); err != nil {
			peer.Close()
			return err
		}
		defer unix.Close(s.file)
	}
	w, err := e.wait(s.file, k, to)
	if err == nil {
		err = e.relays.begin(func() {
			defer leave()
			e.finishConnect(w, peer, to, to6)
		})
	}
	if err != nil {
		peer.Close()
	}
	return err
}

// startConnect begins to connect a socket that the relay keeps. It owns the socket.
func (e call) startConnect(file int, to netip.AddrPort) (*os.File, error) {
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_TCP, unix.TCP_CORK, 0}, {unix.SOL_TCP, unix.TCP_NODELAY, 1}, {unix.SOL_SOCKET, unix.SO_OOBINLINE, 1}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
	} {
		if err := unix.SetsockoptInt(file, o.level, o.name, o.value); err != nil {
			unix.Close(file)
			return nil, fmt.Errorf("set options of a relayed connection: %w", err)
		}
	}
	err := unix.SetNonblock(file, true)
	if err == nil {
		err = unix.Connect(file, sockaddr.Of(to))
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		unix.Close(file)
		return nil, refusal(err)
	}
	return os.NewFile(uintptr(file), "relayed connection"), nil
}

// finishConnect waits for the peer, and then connects the program's socket and relays.
func (e *Engine) finishConnect(w waitingSocket, peer *os.File, to, to6 netip.AddrPort) {
	release, err := e.relays.hold(peer)
	if err != nil {
		peer.Close()
		return
	}
	err = awaitConnect(peer)
	release()
	var errno unix.Errno
	if errors.As(err, &errno) {
		peer.Close()
		if errno != unix.ETIMEDOUT { // the program's socket has a time limit of its own
			e.report(e.refuse(w, errno))
		}
		return
	}
	var conn net.Conn
	if err == nil {
		conn, err = net.FileConn(peer)
	}
	peer.Close()
	if err != nil {
		return // the container ends
	}
	inside, err := e.meet(w)
	if err != nil {
		conn.Close() // the program has closed its socket
		return
	}
	e.carry(Relayed{Program: inside, Peer: conn, Port: to.Port(), PeerAddr: to6, PeerAddr4: to})
}

const tcpSynSent = 2

// awaitConnect waits until a connect has ended. A failed one is an errno.
func awaitConnect(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var state uint8
	errno := 0
	werr := raw.Write(func(fd uintptr) bool {
		if state, err = tcpState(int(fd)); err != nil || state == tcpSynSent {
			return err != nil
		}
		errno, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		return true
	})
	if err = errors.Join(werr, err); err == nil && errno != 0 {
		err = unix.Errno(errno)
	}
	return err
}
