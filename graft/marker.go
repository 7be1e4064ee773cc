package graft

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/watch"
	"github.com/tsugiki/tsugiki/keeper"
)

// ownListener listens in the container's own namespace.
type ownListener struct {
	at     Port // address of the program's listener, on the host
	place  Place
	cgroup uint64 // of the program's listener
	kind   keeper.Kind
	v6only bool
	view   netip.AddrPort // address in the container's own namespace
	// admits tells whether a connection from an address is one of the rule's sources.
	admits func(from netip.Addr, conn int) bool
	label  func() uint32 // the container's mark, with which it may connect to its own servers
	file   *os.File
	log    *slog.Logger
	gone   func() // called when the program's listener has gone

	lacked bool // the last accept lacked a descriptor or memory; only calls of accept use it, which do not overlap

	begin sync.Once
	room  chan struct{} // has an entry for each marker of the container
	ended chan struct{} // closed with the file
	work  *cputime.Meter
	leads sync.WaitGroup

	mu      sync.Mutex // guards what follows
	watch   *watch.Watch
	closed  bool
	markers map[netip.AddrPort]marked // by their own address
}

// marked is a connection that the program has not accepted.
type marked struct {
	conn   int
	peer   netip.AddrPort
	marker *os.File
}

// open makes and binds the socket in the container's own namespace.
func (l *ownListener) open(own Place) error {
	k, err := own.Maker()
	if err != nil {
		return err
	}
	file, err := k.Socket(l.kind)
	if err != nil {
		return err
	}
	if l.kind.Family == unix.AF_INET6 {
		only := 0
		if l.v6only {
			only = 1
		}
		err = unix.SetsockoptInt(file, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only)
	}
	if err == nil { // connections in TIME_WAIT do not block the bind
		err = unix.SetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.SetNonblock(file, true)
	}
	if err == nil {
		err = unix.Bind(file, sockaddr.Of(l.view))
	}
	if err != nil {
		unix.Close(file)
		return fmt.Errorf("listen at %s: %w", l.view, err)
	}
	l.file = os.NewFile(uintptr(file), "listener of the container's own namespace")
	return nil
}

func (l *ownListener) listen(backlog int) (err error) {
	return errors.Join(control(l.file, func(fd int) { err = unix.Listen(fd, backlog) }), err)
}

// control calls fn with the descriptor of a file, which stays open meanwhile.
func control(f *os.File, fn func(fd int)) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { fn(int(fd)) })
}

// serve begins to accept. The program's listener listens by then.
func (l *ownListener) serve() {
	if l == nil {
		return
	}
	l.begin.Do(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.closed {
			return
		}
		var err error
		if l.watch, err = watch.Start(l.file, l.accept); err != nil {
			l.log.Error("server is not reached at the container's own address", "addr", l.view, "err", err)
		}
	})
}

// lackPause is the pause after an accept that lacked a descriptor or memory. The connection stays in the queue, and
// the listener is readable all the while.
const lackPause = 500 * time.Millisecond

// accept accepts a connection, and tells whether to go on.
func (l *ownListener) accept() bool {
	if !l.enter() {
		return false
	}
	conn, again := -1, true
	var peer netip.AddrPort
	var err error
	var cerr error
	l.work.Do(func() {
		cerr = control(l.file, func(fd int) { conn, peer, err = acceptFrom(fd) })
	})
	switch {
	case cerr != nil:
		again = false // the listener is closed
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
	case Lacks(err):
		l.leave()
		l.pause(err)
		return true
	case err != nil:
		l.log.Error("accept at the container's own address", "addr", l.view, "err", err)
		again = !errors.Is(err, unix.EINVAL)
	default:
		l.lacked = false
		l.leads.Go(func() {
			defer l.leave()
			l.lead(conn, peer)
		})
		return true
	}
	l.leave()
	return again
}

// pause waits after an accept that lacked a descriptor or memory, until the listener ends at most. It logs only the
// first of several such errors.
func (l *ownListener) pause(err error) {
	if !l.lacked {
		l.log.Error("connections to the container's own address have to wait", "addr", l.view, "err", err)
	}
	l.lacked = true
	select {
	case <-l.ended:
	case <-time.After(lackPause):
	}
}

// enter waits for room for a marker. It returns false if the listener ends first.
func (l *ownListener) enter() bool {
	select {
	case l.room <- struct{}{}:
	case <-l.ended:
		return false
	}
	select {
	case markersOfAll <- struct{}{}:
		return true
	case <-l.ended:
		<-l.room
		return false
	}
}

// leave gives the room of a marker back.
func (l *ownListener) leave() {
	<-markersOfAll
	<-l.room
}

// lead makes the program accept a connection, and returns when the program has accepted it or
// cannot.
func (l *ownListener) lead(conn int, peer netip.AddrPort) {
	if !l.admits(peer.Addr(), conn) {
		reset(conn)
		return
	}
	l.stand(conn, peer)
}

// stand has a marker stand for a connection, and returns when the program has accepted it or cannot.
func (l *ownListener) stand(conn int, peer netip.AddrPort) {
	marker, from, err := l.mark(conn, peer)
	noted := err == nil
	if noted {
		err = awaitEnd(marker)
	}
	if !noted || l.drop(from) {
		reset(conn)
	}
	if marker != nil {
		marker.Close() // not before: until then no other connection gets the address
	}
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		l.gone()
	case !noted && !errors.Is(err, os.ErrClosed):
		l.log.Warn("connection to the container's own address is reset", "addr", l.view, "peer", peer, "err", err)
	}
}

