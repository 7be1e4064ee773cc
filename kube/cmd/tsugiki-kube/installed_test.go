package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/api"
)

func TestNoContainers(t *testing.T) {
	dir := t.TempDir()
	if err := noContainers(filepath.Join(dir, "none")); err != nil {
		t.Errorf("no folder: %v", err)
	}
	for name, text := range map[string]string{"1.json": `{"name": "shop.web.main"}`, "2.json": "half"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := noContainers(dir); err == nil || !strings.HasSuffix(err.Error(), "(shop.web.main, 2.json)") {
		t.Errorf("two containers: %v", err)
	}
}

// An agent that gives no answer is one.
func TestNoAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "a.sock")
	if err := noAgent(api.Dial(socket)); err != nil {
		t.Errorf("no socket: %v", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close() // as an agent that crashes
		}
	}()
	if err := noAgent(api.Dial(socket)); err == nil || !strings.Contains(err.Error(), "may still run") {
		t.Errorf("no answer: %v", err)
	}
}

func TestNoProcesses(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := noProcesses("/proc", filepath.Dir(self)+"/none/"); err != nil {
		t.Error(err)
	}
	want := fmt.Sprintf("%s as process %d", self, os.Getpid())
	if err := noProcesses("/proc", filepath.Dir(self)+"/"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// A command of the node needs no API server to say what is wrong.
func TestOnNode(t *testing.T) {
	for _, tt := range []struct {
		args   string
		status int
	}{
		{"install --what", 2},
		{"agent x", 2},
		{"uninstall --root /", 2},
		{"ready --containerd /nowhere/containerd.sock", 1},
		{"install --root /nowhere --agent-config /nowhere/agent.toml --containerd-config=", 1},
		{"on-node", 1},
	} {
		if status := run(strings.Fields(tt.args)); status != tt.status {
			t.Errorf("%s: status %d, want %d", tt.args, status, tt.status)
		}
	}
	if _, err := os.Lstat("/nowhere"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("/nowhere was made: %v", err)
	}
}
