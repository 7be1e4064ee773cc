package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/internal/sys/pidfd"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
)

const (
	// startLimit is the time within which a container must be up, and stopLimit the time within
	// which it must be removed.
	startLimit = 60 * time.Second
	stopLimit  = 30 * time.Second
	// pollInterval is the time between two attempts to connect to a port.
	pollInterval = 2 * time.Millisecond
	// crun refuses to work if v2 has controllers and v1 has others. A container that crun starts
	// stays in the rig's own v2 group then.
	crun = "crun"
	// firstPort is the first of the host's ports that lead to containers. The kernel gives ports
	// from 32768 on to clients.
	firstPort, lastPort = 10000, 32000
)

// Container is a container that was started. Several goroutines may call its methods, except those
// that read or write its lines.
type Container struct {
	rig       *Rig
	spec      Spec
	at        *namespace        // the runtime runs in it
	runtime   string            // the program
	env       []string          // added to the machine's for the runtime
	hostPorts map[uint16]uint16 // port of the host by port of the container
	net       *netns.NS         // of a container behind a bridge
	mounted   string            // its overlay's mount point
	created   bool              // the runtime knows it
	pid       int
	process   *os.File // pidfd of the first process
	started   time.Duration

	stdout *os.File // nil with Spec.Output
	lines  *bufio.Reader
}

// Start makes and starts a container, and waits until it is up. A container that fails is removed.
// If ctx has ended, Close removes it together with all others.
func (r *Rig) Start(ctx context.Context, spec Spec) (*Container, error) {
	c, err := r.prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	since := time.Now()
	err = c.start(ctx)
	c.started = time.Since(since)
	if err != nil {
		err = fmt.Errorf("start container %s: %w%s", spec.Name, err, c.said())
		if ctx.Err() != nil {
			return nil, err
		}
		_, stopped := c.stop(ctx)
		return nil, errors.Join(err, stopped)
	}
	return c, nil
}

// Run runs a program in a container of its own until the program ends, and returns its output. An
// error contains the program's error output.
func (r *Rig) Run(ctx context.Context, spec Spec) ([]byte, error) {
	c, err := r.prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	var printed []byte
	if err = c.make(ctx); err == nil {
		cmd := c.command(ctx, "run", "--bundle", c.dir(), spec.Name)
		cmd.Stdin = spec.input()
		c.created = true
		printed, err = c.at.output(ctx, cmd)
	}
	if err != nil {
		err = fmt.Errorf("run container %s: %w", spec.Name, err)
	}
	if ctx.Err() != nil {
		return printed, err // Close removes it
	}
	_, stopped := c.stop(ctx)
	return printed, errors.Join(err, stopped)
}

// prepare makes a Container without the work whose time is measured.
func (r *Rig) prepare(ctx context.Context, spec Spec) (*Container, error) {
	spec, err := r.complete(spec)
	if err != nil {
		return nil, err
	}
	c := &Container{rig: r, spec: spec}
	if err := c.prepare(ctx); err != nil {
		return nil, fmt.Errorf("container %s: %w", spec.Name, err)
	}
	return c, nil
}

// prepare does the work whose time is not measured: it finds the runtime, starts what the network
// needs, and reserves the name and the ports.
func (c *Container) prepare(ctx context.Context) (err error) {
	r := c.rig
	made, err := findRuntime(c.spec.Runtime)
	if err != nil {
		return err
	}
	c.runtime, c.at = made, r.host
	if r.pureV1 != nil && filepath.Base(made) == crun {
		c.at = r.pureV1
	}
	switch c.spec.Network {
	case Graft:
		if c.runtime, err = r.findTsugiki("tsugiki-runtime"); err != nil {
			return err
		}
		c.env = []string{"TSUGIKI_AGENT=" + r.socket(), "TSUGIKI_OCI_RUNTIME=" + made}
		err = r.useAgent(ctx)
	case Bridge:
		err = r.useBridge()
	}
	if err != nil {
		return err
	}
	return r.add(c)
}

// add reserves the container's name and ports.
func (r *Rig) add(c *Container) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.host == nil {
		return errClosed
	}
	if r.containers[c.spec.Name] != nil {
		return fmt.Errorf("the name %w", ErrTaken)
	}
	c.hostPorts = make(map[uint16]uint16)
	next := uint16(firstPort)
	for _, port := range c.spec.Ports {
		if c.spec.Network == Host || c.spec.Network == None {
			c.hostPorts[port] = port
		} else {
			for ; r.ports[next] != "" && next < lastPort; next++ {
			}
			c.hostPorts[port] = next
			next++
		}
	}
	if c.spec.Network != None {
		for _, port := range c.hostPorts {
			if by := r.ports[port]; by != "" {
				return fmt.Errorf("port %d of the host %w by container %s", port, ErrTaken, by)
			}
		}
		for _, port := range c.hostPorts {
			r.ports[port] = c.spec.Name
		}
	}
	r.containers[c.spec.Name] = c
	return nil
}

