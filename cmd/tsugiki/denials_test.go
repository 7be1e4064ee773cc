package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// binder binds a port as often as it reads a line, and says how that went.
const binder = `
import errno, socket, sys
print("ready", flush=True)
for line in sys.stdin:
    s = socket.socket()
    try:
        s.bind(("0.0.0.0", int(line)))
        print("bound", flush=True)
    except OSError as e:
        print(errno.errorcode[e.errno], flush=True)
`

// A bind that the host refuses is a denial, whether the container is traced or not, and a trace
// shows the errno beside the decision.
func TestDenials(t *testing.T) {
	host := testkit.NewLoopback(t)
	dir := t.TempDir()
	socket := realAgent(t, host, dir)
	if err := host.Do(func() error {
		l, err := net.Listen("tcp4", "127.0.0.1:8000")
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	run := exec.Command("tsugiki", "run", "--run-dir", filepath.Join(dir, "run"), "--name", "web-1", "-i", "0.0.0.0:8000-8001=127.0.0.1", "--", "python3", "-c", binder)
	say, hear := startIn(t, host, run)
	hear("ready")

	say("8000")
	hear("EADDRINUSE")
	denied := denialsOf(t, host, socket)
	if len(denied.Last) != 1 || denied.Last[0].Errno != "EADDRINUSE" || denied.Last[0].Syscall != "bind" || denied.Last[0].Addr != "0.0.0.0:8000" {
		t.Fatalf("%+v", denied)
	}

	trace := exec.Command("tsugiki", "trace", "--agent", socket, "-j", "web-1")
	_, next := startIn(t, host, trace)
	// The trace has begun when it shows a denial: calls before that are not in it.
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		next(`"errno":"EADDRINUSE"`)
	}()
	for waiting := true; waiting; {
		say("8000")
		hear("EADDRINUSE")
		select {
		case <-begun:
			waiting = false
		default:
		}
	}
	say("8001")
	hear("bound")
	next(`"errno":"0"`)
	if list := denialsOf(t, host, socket).Last; list[len(list)-1].Errno != "EADDRINUSE" {
		t.Errorf("success is a denial: %+v", list)
	}
}

// realAgent starts an agent that ends with the test, and returns its socket.
func realAgent(t *testing.T, host *netns.NS, dir string) string {
	t.Helper()
	config := filepath.Join(dir, "agent.toml")
	if err := os.WriteFile(config, []byte("[charge]\nenabled = false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	runDir := filepath.Join(dir, "run")
	agent := exec.Command("tsugiki", "agent", "--config", config, "--run-dir", runDir, "--state-dir", filepath.Join(dir, "state"))
	stderr, err := agent.StderrPipe()
	if err == nil {
		err = host.Do(agent.Start)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Signal(unix.SIGTERM) // it may have ended
		_ = agent.Wait()
	})
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "agent is ready") {
			go func() {
				for lines.Scan() { // so that the agent can write
				}
			}()
			return api.SocketIn(runDir)
		}
	}
	t.Fatalf("the agent has ended: %v", lines.Err())
	return ""
}

// startIn starts a program that ends with the test. say writes a line to it, and hear reads lines
// until one has a text.
func startIn(t *testing.T, host *netns.NS, c *exec.Cmd) (say, hear func(string)) {
	t.Helper()
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Do(c.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = c.Process.Signal(unix.SIGTERM) // it may have ended
		_ = c.Wait()
	})
	lines := bufio.NewScanner(stdout)
	say = func(line string) {
		t.Helper()
		if _, err := fmt.Fprintln(stdin, line); err != nil {
			t.Fatal(err)
		}
	}
	hear = func(text string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("it has ended without %q", text)
	}
	return say, hear
}

func denialsOf(t *testing.T, host *netns.NS, socket string) api.Denials {
	t.Helper()
	got := tsugiki(t, host, "denials", "--agent", socket, "-o", "json", "web-1")
	var d api.Denials
	if err := json.Unmarshal([]byte(got.stdout), &d); err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	return d
}
