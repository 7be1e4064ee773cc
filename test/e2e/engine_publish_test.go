package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// TestEnginePublishes has servers at the container's address on docker's bridge: another container
// reaches them by name, docker's own -p leads there, and rules lead from the host's address. Without
// +own, docker run -p is refused.
func TestEnginePublishes(t *testing.T) {
	t.Parallel()
	n := newNode(t, engineCase{engine: "docker"})
	container := func(name, word string, args ...string) engines.Container {
		return engines.Container{
			Name: name, Runtime: "tsugiki", Args: args, Publish: "9090:80",
			Annotations: map[string]string{"tsugiki.dev/ingress": fmt.Sprintf("0.0.0.0:80%s=%s:%d", word, hostAddr4, servedPort)},
			Flags:       []string{"--volume", static(t, "serve") + ":/usr/bin/serve:ro"},
		}
	}
	if said := n.refused(t, container("moved", "", engines.Nginx...)); !strings.Contains(said, "docker publishes port 80/tcp") || !strings.Contains(said, "+own") {
		t.Errorf("the engine says %q", said)
	}
	taken := container("taken", "+own", engines.Nginx...)
	taken.Publish = fmt.Sprintf("%d:80", servedPort)
	if err := n.Run(taken); err == nil {
		n.endsWithout(t, taken.Name) // Docker 29 publishes the port after it has created the container
	} else if !strings.Contains(err.Error(), fmt.Sprintf("TCP port %d of %s is taken on the host", servedPort, hostAddr4)) {
		t.Errorf("the engine says %v", err)
	}
	_ = n.Remove(taken.Name) // some engines keep what has not started
	n.waitForgotten(t, taken.Name)
	for name, args := range map[string][]string{
		"nginx": engines.Nginx,                                        // waits by epoll, in two processes
		"httpd": {"busybox", "httpd", "-f", "-p", "80", "-h", "/srv"}, // waits in accept(2)
		"go":    {"serve", "tcp4://0.0.0.0:80"},                       // is static, and waits by epoll
	} {
		t.Run(name, func(t *testing.T) { n.publishes(t, container("web", "+own", args...), name == "go") })
	}
}

// endsWithout waits until nginx has ended without the port that the engine has taken.
func (n *node) endsWithout(t *testing.T, name string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		runs, err := n.Running(name)
		if runs {
			return fmt.Errorf("%s runs", name)
		}
		return err
	})
	if said, err := n.docker(t, "logs", name).CombinedOutput(); err != nil || !strings.Contains(string(said), "Address already in use") {
		t.Errorf("%s says %q, %v", name, said, err)
	}
}

// publishes runs a server and asks it from another container and from the remote. Some servers tell
// who has asked.
func (n *node) publishes(t *testing.T, c engines.Container, tells bool) {
	n.run(t, c)
	defer n.remove(t, c.Name)
	outside := fmt.Sprintf("http://%s:%d/", hostAddr4, servedPort)
	waitOK(t, n.srv, outside)
	if listed := n.known(t, c.Name); !strings.Contains(listed, fmt.Sprintf("%s:%d->0.0.0.0:80+own", hostAddr4, servedPort)) {
		t.Errorf("tsugiki ps:\n%s", listed)
	}
	neighbour := engines.Container{Name: "neighbour", Flags: []string{"--link", c.Name}}
	n.run(t, neighbour)
	defer func() {
		if err := n.Remove(neighbour.Name); err != nil {
			t.Error(err)
		}
	}()
	inside, err := n.IP(neighbour.Name)
	if err != nil {
		t.Fatal(err)
	}
	want := func(peer string) string {
		if tells {
			return peer + "\n"
		}
		return "hello\n"
	}
	for range 3 {
		if got := curl(t, n.srv, outside); got != want(remoteAddr4) {
			t.Errorf("the remote gets %q", got)
		}
		if got := curl(t, n.srv, fmt.Sprintf("http://%s:9090/", hostAddr4)); got != want(remoteAddr4) {
			t.Errorf("the remote gets by docker's -p %q", got)
		}
		if got := n.exec(t, neighbour.Name, "wget", "-q", "-O", "-", "http://"+c.Name+"/"); got != want(inside) {
			t.Errorf("another container gets %q, want %q", got, want(inside))
		}
	}
}

// A pod's server with +own is reached at the host's address, and at the pod's own, as Services and
// the kubelet's probes ask it: from another pod and from the node.
func TestPodPublishes(t *testing.T) {
	t.Parallel()
	n := newNode(t, engineCase{engine: "cri"})
	n.run(t, engines.Container{
		Name: "web", Runtime: "tsugiki", Args: engines.Nginx,
		Annotations: map[string]string{"tsugiki.dev/ingress": fmt.Sprintf("0.0.0.0:80+own=%s:%d", hostAddr4, servedPort)},
	})
	n.run(t, engines.Container{Name: "neighbour", Args: []string{"sleep", "infinity"}})
	waitOK(t, n.srv, fmt.Sprintf("http://%s:%d/", hostAddr4, servedPort))
	if listed := n.known(t, "web"); !strings.Contains(listed, fmt.Sprintf("%s:%d->0.0.0.0:80+own", hostAddr4, servedPort)) {
		t.Errorf("tsugiki ps:\n%s", listed)
	}
	ip, err := n.IP("web")
	if err != nil {
		t.Fatal(err)
	}
	own := "http://" + ip + "/"
	for range 3 {
		if got := curl(t, n.h, own); got != "hello\n" {
			t.Errorf("the node gets %q", got)
		}
		if got := n.exec(t, "neighbour", "wget", "-q", "-O", "-", own); got != "hello\n" {
			t.Errorf("another pod gets %q", got)
		}
	}
	n.remove(t, "web")
	if err := n.Remove("neighbour"); err != nil {
		t.Error(err)
	}
}
