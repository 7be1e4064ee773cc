// Package stream has the host's ends of vsock connections of guests where each connection is a socket of
// the host: the unix sockets of a VMM with hybrid vsock (Firecracker, cloud-hypervisor), or AF_VSOCK. It
// joins each with another socket, and moves the bytes by splice(2).
//
// It makes no sockets of programs, and decides nothing. Hybrid vsock needs no privilege beyond those to make
// files beside the VMM's socket; AF_VSOCK needs the kernel's vhost_vsock. Linux 5.4.
//
// # Theory of operation
//
// A guest opens connections to wire.ControlPort, wire.DatagramPort and wire.DataPort(0). The last begin with a
// wire.Preamble, which names a handle: in hybrid vsock, nobody tells the host the guest's port. The host
// sends the preamble back when the handle's socket is connected, and ends the connection if that fails. So
// the guest waits for it. Then the bytes are the program's.
//
// A connection that the host opens has no preamble. It does not come from the port that the caller says: in
// hybrid vsock the VMM chooses that port, and with AF_VSOCK all guests share the host's ports, so it is a free
// one. Socket.Named gets it.
//
// A joint (joint.go) has a goroutine for each direction. An end of one side becomes an end of the other
// side's direction. A fault of either side resets the host's socket. Neither unix sockets nor AF_VSOCK can
// tell the guest of a reset: it sees an end.
package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// Limits of a guest.
const (
	connsMax    = 4096 // connections, also those that are begun
	wideMax     = 256  // so many at once have pieceWide
	pieceWide   = 64 << 10
	pieceSmall  = 16 << 10 // bytes of one direction that neither socket has
	namelessMax = 256      // connections that have not said their handle

	namePatience = 10 * time.Second // for the preamble
	dialPatience = 10 * time.Second // for the guest's answer
)

// Config has what a Guest depends on.
type Config struct {
	Counters *vsock.Counters
	Work     *cputime.Meter // of what moves bytes; may be nil
	// VMM is told the pid of the VMM when the guest opens a control stream by hybrid vsock. It may be nil.
	VMM func(pid int)
	Log *slog.Logger
}

// conn is a socket of a connection with the guest, in Go's poller.
type conn interface {
	io.ReadWriteCloser
	SyscallConn() (syscall.RawConn, error)
	SetDeadline(time.Time) error
}

// transport opens connections to a guest.
type transport interface {
	// dial connects to a port of the guest. It returns the port of the host that the guest sees.
	dial(ctx context.Context, to uint32) (c conn, port uint32, err error)
	// close ends what listens for the guest.
	close() error
}

// Guest has the connections of one guest. It implements vsock.Guest.
type Guest struct {
	Config
	transport transport
	handler   vsock.Handler
	ctx       context.Context // of dials
	cancel    context.CancelFunc
	nameless  chan struct{} // full when there is no room for another one

	mu    sync.Mutex // guards what follows
	open  map[io.Closer]bool
	count int // connections, also those that are dialed
	wide  int // of those, with pieceWide
	over  bool
	all   sync.WaitGroup
}

var _ vsock.Guest = (*Guest)(nil)

func newGuest(c Config, t transport) *Guest {
	g := &Guest{Config: c, transport: t, open: map[io.Closer]bool{}, nameless: make(chan struct{}, namelessMax)}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// ports are those at which a guest finds the host. Only data connections begin with a preamble.
func ports() []uint32 { return []uint32{wire.ControlPort, wire.DatagramPort, wire.DataPort(0)} }

// enter takes a place for a connection, which piece bytes at a time go through.
func (g *Guest) enter() (piece int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.over:
		return 0, vsock.ErrGone
	case g.count >= connsMax:
		return 0, vsock.ErrMany
	}
	g.count++
	g.all.Add(1)
	if g.wide < wideMax {
		g.wide++
		return pieceWide, nil
	}
	return pieceSmall, nil
}

func (g *Guest) leave(piece int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count--
	if piece == pieceWide {
		g.wide--
	}
	g.all.Done()
}

