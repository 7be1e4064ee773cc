package agent

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
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/api"
	"github.com/tsugiki/tsugiki/endpoint"
)

// Client speaks to the supervisor of a running container.
type Client struct {
	container string
	http      http.Client
}

// requestLimit is how long a request may take: what is waited for is the kernel
// and other requests.
const requestLimit = 30 * time.Second

// answerMax is more than all endpoints of a container take.
const answerMax = 4 << 20

// Connect finds a running container of a run directory. With an empty name it is
// the only one.
func Connect(runDir, name string) (*Client, error) {
	if name == "" {
		names, err := Running(runDir)
		switch {
		case err != nil:
			return nil, err
		case len(names) == 0:
			return nil, fmt.Errorf("no container is running; start one with tsugiki run, or say with --run-dir where its directory is (here %s)", runDir)
		case len(names) > 1:
			return nil, fmt.Errorf("%d containers are running, choose one with \"for NAME\": %s", len(names), strings.Join(names, ", "))
		}
		name = names[0]
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	path := socketOf(runDir, name)
	conn, err := dial(context.Background(), path)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) {
			return nil, fmt.Errorf("connect to container %s: %w", name, err)
		}
		names, err := Running(runDir)
		if err == nil && len(names) == 0 {
			err = fmt.Errorf("container %s is not running, nor is any other", name)
		} else if err == nil {
			err = fmt.Errorf("container %s is not running; there is %s", name, strings.Join(names, ", "))
		}
		return nil, err
	}
	conn.Close()
	c := &Client{container: name}
	c.http.Timeout = requestLimit
	c.http.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, path) },
	}
	return c, nil
}

// Running lists the containers of a run directory that are running, by name.
func Running(runDir string) ([]string, error) {
	entries, err := os.ReadDir(runDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find running containers: %w", err)
	}
	var names []string
	for _, e := range entries {
		name, isSocket := strings.CutSuffix(e.Name(), socketSuffix)
		if !isSocket || e.Type() != os.ModeSocket || checkName(name) != nil {
			continue
		}
		conn, err := dial(context.Background(), filepath.Join(runDir, e.Name()))
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
			continue // killed, or gone meanwhile
		}
		if err == nil {
			conn.Close()
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

func socketOf(runDir, name string) string { return filepath.Join(runDir, name+socketSuffix) }

func dial(ctx context.Context, path string) (conn net.Conn, err error) {
	err = api.Nearby(path, func(short string) (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "unix", short)
		return err
	})
	return conn, err
}

// Endpoints are those that the container has, by name.
func (c *Client) Endpoints() ([]Endpoint, error) {
	var list []Endpoint
	return list, c.request(http.MethodGet, "", nil, &list)
}

// Add gives the container an endpoint.
func (c *Client) Add(ep *endpoint.Endpoint) error {
	return c.request(http.MethodPut, ep.Name, definitionOf(ep), nil)
}

// Delete takes an endpoint away from the container.
func (c *Client) Delete(name string) error { return c.request(http.MethodDelete, name, nil, nil) }

func (c *Client) request(method, name string, send, receive any) error {
	path := "/v1/containers/" + c.container + "/endpoints"
	if name != "" {
		path += "/" + url.PathEscape(name)
	}
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
		return fmt.Errorf("ask container %s: %w", c.container, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return fmt.Errorf("ask container %s: %w", c.container, err)
	}
	if resp.StatusCode >= 300 {
		var f api.Failure
		if json.Unmarshal(data, &f) != nil || f.Error == "" {
			f.Error = resp.Status
		}
		return fmt.Errorf("container %s: %s", c.container, f.Error)
	}
	if receive == nil {
		return nil
	}
	if err := json.Unmarshal(data, receive); err != nil {
		return fmt.Errorf("ask container %s: %w", c.container, err)
	}
	return nil
}
