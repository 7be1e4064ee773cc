package dpuagent

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
)

const (
	connectionsMax   = 64 // at a listener; others wait in its backlog
	handshakeTimeout = 10 * time.Second
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

	mu    sync.Mutex // guards conns
	conns map[net.Conn]bool
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
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{agent: a, tls: config, ctx: ctx, conns: map[net.Conn]bool{}}
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
	}, nil
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

// accept serves the connections of a listener. Hundreds of pods can be attached at once, and each of
// them has a connection: those for which there is no place are not refused, but wait for their turn.
func (s *server) accept(service dpu.Service, l net.Listener) {
	places := make(chan struct{}, connectionsMax)
	for {
		select {
		case places <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
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
			<-places
			continue
		}
		if !s.track(c) {
			c.Close()
			return
		}
		s.work.Go(func() {
			defer func() { <-places }()
			defer s.drop(c)
			if err := s.connection(service, c); err != nil {
				s.agent.log.Warn("refused a connection", "from", c.RemoteAddr().String(), "err", err)
			}
		})
	}
}

// connection serves one. An error says why it was refused.
func (s *server) connection(service dpu.Service, c net.Conn) error {
	if s.tls != nil {
		secure := tls.Server(c, s.tls)
		ctx, cancel := context.WithTimeout(s.ctx, handshakeTimeout)
		defer cancel()
		if err := secure.HandshakeContext(ctx); err != nil {
			return err
		}
		service, c = dpu.Service(secure.ConnectionState().NegotiatedProtocol), secure
	}
	if service == dpu.HealthOf {
		s.health(c)
		return nil
	}
	to, err := net.DialTimeout("unix", filepath.Join(s.agent.RunDir, service.SocketName()), handshakeTimeout)
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
