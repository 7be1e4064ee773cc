package main

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/config"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/cluster"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/node"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

func TestParse(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	t.Setenv("NODE_IPS", "")
	for _, tt := range []struct {
		args string
		want grant.Node
		err  string
	}{
		{"--node n1 --node-ips 198.51.100.1", grant.Node{Name: "n1", IPv4: netip.MustParseAddr("198.51.100.1")}, ""},
		{
			"--node n1 --node-ips 2001:db8::1,198.51.100.1,198.51.100.2 --runtime-class a --runtime-class b",
			grant.Node{Name: "n1", IPv4: netip.MustParseAddr("198.51.100.1"), IPv6: netip.MustParseAddr("2001:db8::1")},
			"",
		},
		{"--node-ips 198.51.100.1", grant.Node{}, "--node is missing"},
		{"--node n1", grant.Node{}, `--node-ips "": write addresses`},
		{"--node n1 --node-ips 0.0.0.0", grant.Node{}, "write addresses"},
		{"--node n1 --node-ips fe80::1%eth0", grant.Node{}, "write addresses"},
		{"--node n1 --node-ips 198.51.100.1 x", grant.Node{}, `unexpected argument "x"`},
		{"--namespace x", grant.Node{}, "not defined: -namespace"},
	} {
		o, err := parse("node", strings.Fields(tt.args))
		switch {
		case tt.err == "" && (err != nil || o.node != tt.want):
			t.Errorf("%s: %+v, %v", tt.args, o, err)
		case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
			t.Errorf("%s: %v, want %q", tt.args, err, tt.err)
		}
	}
	if o, err := parse("cluster", []string{"--namespace", "x", "--log-level", "debug"}); err != nil || o.namespace != "x" {
		t.Errorf("cluster: %+v, %v", o, err)
	}
	if status := run([]string{"nodes"}); status != 2 {
		t.Errorf("an unknown command: status %d", status)
	}
}

// A grant does not wait for a limit of the client's.
func TestConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: c, cluster: {server: "https://192.0.2.1"}}],
		contexts: [{name: x, context: {cluster: c, user: u}}], users: [{name: u, user: {token: t}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := (&options{kubeconfig: file}).config()
	if err != nil || c.Host != "https://192.0.2.1" || c.QPS >= 0 {
		t.Errorf("config %+v, %v, want one without a limit of requests", c, err)
	}
	if _, err := (&options{kubeconfig: file + "x"}).config(); err == nil {
		t.Error("a file that is not there is no error")
	}
}

// No controller asks the API server before it starts: it may be away, which ends neither command.
func TestManagerAsksNobody(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	text := `{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}],
		contexts: [{name: x, context: {cluster: c, user: u}}], users: [{name: u, user: {token: t}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &options{kubeconfig: file, metrics: "0", probes: "0"}
	again := true // names of controllers are the process's, and the test may run twice
	skip := config.Controller{SkipNameValidation: &again}
	m, err := o.manager(ctrl.Options{Cache: node.CacheOptions("n1"), Controller: skip})
	if err == nil {
		_, err = node.Add(m, node.Options{Node: grant.Node{Name: "n1"}, Agent: api.Dial(file), Log: slog.Default()})
	}
	if err != nil {
		t.Errorf("node: %v", err)
	}
	if m, err = o.manager(ctrl.Options{Cache: cluster.CacheOptions(), Controller: skip}); err == nil {
		err = cluster.Add(m)
	}
	if err != nil {
		t.Errorf("cluster: %v", err)
	}
}

// A process that does not know yet what there is is not ready.
func TestReady(t *testing.T) {
	for _, synced := range []bool{false, true} {
		check := complete(&informertest.FakeInformers{Synced: &synced})
		if err := check(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil)); (err == nil) != synced {
			t.Errorf("caches are complete %t: %v", synced, err)
		}
	}
}

// A rule of a protocol needs a port that no server of this protocol has.
func TestFree(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// A second socket with this option could have the same port.
	reused := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }), err)
	}}
	p, err := reused.ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tcp, udp := l.Addr().(*net.TCPAddr).AddrPort(), p.LocalAddr().(*net.UDPAddr).AddrPort()
	if free(v1alpha1.TCP, tcp) || free(v1alpha1.UDP, udp) {
		t.Errorf("%s or %s is free, and this test has them", tcp, udp)
	}
	l.Close()
	p.Close()
	if !free(v1alpha1.TCP, tcp) || !free(v1alpha1.UDP, udp) {
		t.Errorf("%s or %s is taken, and nobody has it", tcp, udp)
	}
}
