package dpuagent

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
)

// Limits. Who has not proved to be the host yet takes no connection's place, and one address not
// the places of all: the host may be at another one.
const (
	connectionsMax  = 64  // with each service at a time; further ones of the host wait
	handshakesMax   = 128 // at a time
	handshakesOfOne = 32  // of these, from one IPv4 address or IPv6 /64 network

	handshakeTimeout = 5 * time.Second // the host waits no longer
	dialTimeout      = 10 * time.Second
	healthTimeout    = 5 * time.Second // how long a reader of health may leave a line unread
)

// board has the last health, and wakes who waits for another.
type board struct {
	mu      sync.Mutex // guards the rest
	health  dpu.Health
	text    string
	changed chan struct{} // closed when health changes
}

func newBoard() *board { return &board{changed: make(chan struct{})} }

func (b *board) get() dpu.Health {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.health
}

func (b *board) put(h dpu.Health) {
	text, _ := json.Marshal(h) // cannot fail: no member can
	b.mu.Lock()
	defer b.mu.Unlock()
	b.health = h
	if string(text) != b.text {
		b.text = string(text)
		close(b.changed)
		b.changed = make(chan struct{})
	}
}

func (b *board) line() (string, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text + "\n", b.changed
}

// server serves the connections of the host.
type server struct {
	agent *Agent
	tls   *tls.Config
	ctx   context.Context
	work  sync.WaitGroup

	places map[dpu.Service]chan struct{} // a connection's place with its service

	mu         sync.Mutex // guards the rest
	conns      map[net.Conn]bool
	handshakes map[netip.Prefix]int // by where they come from
}

// serve opens the endpoint. stop closes it and every connection.
func (a *Agent) serve() (stop func(), err error) {
	endpoint, err := dpu.ParseEndpoint(a.Endpoint)
	if err != nil {
		return nil, err
	}
	listeners, config, err := dpu.Listen(endpoint, a.Credentials, a.Client)
	if err != nil {
		return nil, err
	}
	return a.serveAt(listeners, config), nil
}

// serveAt serves at listeners of dpu.Listen.
func (a *Agent) serveAt(listeners map[dpu.Service]net.Listener, config *tls.Config) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	s := newServer(ctx, a, config)
	for service, l := range listeners {
		s.work.Go(func() { s.accept(service, l) })
	}
	return func() {
		cancel()
		for _, l := range listeners {
			l.Close()
		}
		s.mu.Lock()
		for c := range s.conns {
			c.Close()
		}
		s.mu.Unlock()
		s.work.Wait()
	}
}

func newServer(ctx context.Context, a *Agent, config *tls.Config) *server {
	s := &server{
		agent: a, tls: config, ctx: ctx, places: map[dpu.Service]chan struct{}{}, conns: map[net.Conn]bool{},
		handshakes: map[netip.Prefix]int{},
	}
	for _, service := range dpu.Services {
		s.places[service] = make(chan struct{}, connectionsMax)
	}
	return s
}

// track has stop close a connection. It returns false if the server ends.
func (s *server) track(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.conns[c] = true
	return true
}

func (s *server) drop(c net.Conn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// accept serves the connections of a listener.
func (s *server) accept(service dpu.Service, l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors, say: others are given back
			s.agent.log.Error("cannot accept the host's connection", "err", err)
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(time.Second):
			}
			continue
		}
		s.work.Go(func() {
			defer c.Close()
			if err := s.connection(service, c); err != nil {
				s.agent.log.Warn("refused a connection", "from", c.RemoteAddr().String(), "err", err)
			}
		})
	}
}

// connection serves one. An error says why it was refused.
func (s *server) connection(service dpu.Service, c net.Conn) error {
	below := c
	if s.tls != nil {
		secure, err := s.handshake(c)
		if err != nil {
			return err
		}
		service, c = dpu.Service(secure.ConnectionState().NegotiatedProtocol), secure
	}
	// Hundreds of pods can be attached at once, and each has connections: they wait for a place.
	select {
	case s.places[service] <- struct{}{}:
		defer func() { <-s.places[service] }()
	case <-s.ctx.Done():
		return nil
	}
	if !s.track(below) {
		return nil
	}
	defer s.drop(below)
	if service == dpu.HealthOf {
		s.health(c)
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, dialTimeout)
	to, err := ovsdb.Dial(ctx, filepath.Join(s.agent.RunDir, service.SocketName()))
	cancel()
	if err != nil {
		// The fault is in the switch's health, and in the log.
		s.agent.log.Debug("cannot forward a connection", "service", service, "err", err)
		return nil
	}
	if !s.track(to) {
		return to.Close()
	}
	defer s.drop(to)
	relay(c, to)
	return nil
}

// handshake finds out whether the other side is the host, and which service it wants.
func (s *server) handshake(c net.Conn) (*tls.Conn, error) {
	from, err := source(c.RemoteAddr())
	if err == nil {
		err = s.begin(from)
	}
	if err != nil {
		return nil, err
	}
	defer s.end(from)
	ctx, cancel := context.WithTimeout(s.ctx, handshakeTimeout)
	defer cancel()
	secure := tls.Server(c, s.tls)
	return secure, secure.HandshakeContext(ctx)
}

// source is the addresses that one sender can be expected to have.
func source(a net.Addr) (netip.Prefix, error) {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Prefix{}, err
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is4() {
		return addr.Prefix(32)
	}
	return addr.Prefix(64)
}

// begin counts a handshake in, unless there are too many.
func (s *server) begin(from netip.Prefix) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := 0
	for _, n := range s.handshakes {
		all += n
	}
	if s.handshakes[from] >= handshakesOfOne || all >= handshakesMax {
		return fmt.Errorf("%d handshakes go on, %d of them with %s", all, s.handshakes[from], from)
	}
	s.handshakes[from]++
	return nil
}

func (s *server) end(from netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handshakes[from]--; s.handshakes[from] == 0 {
		delete(s.handshakes, from)
	}
}

// relay copies in both directions until one of the two ends.
func relay(a, b net.Conn) {
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(b, a)
		b.Close()
	})
	_, _ = io.Copy(a, b)
	a.Close()
	both.Wait()
}

// health writes lines until the connection ends.
func (s *server) health(c net.Conn) {
	for {
		line, changed := s.agent.board.line()
		if err := c.SetWriteDeadline(time.Now().Add(healthTimeout)); err != nil {
			return
		}
		if _, err := io.WriteString(c, line); err != nil {
			return
		}
		select {
		case <-s.ctx.Done():
			return
		case <-changed:
		case <-time.After(dpu.Interval):
		}
	}
}