// keep has Close end something; false if it was called already.
func (g *Guest) keep(c io.Closer) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over {
		g.open[c] = true
	}
	return !g.over
}

func (g *Guest) forget(c io.Closer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, c)
}

// arrive takes a connection that the guest has opened to a port.
func (g *Guest) arrive(c conn, port uint32) {
	piece, err := g.enter()
	if err != nil {
		g.Log.Debug("connection of a guest is refused", "err", err)
		c.Close()
		return
	}
	if !g.keep(c) {
		c.Close()
		g.leave(piece)
		return
	}
	go func() {
		if port != wire.DataPort(0) {
			g.offer(c, piece, port, port, nil)
			return
		}
		handle, preamble, err := g.handleOf(c)
		if err != nil {
			g.Log.Debug("connection of a guest is refused", "err", err)
			g.refuse(c, piece)
			return
		}
		g.offer(c, piece, wire.DataPort(handle), wire.DataPort(handle), preamble)
	}()
}

func (g *Guest) refuse(c conn, piece int) {
	g.forget(c)
	c.Close()
	g.leave(piece)
}

// handleOf reads the preamble. Only so many connections at once may owe theirs.
func (g *Guest) handleOf(c conn) (handle uint32, preamble []byte, err error) {
	select {
	case g.nameless <- struct{}{}:
		defer func() { <-g.nameless }()
	default:
		return 0, nil, fmt.Errorf("%d connections have not said their handle", namelessMax)
	}
	var b [8]byte
	if err := c.SetDeadline(time.Now().Add(namePatience)); err != nil {
		return 0, nil, err
	}
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return 0, nil, fmt.Errorf("read a preamble: %w", err)
	}
	if handle, err = wire.ParsePreamble(b); err != nil {
		return 0, nil, err
	}
	return handle, b[:], c.SetDeadline(time.Time{})
}

// offer asks the handler about a connection of the guest's. If the handler accepts, the guest gets the
// greeting first.
func (g *Guest) offer(c conn, piece int, from, to uint32, greeting []byte) {
	accept := func(s vsock.Socket) {
		g.forget(c) // the joint is kept
		g.join(c, s, piece, false, greeting)
	}
	g.handler.Request(vsock.NewRequest(vsock.Stream, from, to, accept, func() { g.refuse(c, piece) }))
}

// Dial implements vsock.Guest. It has streams alone.
func (g *Guest) Dial(typ uint16, from, to uint32, s vsock.Socket, done func(error)) {
	if typ != vsock.Stream {
		done(vsock.ErrRefused)
		return
	}
	piece, err := g.enter()
	if err != nil {
		done(err)
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(g.ctx, dialPatience)
		defer cancel()
		c, port, err := g.transport.dial(ctx, to)
		if err != nil {
			g.leave(piece)
			if g.ctx.Err() != nil {
				err = vsock.ErrGone
			}
			done(err)
			return
		}
		if s.Named != nil && port != from {
			s.Named(port)
		}
		g.join(c, s, piece, true, nil)
		done(nil)
	}()
}

// Close implements vsock.Guest. When it returns, nothing listens for the guest, and no connection is left.
func (g *Guest) Close() error {
	g.cancel()
	err := g.transport.close()
	g.mu.Lock()
	g.over = true
	list := make([]io.Closer, 0, len(g.open))
	for c := range g.open {
		list = append(list, c)
	}
	g.mu.Unlock()
	for _, c := range list {
		c.Close()
	}
	return err
}

// Wait waits for the end of all connections, after Close. Requests that the handler has not answered count.
func (g *Guest) Wait() { g.all.Wait() }

// fileOf makes a socket that does not block a file in Go's poller.
func fileOf(sock int) (*os.File, error) {
	if err := unix.SetNonblock(sock, true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(sock), "socket"), nil
}

// dialError makes an error of a dial one of vsock's.
func dialError(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENETUNREACH):
		return fmt.Errorf("%w: %w", vsock.ErrGone, err)
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: %w", vsock.ErrMany, err)
	}
	return fmt.Errorf("%w: %w", vsock.ErrRefused, err)
}
