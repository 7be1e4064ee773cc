package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerd is one that has read a configuration.
type containerd struct {
	cri.UnimplementedRuntimeServiceServer
	loaded string
}

func (c *containerd) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	return &cri.StatusResponse{Info: map[string]string{"config": c.loaded}}, nil
}

// The readiness probe says what is to be done, by the file, what containerd has read, and whether it was
// restarted for that.
func TestKnows(t *testing.T) {
	const none = `{"containerd":{"runtimes":{"runc":{}}}}`
	const plain = `{"containerd":{"runtimes":{"tsugiki":{"runtimeType":"io.containerd.runc.v2","options":{"BinaryName":"/opt/tsugiki/bin/tsugiki-runtime"}}}}}`
	c := &containerd{}
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "c.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, c)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)

	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	record, err := json.Marshal(map[string]any{"containerd": []string{"/etc/c.toml"}, "runtimes": []string{"tsugiki"}})
	if err != nil {
		t.Fatal(err)
	}
	write("opt/tsugiki/installed.json", string(record))
	const head = "version = 2\n"
	const table = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.tsugiki]\nruntime_type = \"io.containerd.runc.v2\"\n" +
		"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.tsugiki.options]\nBinaryName = \"/opt/tsugiki/bin/tsugiki-runtime\"\n"
	f := newNodeFlags("ready")
	f.root, f.socket = dir, filepath.Join(dir, "c.sock")
	f.unit = "tsugiki-test-none.service"
	for _, tt := range []struct {
		name, file, loaded, says string
		restarted                bool
	}{
		{"no runtime is in the file", head, none, "/etc/c.toml does not have the runtimes that were added to it (tsugiki)", false},
		{"containerd has not read it", head + table, none, "containerd has not read the present tables of the runtimes tsugiki in /etc/c.toml: restart", false},
		{"containerd was restarted", head + table, none, "A restart by systemd was begun once for these tables, and is not begun again", true},
		{"another option", head + table + "SystemdCgroup = true\n", plain, "of the runtimes tsugiki in /etc/c.toml", false},
		{"containerd has it", head + table, plain, "", false},
		{"the file is gone", "version =", plain, "/etc/c.toml: toml", false},
	} {
		write("etc/c.toml", tt.file)
		c.loaded = tt.loaded
		o := f.installation()
		if tt.restarted {
			s, err := o.State()
			if err == nil {
				_, err = o.NoteRestart(s)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := f.restart(); err == nil || !strings.Contains(err.Error(), tt.says) { // it starts nothing
				t.Errorf("%s: restart: %v", tt.name, err)
			}
		}
		err := f.knows()
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.says)
		}
		if tt.restarted {
			if err := o.ForgetRestart(); err != nil {
				t.Fatal(err)
			}
		}
	}

	// A restart that systemd refuses was none: the next one may have another unit.
	write("etc/c.toml", head+table)
	c.loaded = none
	real := systemctl
	t.Cleanup(func() { systemctl = real })
	for _, refused := range []error{statusError(5), nil} {
		var said []string
		systemctl = func(args ...string) error {
			said = append(said, args...)
			return refused
		}
		err := f.restart()
		if !errors.Is(err, refused) || !slices.Equal(said, []string{"restart", f.unit}) {
			t.Errorf("systemctl gives %v: restart: %v, %q", refused, err, said)
		}
		o := f.installation()
		if s, err := o.State(); err != nil || s.Restarted != (refused == nil) {
			t.Errorf("systemctl gives %v: %+v, %v", refused, s, err)
		}
	}

	// Somebody else configures it.
	write("opt/tsugiki/installed.json", `{"files": ["bin/tsugiki"]}`)
	c.loaded = none
	if err := f.knows(); err == nil || !strings.Contains(err.Error(), "add them to its configuration") {
		t.Errorf("configured elsewhere: %v", err)
	}
	c.loaded = plain
	if err := f.knows(); err != nil {
		t.Errorf("configured elsewhere, and known: %v", err)
	}
	f.socket += ".none"
	if err := f.knows(); err == nil || !strings.Contains(err.Error(), "ask containerd at") {
		t.Errorf("nobody answers: %v", err)
	}
}
