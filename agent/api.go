package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// The API by which others change running containers: HTTP with JSON on a unix
// socket, RUN_DIR/NAME.sock.
//
//	GET    /v1/containers/NAME/endpoints            [Endpoint...]
//	PUT    /v1/containers/NAME/endpoints/ENDPOINT   api.Definition; 201, 409 if there is one or it does not fit
//	DELETE /v1/containers/NAME/endpoints/ENDPOINT   204
//
// What goes wrong is {"error": "..."}, with the status that HTTP has for it.
//
// The file system does not keep the container's own programs from the socket, for
// they have the host's; checkPeer does.

const (
	bodyMax   = 64 << 10
	headerMax = 16 << 10
	// apiPatience is how long a request may take to come in, or its answer to be
	// read; idlePatience how long a connection is kept without one.
	apiPatience  = 10 * time.Second
	idlePatience = 30 * time.Second
	// headerPatience is how long a connection may take to say what it wants.
	headerPatience = 2 * time.Second
	// connectionsMax are those at once; see limit.
	connectionsMax = 256
	// closePatience is how long requests that are being answered hold up the end.
	closePatience = 2 * time.Second
)

type server struct {
	http     *http.Server
	listener net.Listener
	path     string
}

func newServer(path string, h *http.Server) (*server, error) {
	l, err := listenAt(path)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w; choose another directory with --run-dir", path, err)
	}
	return &server{h, l, path}, nil
}

func (s *server) start() {
	l := limit(s.listener, s.http, connectionsMax)
	go func() { _ = s.http.Serve(l) }() // until it is closed
}

func (s *server) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
	_ = s.listener.Close() // Shutdown does so only once it is served
	if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove API socket: %w", err)
	}
	return nil
}

// listenAt makes a socket that only its owner may connect to. It takes the place of
// what a killed owner left: names are claimed. At every moment there is one.
func listenAt(path string) (net.Listener, error) {
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
	// The file gets the mode of the socket as it is when it is bound.
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

// endpointRoutes serve the endpoints of the containers that find finds.
func endpointRoutes(find func(name string) *Container) []route {
	e := &endpointHandlers{find}
	return []route{
		{"GET /v1/containers/{container}/endpoints", e.list},
		{"PUT /v1/containers/{container}/endpoints/{endpoint}", e.add},
		{"DELETE /v1/containers/{container}/endpoints/{endpoint}", e.delete},
	}
}

// route is something that can be asked for, as http.ServeMux has it.
type route struct {
	pattern string
	handle  http.HandlerFunc
}

// newAPI makes a server that lets nobody in who may not change a container.
func newAPI(routes []route, log *slog.Logger) *http.Server {
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.HandleFunc(r.pattern, r.handle)
	}
	s := newHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkPeer(r.Context().Value(connKey{})); err != nil {
			log.Warn("request refused", "err", err)
			answer(w, http.StatusForbidden, api.Failure{Error: err.Error()})
			return
		}
		mux.ServeHTTP(w, r)
	}), log)
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
	return s
}

// newHTTP makes a server that waits for nobody for long. The context of a request
// ends when the server is being closed.
func newHTTP(h http.Handler, log *slog.Logger) *http.Server {
	ctx, cancel := context.WithCancel(context.Background())
	s := &http.Server{
		Handler:           h,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headerPatience,
		ReadTimeout:       apiPatience,
		WriteTimeout:      apiPatience,
		IdleTimeout:       idlePatience,
		MaxHeaderBytes:    headerMax,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	s.RegisterOnShutdown(cancel)
	return s
}

type endpointHandlers struct {
	find func(name string) *Container
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a caller that is gone misses it
}

func refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	var tooLarge *http.MaxBytesError
	var host HostError
	var reserved *ports.ReservedError
	switch {
	case errors.As(err, &tooLarge):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, rules.ErrRequest), errors.Is(err, endpoint.ErrGrammar):
		status = http.StatusBadRequest
	case errors.Is(err, rules.ErrNotAllowed):
		status = http.StatusForbidden
	case errors.Is(err, errNoContainer), errors.Is(err, endpoint.ErrUnknown):
		status = http.StatusNotFound
	case errors.Is(err, ErrExists), errors.Is(err, policy.ErrRule), errors.As(err, &host), errors.As(err, &reserved):
		status = http.StatusConflict
	case errors.Is(err, errTraces):
		status = http.StatusTooManyRequests
	case errors.Is(err, ErrState):
		status = http.StatusInsufficientStorage
	case errors.Is(err, os.ErrClosed):
		status = http.StatusServiceUnavailable
	}
	answer(w, status, api.Failure{Error: oneLine(err)})
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

