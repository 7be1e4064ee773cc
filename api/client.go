package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultSocket is the path of the daemon's socket, unless its configuration names another.
const DefaultSocket = RunDir + "/" + AgentName + socketSuffix

// requestLimit is the time after which a request fails. The daemon waits only for the kernel and
// for other requests.
const requestLimit = 30 * time.Second

// answerMax is more than the longest answer, in bytes.
const answerMax = 16 << 20

// ErrNotFound says that a container, helper or endpoint does not exist.
var ErrNotFound = errors.New("not found")

type notFoundError string

func (e notFoundError) Error() string        { return string(e) }
func (e notFoundError) Is(target error) bool { return target == ErrNotFound || target == ErrRefused }

// Client makes requests to a daemon.
type Client struct {
	Socket string
	http   http.Client
	stream http.Client // for answers that take as long as they take
}

// Dial makes a client for the daemon at a socket; "" is DefaultSocket. The client connects anew for
// each request.
func Dial(socket string) *Client {
	if socket == "" {
		socket = DefaultSocket
	}
	c := &Client{Socket: socket}
	c.http.Timeout = requestLimit
	c.http.Transport = &http.Transport{
		DisableKeepAlives:     true,
		ResponseHeaderTimeout: requestLimit,
		DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
			err = Nearby(socket, func(short string) (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, "unix", short)
				return err
			})
			return conn, err
		},
	}
	c.stream.Transport = c.http.Transport
	return c
}

// Nearby calls fn with another path to a file. It fits into a struct sockaddr_un, however long the
// path of the directory is.
func Nearby(path string, fn func(short string) error) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return fn(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}

// Register announces a container. While the daemon is restarted, Register waits for the next one.
func (c *Client) Register(r Registration) (answer Registered, err error) {
	err = Patiently(c.Socket, func() error { return c.Do(http.MethodPost, "/v1/containers", r, &answer) })
	return answer, err
}

// Unregister removes the container with a name and an id; the id "" is any. It returns ErrNotFound
// if there is none, and does not wait for a daemon.
func (c *Client) Unregister(name, id string) error {
	return c.Do(http.MethodDelete, removalPath(name, id), nil, nil)
}

// Remove is Unregister, and waits for the next daemon while the daemon is restarted. If the daemon
// itself has ended the container before, Remove also returns why.
func (c *Client) Remove(name, id string) (removed Removed, err error) {
	err = Patiently(c.Socket, func() error { return c.Do(http.MethodDelete, removalPath(name, id), nil, &removed) })
	return removed, err
}

func removalPath(name, id string) string {
	path := "/v1/containers/" + url.PathEscape(name)
	if id != "" {
		path += "?id=" + url.QueryEscape(id)
	}
	return path
}

// restartPatience is the time that a daemon that was killed may take to start again.
const restartPatience = 20 * time.Second

// Patiently calls a function again while it fails because the daemon was killed. A daemon that was
// killed leaves its socket's file; one that was stopped removes it. The function must permit
// repetition.
func Patiently(socket string, do func() error) error {
	for deadline := time.Now().Add(restartPatience); ; time.Sleep(20 * time.Millisecond) {
		err := do()
		cut := errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) ||
			errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if !cut || time.Now().After(deadline) {
			return err
		}
		if _, gone := os.Lstat(socket); gone != nil {
			return err
		}
	}
}

// Containers returns all containers.
func (c *Client) Containers() ([]Container, error) {
	var list []Container
	return list, c.Do(http.MethodGet, "/v1/containers", nil, &list)
}

// Stats returns the counters of the daemon and of its containers.
func (c *Client) Stats() (Stats, error) {
	var s Stats
	return s, c.Do(http.MethodGet, "/v1/stats", nil, &s)
}

// Trace returns a stream with a line of JSON for each decision about a container from now on. Reads
// return io.EOF when the container has ended, and io.ErrUnexpectedEOF or the cause of ctx when the
// stream ends before.
func (c *Client) Trace(ctx context.Context, name string) (io.ReadCloser, error) {
	return c.open(ctx, "/v1/containers/"+url.PathEscape(name)+"/trace")
}

// open returns the body of an answer that takes as long as it takes.
func (c *Client) open(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://tsugiki"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.stream.Do(req)
	if err != nil {
		return nil, c.unreachable(err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return nil, c.unreachable(err)
	}
	return nil, failure(resp, data)
}

// failure returns the error of an answer that does not report success.
func failure(resp *http.Response, data []byte) error {
	var f Failure
	if json.Unmarshal(data, &f) != nil || f.Error == "" {
		f.Error = resp.Status
	}
	if resp.StatusCode == http.StatusNotFound && len(f.Unknown) > 0 {
		return &UnknownError{f.Error, f.Unknown}
	}
	switch code := resp.StatusCode; {
	case code == http.StatusNotFound:
		return notFoundError(f.Error)
	case code >= 400 && code < 500 && code != http.StatusTooManyRequests:
		return invalidError(f.Error)
	}
	return refusedError(f.Error)
}

// Do makes a request. It sends and receives JSON; nil stands for an empty body.
func (c *Client) Do(method, path string, send, receive any) error {
	var body io.Reader
	if send != nil {
		data, err := json.Marshal(send)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, "http://tsugiki"+path, body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return c.unreachable(err)
	}
	if resp.StatusCode >= 300 {
		return failure(resp, data)
	}
	if receive == nil || resp.StatusCode == http.StatusNoContent {
		return nil
	}
	if err := json.Unmarshal(data, receive); err != nil {
		return fmt.Errorf("answer of the agent at %s: %w", c.Socket, err)
	}
	return nil
}

// ErrNoAgent says that no daemon listens.
var ErrNoAgent = errors.New("tsugiki agent is not running")

type noAgentError struct {
	socket string
	cause  error
}

func (e noAgentError) Error() string {
	return fmt.Sprintf("%v at %s; start it, or name its socket with --agent", ErrNoAgent, e.socket)
}

func (e noAgentError) Unwrap() []error { return []error{ErrNoAgent, ErrRefused, e.cause} }

// ErrRefused says that the daemon did not get the request, or has answered that it did nothing.
// After any other error the daemon may have carried out the request.
var ErrRefused = errors.New("refused")

// ErrInvalid says that the daemon has answered that it cannot do what a request asks (4xx): the same
// request would have the same answer, if nothing else changes. It is an ErrRefused.
var ErrInvalid = errors.New("invalid request")

type invalidError string

func (e invalidError) Error() string        { return string(e) }
func (e invalidError) Is(target error) bool { return target == ErrInvalid || target == ErrRefused }

type refusedError string

func (e refusedError) Error() string        { return string(e) }
func (e refusedError) Is(target error) bool { return target == ErrRefused }

type undialedError struct{ error }

func (e undialedError) Unwrap() error        { return e.error }
func (e undialedError) Is(target error) bool { return target == ErrRefused }

func (c *Client) unreachable(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return noAgentError{c.Socket, err}
	}
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		return undialedError{fmt.Errorf("ask the agent at %s: %w", c.Socket, err)}
	}
	return fmt.Errorf("ask the agent at %s: %w", c.Socket, err)
}
