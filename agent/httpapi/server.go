// Package httpapi serves HTTP with JSON on a unix socket. It makes the socket, limits connections
// and requests, checks whether a caller is allowed, and maps errors to HTTP statuses. It has the
// requests for the endpoints of a container, which the daemon and tsugiki run both serve.
//
// It uses three methods of a container, and decides nothing about containers. It needs Linux 5.3
// (pidfd_open), and a caller needs CAP_NET_ADMIN.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/sys/poll"
)

const (
	bodyMax   = 64 << 10
	headerMax = 16 << 10
	// Patience limits the time in which a request comes in, and the time in which its answer is
	// read (timed.go). idlePatience limits the time without a request on a connection.
	Patience     = 10 * time.Second
	idlePatience = 30 * time.Second
	// headerPatience limits the time in which the header of a request comes in.
	headerPatience = 2 * time.Second
	// connectionsMax is the number of connections at once; see Limit.
	connectionsMax = 256
	// closePatience is how long Close waits for requests that are being answered.
	closePatience = 2 * time.Second
)

// Server is an HTTP server at a unix socket.
type Server struct {
	http     *http.Server
	listener net.Listener
	path     string
}

// Listen makes a server at a path. Requests wait until it is started.
func Listen(path string, h *http.Server) (*Server, error) {
	l, err := ListenAt(path)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w; choose another directory with --run-dir", path, err)
	}
	return &Server{h, l, path}, nil
}

// Start begins to answer requests.
func (s *Server) Start() {
	l := Limit(s.listener, s.http, connectionsMax)
	go func() { _ = s.http.Serve(l) }() // until it is closed
}

// Close waits a moment for requests that are being answered, and removes the socket.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
	_ = s.listener.Close() // Shutdown closes it only after Serve has begun
	if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove API socket: %w", err)
	}
	return nil
}

// ListenAt makes a socket to which only its owner may connect. It replaces the socket of a killed
// owner: callers hold a lock on the name. At every moment there is a socket at the path.
func ListenAt(path string) (net.Listener, error) {
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	// bind(2) gives the file the mode that the socket has then.
	if err := f.Chmod(0o600); err != nil {
		return nil, err
	}
	err = api.Nearby(next, func(short string) error { return unix.Bind(fd, &unix.SockaddrUnix{Name: short}) })
	if err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		_ = os.Remove(next) // if it is there
		return nil, err
	}
	return net.FileListener(f)
}

type connKey struct{}

// Routes has the handlers of requests, by patterns of http.ServeMux.
type Routes map[string]http.HandlerFunc

// New makes a server that refuses callers who may not change a container.
func New(routes Routes, log *slog.Logger) *http.Server {
	mux := http.NewServeMux()
	for pattern, handle := range routes {
		mux.HandleFunc(pattern, handle)
	}
	s := NewHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkPeer(r.Context().Value(connKey{})); err != nil {
			log.Warn("request refused", "err", err)
			Answer(w, http.StatusForbidden, api.Failure{Error: err.Error()})
			return
		}
		mux.ServeHTTP(w, r)
	}), log)
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
	return s
}

// NewHTTP makes a server with limits for all waits for a peer. The context of a request ends when
// the server is being closed.
func NewHTTP(h http.Handler, log *slog.Logger) *http.Server {
	ctx, cancel := context.WithCancel(context.Background())
	s := &http.Server{
		Handler:           untimed(h),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headerPatience,
		ReadTimeout:       Patience,
		WriteTimeout:      Patience,
		IdleTimeout:       idlePatience,
		MaxHeaderBytes:    headerMax,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	s.RegisterOnShutdown(cancel)
	return s
}

// Guard wraps the server's listener; see the function Guard.
func (s *Server) Guard(limit FileLimit, log *slog.Logger, fail func(error)) {
	s.listener = Guard(s.listener, limit, log, fail)
}

// HungUp tells whether the caller of a request is known to have closed its connection.
func HungUp(ctx context.Context) bool {
	conn, is := ctx.Value(connKey{}).(syscall.Conn)
	return is && poll.HungUp(conn)
}