// giveBack makes a connection the program's next one, though it comes from no queue of ours. It returns false if there
// is no room for a marker.
func (l *ownListener) giveBack(conn int, peer netip.AddrPort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	select {
	case l.room <- struct{}{}:
	default:
		return false
	}
	select {
	case markersOfAll <- struct{}{}:
	default:
		<-l.room
		return false
	}
	_, _ = unix.FcntlInt(uintptr(conn), unix.F_SETFL, 0) // O_NONBLOCK was for the call that failed
	l.leads.Go(func() {
		defer l.leave()
		l.stand(conn, peer)
	})
	return true
}

// mark connects to the program's listener, on the host, and notes for which connection it does.
func (l *ownListener) mark(conn int, peer netip.AddrPort) (_ *os.File, from netip.AddrPort, err error) {
	to := l.at.At
	if to.Addr().IsUnspecified() {
		to = netip.AddrPortFrom(loopbackLike(to.Addr()), to.Port())
	}
	file := -1
	l.work.Do(func() { file, err = l.markerSocket() })
	if err != nil {
		return nil, from, err
	}
	resetAtEnd(file)
	marker := os.NewFile(uintptr(file), "marker of a connection")
	l.mu.Lock() // take waits until the marker is noted
	defer l.mu.Unlock()
	err = l.connect(file, to)
	if err == nil && l.closed {
		err = os.ErrClosed
	}
	if err == nil {
		from, err = localName(file)
	}
	if err == nil {
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		l.markers[from] = marked{conn, peer, marker}
	}
	return marker, from, err
}

// connect connects a marker. Where the host's loopback has no IPv6, a listener of both families has it by IPv4.
func (l *ownListener) connect(file int, to netip.AddrPort) error {
	err := unix.Connect(file, sockaddr.Of(to))
	if errors.Is(err, unix.EADDRNOTAVAIL) && l.at.At.Addr() == netip.IPv6Unspecified() && !l.v6only {
		err = unix.SetsockoptInt(file, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
		if err == nil {
			mapped := netip.AddrFrom16(loopbackLike(netip.IPv4Unspecified()).As16())
			err = unix.Connect(file, sockaddr.Of(netip.AddrPortFrom(mapped, to.Port())))
		}
	}
	if errors.Is(err, unix.EINPROGRESS) {
		return nil
	}
	return err
}

// markerSocket makes the socket of a marker, if the program's listener is still there.
func (l *ownListener) markerSocket() (file int, err error) {
	s, found, err := l.place.ListenerAt(l.at.At)
	if err != nil {
		return -1, err
	}
	if !found || s.Cgroup != l.cgroup {
		return -1, unix.ECONNREFUSED
	}
	err = l.place.In(func() (err error) {
		file, err = l.ownSocket()
		return err
	})
	return file, err
}

// ownSocket makes a socket that does not wait, whose packets have the container's mark, which all rules let in
// (bpf/sources.h).
func (l *ownListener) ownSocket() (int, error) {
	file, err := l.at.socket(unix.SOCK_NONBLOCK)
	mark := l.label()
	if err != nil || mark == 0 {
		return file, err
	}
	if err := unix.SetsockoptInt(file, unix.SOL_SOCKET, unix.SO_PRIORITY, int(mark)); err != nil {
		unix.Close(file)
		return -1, fmt.Errorf("mark packets: %w", err)
	}
	return file, nil
}

func loopbackLike(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// awaitEnd waits until a marker is refused or its other end is closed. It sends a byte first,
// because a listener with TCP_DEFER_ACCEPT has no connection before data comes.
func awaitEnd(marker *os.File) error {
	raw, err := marker.SyscallConn()
	if err != nil {
		return err
	}
	for _, step := range []struct {
		wait func(func(uintptr) bool) error
		do   func(int, []byte) (int, error)
	}{{raw.Write, unix.Write}, {raw.Read, unix.Read}} {
		werr := step.wait(func(fd uintptr) bool {
			_, err = step.do(int(fd), []byte{0})
			return !errors.Is(err, syscall.EAGAIN)
		})
		if err = errors.Join(werr, err); err != nil {
			return err
		}
	}
	return nil
}

// take returns the connection, and the name of its peer, if the program's listener has accepted the
// connection's marker.
func (l *ownListener) take(file int, from netip.AddrPort) (conn int, peer netip.AddrPort, is bool) {
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	l.mu.Lock()
	defer l.mu.Unlock()
	m, is := l.markers[from]
	if !is {
		return -1, peer, false
	}
	if state, err := tcpState(file); err != nil || state == tcpClose {
		return -1, peer, false // the marker of an earlier connection
	}
	delete(l.markers, from)
	return m.conn, m.peer, true
}

// drop forgets a marker. It returns true if the marker had not been taken.
func (l *ownListener) drop(from netip.AddrPort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, is := l.markers[from]
	delete(l.markers, from)
	return is
}

// close resets the connections that the program has not accepted.
func (l *ownListener) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	close(l.ended)
	if l.watch != nil {
		l.watch.Stop()
	}
	l.file.Close()
	for _, m := range l.markers {
		m.marker.Close()
	}
}

// wait waits, after close, until all goroutines of the listener have ended.
func (l *ownListener) wait() {
	l.mu.Lock()
	w := l.watch
	l.mu.Unlock()
	if w != nil {
		w.Wait()
	}
	l.leads.Wait()
}

// resetAtEnd makes a connection end with a reset, so that it leaves no TIME_WAIT.
func resetAtEnd(file int) {
	_ = unix.SetsockoptLinger(file, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

func reset(file int) {
	resetAtEnd(file)
	unix.Close(file)
}
