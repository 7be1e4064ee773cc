package vm

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/stream"
)

// lines is a log that a test waits for.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default: // the test has enough
	}
	return len(b), nil
}

// TestServeWithoutFiles has a VMM come while the process can open no file. The machine goes on.
func TestServeWithoutFiles(t *testing.T) {
	log := make(lines, 2)
	l, err := stream.ListenUnix(filepath.Join(t.TempDir(), "v"))
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{listener: l, ended: make(chan struct{}), container: container.New(container.Spec{Log: slog.New(slog.NewTextHandler(log, nil))}, nil)}
	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(client)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	served := make(chan error, 1)
	go func() { served <- m.Serve() }()
	if err := unix.Connect(client, &unix.SockaddrUnix{Name: l.Addr().String()}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case line := <-log:
			if !strings.Contains(line, unix.EMFILE.Error()) {
				t.Errorf("log: %s", line)
			}
		case err := <-served:
			t.Fatalf("the machine has ended: %v", err) //nolint:errorlint // it may be nil
		case <-time.After(testkit.Patience):
			t.Fatal("the VMM is accepted without a file")
		}
	}
	m.End()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
