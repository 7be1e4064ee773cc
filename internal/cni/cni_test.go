package cni

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// recorder runs no plugin, and notes which it was asked for.
type recorder struct {
	calls []string
	ports []object // of the last call of portmap
	fails string   // the call that fails
}

func (r *recorder) run(_ context.Context, plugin string, env []string, stdin []byte) ([]byte, error) {
	command := ""
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, "CNI_COMMAND="); ok {
			command = value
		}
	}
	call := command + " " + filepath.Base(plugin)
	r.calls = append(r.calls, call)
	var config struct {
		RuntimeConfig struct {
			PortMappings []object
		}
	}
	if err := json.Unmarshal(stdin, &config); err != nil {
		return nil, err
	}
	if filepath.Base(plugin) == "portmap" {
		r.ports = config.RuntimeConfig.PortMappings
	}
	if call == r.fails {
		return []byte(`{"msg": "no such bridge"}`), errors.New("exit status 1")
	}
	return []byte(`{"cniVersion": "1.0.0"}`), nil
}

// newNetwork is a network whose plugins are empty files.
func newNetwork(t *testing.T, r *recorder) (*Network, *netns.NS) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	dir := t.TempDir()
	for _, name := range []string{"bridge", "host-local", "portmap"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return &Network{Plugins: dir, Data: t.TempDir(), Run: r.run}, ns
}

func TestPluginsAreCalledInOrder(t *testing.T) {
	r := &recorder{}
	n, ns := newNetwork(t, r)
	for _, c := range []Container{{ID: "served", NS: ns, Ports: map[uint16]uint16{10000: 80}}, {ID: "plain", NS: ns}} {
		if err := errors.Join(n.Connect(context.Background(), c), n.Disconnect(context.Background(), c)); err != nil {
			t.Errorf("%s: %v", c.ID, err)
		}
	}
	want := []string{"ADD bridge", "ADD portmap", "DEL portmap", "DEL bridge", "ADD bridge", "DEL bridge"}
	if diff := cmp.Diff(want, r.calls); diff != "" {
		t.Errorf("calls:\n%s", diff)
	}
	if diff := cmp.Diff([]object{{"hostPort": 10000., "containerPort": 80., "protocol": "tcp"}}, r.ports); diff != "" {
		t.Errorf("ports:\n%s", diff)
	}
}

func TestErrorsOfPlugins(t *testing.T) {
	r := &recorder{fails: "ADD bridge"}
	n, ns := newNetwork(t, r)
	c := Container{ID: "one", NS: ns}
	err := n.Connect(context.Background(), c)
	if err == nil || !strings.Contains(err.Error(), "bridge") || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), "no such bridge") {
		t.Errorf("the error does not name the plugin and what it said: %v", err)
	}
	if err := n.Disconnect(context.Background(), c); err != nil {
		t.Errorf("after a failure: %v", err)
	}
}

// The error names the program that is missing, and the package that has it.
func TestFindSaysWhatIsMissing(t *testing.T) {
	old := folders
	defer func() { folders = old }()
	programs, plugins := t.TempDir(), t.TempDir()
	t.Setenv("PATH", programs)
	folders = []string{t.TempDir(), plugins}
	missing := func(pkg string) {
		t.Helper()
		dir, err := Find()
		var m *MissingError
		if !errors.As(err, &m) || m.Package != pkg || !strings.HasSuffix(m.Error(), "is missing: install the package "+pkg) {
			t.Errorf("%q, %v; want that %s is missing", dir, err, pkg)
		}
	}
	create := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	missing("iptables")
	create(filepath.Join(programs, "iptables"))
	for _, name := range []string{"bridge", "host-local", "portmap"} {
		missing("containernetworking-plugins")
		create(filepath.Join(plugins, name))
	}
	if dir, err := Find(); err != nil || dir != plugins {
		t.Errorf("%q, %v; want %s", dir, err, plugins)
	}
}
