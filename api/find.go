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
	sockets, err := Running(w)
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(sockets))
	switch {
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
	sockets := map[string]string{}
	list, err := Dial(w.agent()).Containers()
	if err != nil && (w.Agent != "" || !errors.Is(err, ErrNoAgent)) {
		return nil, err
	}
	for _, c := range list {
		sockets[c.Name] = w.agent()
	}
	entries, err := os.ReadDir(w.RunDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("find running containers: %w", err)
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
	return sockets, nil
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
	path := "/v1/containers/" + c.container + "/endpoints"
	if name != "" {
		path += "/" + url.PathEscape(name)
	}
	err := c.agent.Do(method, path, send, receive)
	if err != nil {
		return fmt.Errorf("container %s: %w", c.container, err)
	}
	return nil
}
