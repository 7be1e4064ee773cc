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
)

// DefaultSocket is where the daemon listens unless told otherwise.
const DefaultSocket = "/run/tsugiki/agent.sock"

// requestLimit is how long a request may take: what is waited for is the kernel
// and other requests.
const requestLimit = 30 * time.Second

// answerMax is more than any list of ours takes.
const answerMax = 16 << 20

// ErrNotFound says that the daemon has no container of that name.
var ErrNotFound = errors.New("not found")

// Client speaks to a daemon.
type Client struct {
	Socket string
	http   http.Client
}

// Dial makes a client for the daemon at a socket, "" being DefaultSocket. It
// connects at each request.
func Dial(socket string) *Client {
	if socket == "" {
		socket = DefaultSocket
	}
	c := &Client{Socket: socket}
	c.http.Timeout = requestLimit
	c.http.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
			err = Nearby(socket, func(short string) (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, "unix", short)
				return err
			})
			return conn, err
		},
	}
	return c
}

// Nearby calls fn with another path to a file, which fits into a struct
// sockaddr_un however long that of its directory is.
func Nearby(path string, fn func(short string) error) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return fn(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}

// Register announces a container.
func (c *Client) Register(r Registration) (Registered, error) {
	var answer Registered
	return answer, c.Do(http.MethodPost, "/v1/containers", r, &answer)
}

// Unregister removes a container. One that there is not is ErrNotFound.
func (c *Client) Unregister(name string) error {
	return c.Do(http.MethodDelete, "/v1/containers/"+url.PathEscape(name), nil, nil)
}

// Containers lists all containers.
func (c *Client) Containers() ([]Container, error) {
	var list []Container
	return list, c.Do(http.MethodGet, "/v1/containers", nil, &list)
}

// Do makes a request. send and receive are JSON; nil is nothing.
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
		var f Failure
		if json.Unmarshal(data, &f) != nil || f.Error == "" {
			f.Error = resp.Status
		}
		if resp.StatusCode == http.StatusNotFound {
			return fmt.Errorf("%w: %s", ErrNotFound, f.Error)
		}
		return errors.New(f.Error)
	}
	if receive == nil {
		return nil
	}
	if err := json.Unmarshal(data, receive); err != nil {
		return fmt.Errorf("answer of the agent at %s: %w", c.Socket, err)
	}
	return nil
}

// ErrNoAgent says that no daemon listens.
var ErrNoAgent = errors.New("no agent")

func (c *Client) unreachable(err error) error {
	var op *net.OpError
	if errors.Is(err, os.ErrNotExist) || errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w: tsugiki agent is not running at %s; start it, or name its socket with --agent", ErrNoAgent, c.Socket)
	}
	return fmt.Errorf("ask the agent at %s: %w", c.Socket, err)
}