// drop frees the container's name and ports.
func (r *Rig) drop(c *Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, port := range c.hostPorts {
		if r.ports[port] == c.spec.Name {
			delete(r.ports, port)
		}
	}
	delete(r.containers, c.spec.Name)
}

// dir returns the folder of the container's bundle.
func (c *Container) dir() string { return filepath.Join(c.rig.dir, "bundles", c.spec.Name) }

// start does the measured work: all steps of an engine that starts a container.
func (c *Container) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err := c.make(ctx)
	if err == nil {
		err = c.launch(ctx)
	}
	if err != nil {
		return err
	}
	if c.process, err = pidfd.Open(c.pid); err != nil {
		return fmt.Errorf("the container's program has ended: %w", err)
	}
	return c.awaitUp(ctx)
}

// make makes the container's file system, its network and its bundle.
func (c *Container) make(ctx context.Context) error {
	if err := os.Mkdir(c.dir(), 0o755); err != nil {
		return err
	}
	root, err := c.makeRoot()
	if err != nil {
		return err
	}
	if c.spec.Network == Bridge {
		if c.net, err = netns.New(); err != nil {
			return err
		}
		if err := c.rig.bridge.Connect(ctx, c.link()); err != nil {
			return err
		}
	}
	return c.writeBundle(root)
}

// launch makes the runtime create and start the container.
func (c *Container) launch(ctx context.Context) error {
	output := c.spec.Output
	if output == nil {
		var theirs *os.File
		var err error
		if c.stdout, theirs, err = os.Pipe(); err != nil {
			return err
		}
		defer theirs.Close()
		c.lines, output = bufio.NewReader(c.stdout), theirs
	}
	said, err := os.Create(c.errors())
	if err != nil {
		return err
	}
	defer said.Close()
	pidFile := filepath.Join(c.dir(), "pid")
	cmd := c.command(ctx, "run", "--detach", "--pid-file", pidFile, "--bundle", c.dir(), c.spec.Name)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.spec.input(), output, said
	c.created = true
	err = c.at.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(c.runtime), err)
	}
	text, err := os.ReadFile(pidFile)
	if err == nil {
		c.pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	return err
}

// command returns a call of the container's runtime.
func (c *Container) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := c.rig.command(ctx, c.runtime, append([]string{"--root", c.rig.state()}, args...)...)
	cmd.Env = append(cmd.Env, c.env...)
	return cmd
}

func (c *Container) call(ctx context.Context, args ...string) ([]byte, error) {
	return c.at.output(ctx, c.command(ctx, args...))
}

// errors is the path of the file with the error output of the runtime and the program. said returns
// its end.
func (c *Container) errors() string { return filepath.Join(c.dir(), "errors") }

func (c *Container) said() string {
	data, err := os.ReadFile(c.errors())
	if err != nil {
		return ""
	}
	return complaint(data)
}

// awaitUp waits until the program prints its ready line or listens on its port.
func (c *Container) awaitUp(ctx context.Context) error {
	if c.spec.Ready != "" && c.lines != nil {
		line, err := c.Line(ctx)
		if err == nil && line != c.spec.Ready {
			err = fmt.Errorf("the program printed %q, want %q", line, c.spec.Ready)
		}
		return err
	}
	if len(c.spec.Ports) == 0 {
		return nil
	}
	err := c.in(func() error { return c.dial(ctx, c.spec.Ports[0]) })
	if err != nil && c.ended() {
		return fmt.Errorf("the container's program has ended, and did not listen on port %d", c.spec.Ports[0])
	}
	return err
}

// dial connects to one of the container's ports as soon as its program listens.
func (c *Container) dial(ctx context.Context, port uint16) error {
	if err := dial(ctx, c.Address(port), c.ended); err != nil {
		return fmt.Errorf("port %d: %w", port, err)
	}
	return nil
}

// dial tries to connect until a program listens, or gone reports that none will.
func dial(ctx context.Context, address string, over func() bool) error {
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "tcp4", address)
		if err == nil {
			return conn.Close()
		}
		if ctx.Err() != nil || over() {
			return err
		}
		time.Sleep(pollInterval)
	}
}

// in runs fn in the network namespace of Address.
func (c *Container) in(fn func() error) error {
	switch c.spec.Network {
	case Bridge:
		return c.rig.bridged.net.Do(fn)
	case Graft, Host:
		return c.rig.host.net.Do(fn)
	}
	own, err := netns.Open(strconv.Itoa(c.pid))
	if err != nil {
		return err
	}
	defer own.Close()
	return own.Do(fn)
}

// ended tells whether the first process has ended.
func (c *Container) ended() bool {
	raw, err := c.process.SyscallConn()
	ended := false
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			ended = err == nil && n > 0
		})
	}
	return ended || err != nil
}
