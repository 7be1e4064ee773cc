package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// node is a machine with an agent: the host of a topology.
type node struct {
	*server
	w    *world
	dir  string // its run directory
	args []string
	http http.Client
}

// startAgent starts an agent in the host's namespace, with directories of its own
// and lines of configuration, and waits until it serves.
func startAgent(t *testing.T, w *world, config ...string) *node {
	t.Helper()
	// Not in t.TempDir: what is in it has to fit into a struct sockaddr_un.
	top, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	n := &node{w: w, dir: filepath.Join(top, "run")}
	n.http.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return n.dial("agent") },
	}
	file := filepath.Join(top, "agent.toml")
	var text string
	for _, l := range config {
		text += l + "\n"
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n.args = []string{"agent", "--config", file, "--run-dir", n.dir, "--state-dir", filepath.Join(top, "state")}
	n.again(t)
	return n
}

// again starts an agent with the directories of one that has ended.
func (n *node) again(t *testing.T) {
	t.Helper()
	n.server = start(t, command(t, n.w.h, tsugiki, n.args...))
	testkit.Eventually(t, stopLimit, func() error {
		select {
		case <-n.ended:
			return fmt.Errorf("the agent has ended: %s", n.output)
		default:
		}
		conn, err := n.dial("agent")
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// dial connects to a socket of the agent's.
func (n *node) dial(name string) (net.Conn, error) {
	return net.Dial("unix", filepath.Join(n.dir, name+".sock"))
}

// command prepares tsugiki with arguments that say which agent is meant.
func (n *node) command(t *testing.T, verb string, args ...string) *testkit.Cmd {
	t.Helper()
	return command(t, n.w.h, tsugiki, append([]string{verb, "--agent", filepath.Join(n.dir, "agent.sock")}, args...)...)
}

// obey starts a container of the agent's.
func (n *node) obey(t *testing.T, flags ...string) *obedient {
	t.Helper()
	return n.w.obey(t, n.dir, flags...)
}

// get asks the agent for something that there is.
func (n *node) get(t *testing.T, path string) []byte {
	t.Helper()
	resp, err := n.http.Get("http://tsugiki" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v: %s", path, resp.Status, err, body)
	}
	return body
}

func (n *node) getJSON(t *testing.T, path string, into any) {
	t.Helper()
	if err := json.Unmarshal(n.get(t, path), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
