package e2e

import (
	"bufio"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// bystander is a process that no container has. It says what it is told.
type bystander struct {
	*testkit.Cmd
	in  io.Writer
	out *bufio.Reader
}

func startBystander(t *testing.T, ns *testkit.Namespace) *bystander {
	t.Helper()
	c := command(t, ns, "cat")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill() // or somebody else has
		_ = c.Wait()
	})
	return &bystander{c, in, bufio.NewReader(out)}
}

// lives tells whether it still answers.
func (b *bystander) lives() bool {
	_, _ = io.WriteString(b.in, "here\n") // else there is no answer
	line, _ := b.out.ReadString('\n')
	return line == "here\n"
}

// A message with a listener may name any process. The agent kills none that is not shown to be
// the container's, whatever the token is. What it does to the named process it does before it
// answers.
func TestListenerNamesAnother(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "curl")
	testkit.Program(t, "python3")
	w := newWorld(t)
	n := startBesieged(t, w)
	for _, tt := range []struct{ name, token, what, says string }{
		{"wrong token", "x", "listener", "no container is registered by that token"},
		{"wrong token, no listener", "x", "nothing", "no seccomp listener came"},
		{"right token", "", "listener", "has no seccomp filter"},
		{"right token, no listener", "", "nothing", "no seccomp listener came"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := startBystander(t, w.c1) // not in the host's namespace: nothing else is wrong with it
			token := tt.token
			if token == "" {
				token = n.registered(t, "box", "1")
				defer n.request(t, "DELETE", "/v1/containers/box", "")
			}
			c := command(t, w.h, "python3", "testdata/attach.py", filepath.Join(n.run, "seccomp.sock"), token, tt.what, strconv.Itoa(b.Process.Pid))
			h := hold(t, c, "{")
			_ = h.Process.Kill() // it sleeps
			if !strings.Contains(h.said[0], tt.says) {
				t.Errorf("the agent answers %s, want %q", h.said[0], tt.says)
			}
			if !b.lives() {
				t.Error("a process was killed that nobody has shown to be a container's")
			}
		})
	}
	n.obey(t, variants[0].flags(w)...).release()
}
