package e2e

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// asked is an agent that is asked things over its sockets.
type asked struct {
	*daemon
	w    *world
	http http.Client
}

// startAgent starts an agent in the host's namespace, with lines of configuration.
func startAgent(t *testing.T, w *world, config ...string) *asked {
	t.Helper()
	return ask(startDaemon(t, w.h, "--config", configure(t, t.TempDir(), config...)), w)
}

// ask is an agent that is there.
func ask(d *daemon, w *world) *asked {
	n := &asked{daemon: d, w: w}
	n.http.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return n.dial("agent") },
	}
	return n
}

// dial connects to a socket of the agent's.
func (n *asked) dial(name string) (net.Conn, error) {
	return net.Dial("unix", filepath.Join(n.run, name+".sock"))
}

// command prepares tsugiki with arguments that say which agent is meant.
func (n *asked) command(t *testing.T, verb string, args ...string) *testkit.Cmd {
	t.Helper()
	return command(t, n.w.h, tsugiki, append([]string{verb, "--agent", n.socket()}, args...)...)
}

// obey starts a container of the agent's.
func (n *asked) obey(t *testing.T, flags ...string) *obedient {
	t.Helper()
	return n.w.obey(t, n.run, flags...)
}

// get asks the agent for something that there is.
func (n *asked) get(t *testing.T, path string) []byte {
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

func (n *asked) getJSON(t *testing.T, path string, into any) {
	t.Helper()
	if err := json.Unmarshal(n.get(t, path), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
