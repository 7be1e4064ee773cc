package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// kind is a way to connect a container to the network.
type kind string

const (
	bare   kind = "bare" // not at all
	bridge kind = "bridge"
	graft  kind = "graft"
)

var kinds = []kind{bare, bridge, graft}

func names(kinds []kind) []string {
	var list []string
	for _, k := range kinds {
		list = append(list, string(k))
	}
	return list
}

// Ports of the host, at which containers of a kind are reached: the first one's.
// They are below those that the kernel gives to clients.
var firstPort = map[kind]int{bridge: 10000, graft: 20000}

const (
	servedPort = 80 // in containers
	// startLimit is how long a container may take until it serves, and a call
	// that is asked for until it is made.
	startLimit = 30 * time.Second
)

// container is one that runs.
type container struct {
	id     string
	kind   kind
	port   int // of the host, at which it is reached; 0: it is not
	bundle string
	init   int       // a pidfd of its first program
	ns     *netns.NS // of a bridge's
	stdin  *os.File  // of those that are asked
	stdout *os.File
	lines  *bufio.Reader
}

func (n *node) root() string { return filepath.Join(n.dir, "root") } // of runc

// start starts container i of a kind, and measures how long it takes until it
// serves.
func (n *node) start(ctx context.Context, k kind, i int) (*container, time.Duration, error) {
	c := &container{id: fmt.Sprintf("%s-%d", k, i), kind: k}
	if first := firstPort[k]; first > 0 {
		c.port = first + i
	}
	since := time.Now()
	err := n.launch(ctx, c, "/resident", "serve", strconv.Itoa(servedPort))
	return c, time.Since(since), err
}

// startCaller starts a grafted container that makes one call again and again.
func (n *node) startCaller(ctx context.Context, call string, i int) (*container, error) {
	c := &container{id: call, kind: graft, port: firstPort[graft] + i}
	args := []string{"/resident", call, strconv.Itoa(servedPort)}
	if call == "connect" {
		args = []string{"/resident", call, testkit.RemoteAddr4.String(), strconv.Itoa(int(n.servers["connect"]))}
	}
	return c, n.launch(ctx, c, args...)
}

// launch starts a container, and waits until it says that it is ready. The files of
// one that fails are closed with the bench.
func (n *node) launch(ctx context.Context, c *container, args ...string) error {
	stdout, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirs.Close()
	c.stdout, c.lines = stdout, bufio.NewReader(stdout)
	stdin, questions, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stdin.Close()
	c.stdin = questions
	if c.kind == bridge {
		if err := n.connectBridge(ctx, c); err != nil {
			return fmt.Errorf("container %s: %w", c.id, err)
		}
	}
	if err := n.bundle(c, args, c.joinNetwork); err != nil {
		return err
	}
	pidFile := filepath.Join(c.bundle, "pid")
	cmd := n.rig.Command(ctx, n.runtimes[c.kind], "--root", n.root(),
		"run", "--detach", "--pid-file", pidFile, "--bundle", c.bundle, c.id)
	said, err := os.Create(c.errors())
	if err != nil {
		return err
	}
	defer said.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, theirs, said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("container %s: %w%s\n%s", c.id, err, c.said(), n.lastSaid())
	}
	theirs.Close() // now the container's alone
	if line, err := c.line(); err != nil {
		return err
	} else if line != "ready" {
		return fmt.Errorf("container %s says %q, want ready", c.id, line)
	}
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(string(pid))
	if err != nil {
		return err
	}
	if c.init, err = unix.PidfdOpen(number, 0); err != nil {
		return fmt.Errorf("container %s has ended: %w", c.id, err)
	}
	return nil
}

// errors is the file of what the runtime and the program complain of, said what they
// have complained of.
func (c *container) errors() string { return filepath.Join(c.bundle, "errors") }

func (c *container) said() string {
	data, err := os.ReadFile(c.errors())
	if err != nil {
		return ": " + err.Error()
	}
	return ": " + strings.TrimSpace(string(data))
}

// line reads what the container says.
func (c *container) line() (string, error) {
	if err := c.stdout.SetReadDeadline(time.Now().Add(startLimit)); err != nil {
		return "", err
	}
	line, err := c.lines.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("container %s says nothing: %w%s", c.id, err, c.said())
	}
	return strings.TrimSpace(line), nil
}

// longest asks a caller how long the longest call took since the last question.
func (c *container) longest() (time.Duration, error) {
	if _, err := c.stdin.Write([]byte{'?'}); err != nil {
		return 0, fmt.Errorf("container %s: %w", c.id, err)
	}
	line, err := c.line()
	if err != nil {
		return 0, err
	}
	var us, times int64
	if _, err := fmt.Sscan(line, &us, &times); err != nil {
		return 0, fmt.Errorf("container %s says %q: %w", c.id, line, err)
	}
	return time.Duration(us) * time.Microsecond, nil
}

// stop kills a container and removes it, as engines do, and measures how long that
// takes.
func (n *node) stop(ctx context.Context, c *container) (time.Duration, error) {
	since := time.Now()
	runtime := func(args ...string) error {
		_, err := n.output(n.rig.Command(ctx, n.runtimes[c.kind], append([]string{"--root", n.root()}, args...)...))
		return err
	}
	err := runtime("kill", c.id, "KILL")
	if err == nil {
		err = c.awaitEnd()
	}
	if err == nil {
		err = runtime("delete", c.id)
	}
	if err == nil && c.kind == bridge {
		err = n.disconnectBridge(ctx, c)
	}
	took := time.Since(since)
	err = errors.Join(err, unix.Close(c.init), c.stdin.Close(), c.stdout.Close())
	if err == nil {
		err = os.RemoveAll(c.bundle)
	}
	return took, err
}

// awaitEnd waits for the first program to end, as its parent would.
func (c *container) awaitEnd() error {
	poll := []unix.PollFd{{Fd: int32(c.init), Events: unix.POLLIN}}
	for {
		ready, err := unix.Poll(poll, int(startLimit/time.Millisecond))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the end of container %s: %w", c.id, err)
		case ready == 0:
			return fmt.Errorf("container %s was killed and has not ended", c.id)
		default:
			return nil
		}
	}
}

// checkServes connects to a container from the remote.
func (n *node) checkServes(c *container) error {
	if c.port == 0 {
		return nil
	}
	to := netip.AddrPortFrom(testkit.HostAddr4, uint16(c.port))
	err := n.top.Remote.Do(func() error {
		conn, err := net.DialTimeout("tcp4", to.String(), startLimit)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		return fmt.Errorf("container %s is not reached: %w", c.id, err)
	}
	return nil
}
