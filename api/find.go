package api

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ContainerClient changes a running container.
type ContainerClient struct {
	container string
	agent     *Client
}

// Where names the places in which Connect and Running look for containers.
type Where struct {
	RunDir string
	Agent  string // socket of the daemon; empty: that of RunDir
}

func (w Where) agent() string {
	if w.Agent != "" {
		return w.Agent
	}
	return SocketIn(w.RunDir)
}

// Connect finds a running container: the daemon's, or that of a tsugiki run without a daemon. An
// empty name stands for the only container.
func Connect(w Where, name string) (*ContainerClient, error) {
	if name != "" {
		if err := CheckName(name); err != nil {
			return nil, err
		}
	}
	sockets, away, err := running(w)
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(sockets))
	switch {
	case away != nil && (name == "" && len(names) == 0 || name != "" && sockets[name] == ""):
		return nil, unknownTo(away, w.RunDir, name, names)
	case name == "" && len(names) == 0:
		return nil, fmt.Errorf("no container is running; start one with tsugiki run, or say with --run-dir where its directory is (here %s)", w.RunDir)
	case name == "" && len(names) > 1:
		return nil, fmt.Errorf("%d containers are running, choose one with \"for NAME\": %s", len(names), strings.Join(names, ", "))
	case name == "":
		name = names[0]
	case sockets[name] == "" && len(names) == 0:
		return nil, fmt.Errorf("container %s is not running, nor is any other", name)
	case sockets[name] == "":
		return nil, fmt.Errorf("container %s is not running; there is %s", name, strings.Join(names, ", "))
	}
	return &ContainerClient{name, Dial(sockets[name])}, nil
}

// Running returns the running containers: by name, the socket of the process that can change them.
func Running(w Where) (map[string]string, error) {
	sockets, _, err := running(w)
	return sockets, err
}

// unknownTo returns an error about a container that may be one of the daemon's, which is away.
// names are the containers that were found; name is empty for any container.
func unknownTo(away error, runDir, name string, names []string) error {
	switch {
	case name == "":
		return fmt.Errorf("no container is running without the agent (in --run-dir %s), and %w", runDir, away)
	case len(names) == 0:
		return fmt.Errorf("container %s is not known: %w", name, away)
	}
	return fmt.Errorf("container %s is not known: %w; without the agent there is %s", name, away, strings.Join(names, ", "))
}

// running is Running. away is the error of a daemon that does not listen: its containers, if it
// has any, are missing.
func running(w Where) (sockets map[string]string, away, err error) {
	sockets = map[string]string{}
	list, away := Dial(w.agent()).Containers()
	if away != nil && (w.Agent != "" || !errors.Is(away, ErrNoAgent)) {
		return nil, nil, away
	}
	for _, c := range list {
		sockets[c.Name] = w.agent()
	}
	entries, err := os.ReadDir(w.RunDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("find running containers: %w", err)
	}
	for _, e := range entries {
		name, isSocket := strings.CutSuffix(e.Name(), socketSuffix)
		if !isSocket || e.Type() != os.ModeSocket || CheckName(name) != nil {
			continue
		}
		path := filepath.Join(w.RunDir, e.Name())
		conn, err := dial(path)
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
			continue // killed, or gone meanwhile
		}
		if err == nil {
			conn.Close()
		}
		sockets[name] = path
	}
	return sockets, away, nil
}

// ContainerSocket returns the path of the socket of a tsugiki run without a daemon.
func ContainerSocket(runDir, name string) string { return filepath.Join(runDir, name+socketSuffix) }

func dial(path string) (conn net.Conn, err error) {
	err = Nearby(path, func(short string) (err error) {
		conn, err = net.Dial("unix", short)
		return err
	})
	return conn, err
}

// Container returns a client for the container of a name, whether there is one or not.
func (c *Client) Container(name string) *ContainerClient { return &ContainerClient{name, c} }

// Show returns the container. The container must be one of the daemon's.
func (c *ContainerClient) Show() (Container, error) {
	var shown Container
	return shown, c.do(http.MethodGet, "", nil, &shown)
}

// Endpoints returns the container's endpoints, sorted by name.
func (c *ContainerClient) Endpoints() ([]Endpoint, error) {
	var list []Endpoint
	return list, c.request(http.MethodGet, "", nil, &list)
}

// Add gives the container an endpoint.
func (c *ContainerClient) Add(name string, d Definition) error {
	return c.request(http.MethodPut, name, d, nil)
}

// Delete deletes an endpoint of the container.
func (c *ContainerClient) Delete(name string) error {
	return c.request(http.MethodDelete, name, nil, nil)
}

func (c *ContainerClient) request(method, name string, send, receive any) error {
	path := "/endpoints"
	if name != "" {
		path += "/" + url.PathEscape(name)
	}
	return c.do(method, path, send, receive)
}

// do makes a request for a path below that of the container.
func (c *ContainerClient) do(method, path string, send, receive any) error {
	err := c.agent.Do(method, "/v1/containers/"+url.PathEscape(c.container)+path, send, receive)
	if err != nil {
		return fmt.Errorf("container %s: %w", c.container, err)
	}
	return nil
}