var errNoContainer = errors.New("no container of that name is here")

func (a *endpointHandlers) container(w http.ResponseWriter, r *http.Request) *Container {
	c := a.find(r.PathValue("container"))
	if c == nil {
		refuse(w, errNoContainer)
	}
	return c
}

func (a *endpointHandlers) list(w http.ResponseWriter, r *http.Request) {
	if c := a.container(w, r); c != nil {
		answer(w, http.StatusOK, c.ListEndpoints())
	}
}

func (a *endpointHandlers) add(w http.ResponseWriter, r *http.Request) {
	c := a.container(w, r)
	if c == nil {
		return
	}
	var d api.Definition
	if err := readObject(http.MaxBytesReader(w, r.Body, bodyMax), &d); err != nil {
		refuse(w, err)
		return
	}
	ep, err := rules.ParseDefinition(r.PathValue("endpoint"), d)
	if err == nil {
		err = c.AddEndpoint(ep)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusCreated, rules.DefinitionOf(ep))
}

func (a *endpointHandlers) delete(w http.ResponseWriter, r *http.Request) {
	c := a.container(w, r)
	if c == nil {
		return
	}
	if err := c.DeleteEndpoint(r.PathValue("endpoint")); err != nil {
		refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// readObject reads one JSON object and nothing else.
func readObject(body io.Reader, into any) error {
	decoder := json.NewDecoder(body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", rules.ErrRequest, err)
	}
	switch _, err := decoder.Token(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", rules.ErrRequest, err)
	}
	return fmt.Errorf("%w: something follows the object", rules.ErrRequest)
}

// soPeerPidfd is SO_PEERPIDFD of asm/socket.h (6.5).
const soPeerPidfd = 77

// checkPeer returns an error unless the caller is root or our user, and may
// configure the host's network: it has CAP_NET_ADMIN in our user namespace, which
// no program of a container has (see launch.Capabilities), root or not.
//
// Before Linux 6.5, a caller that ends at once may be taken for one that gets its
// process id right then.
func checkPeer(conn any) error {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("not a unix socket")
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	pidfd := -1
	cerr := raw.Control(func(fd uintptr) {
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		if pidfd, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, soPeerPidfd); errors.Is(err, unix.ENOPROTOOPT) {
			pidfd, err = unix.PidfdOpen(int(cred.Pid), 0)
		}
	})
	if err = errors.Join(cerr, err); err != nil {
		return fmt.Errorf("find out who calls: %w", err)
	}
	defer unix.Close(pidfd)
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d may not change endpoints; root may", cred.Uid)
	}
	may, err := mayConfigure(int(cred.Pid))
	if err != nil {
		return fmt.Errorf("find out what process %d may do: %w", cred.Pid, err)
	}
	// Alive now, it was the one whose files were read.
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); err != nil {
		return fmt.Errorf("find out who calls: %w", err)
	}
	if !may {
		return fmt.Errorf("process %d may not change endpoints; it needs CAP_NET_ADMIN, outside of containers", cred.Pid)
	}
	return nil
}

func mayConfigure(pid int) (bool, error) {
	proc := fmt.Sprintf("/proc/%d/", pid)
	theirs, err := os.Stat(proc + "ns/user")
	if err != nil {
		return false, err
	}
	ours, err := os.Stat("/proc/self/ns/user")
	if err != nil || !os.SameFile(ours, theirs) {
		return false, err
	}
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		return false, err
	}
	_, rest, _ := strings.Cut(string(status), "\nCapEff:\t")
	line, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(line, 16, 64)
	return set&(1<<unix.CAP_NET_ADMIN) != 0, err
}
