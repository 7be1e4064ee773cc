package vm

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/holder"
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

func TestMain(m *testing.M) {
	if holder.IsChild() {
		holder.Child()
	}
	os.Exit(m.Run())
}

// TestServeWithoutFiles has a VMM come while the process can open no file. The machine goes on. A device that was
// left could not be served: it ends with the machine, and is left again if the next process goes on.
func TestServeWithoutFiles(t *testing.T) {
	for _, leave := range []bool{false, true} {
		t.Run(fmt.Sprintf("leave=%v", leave), func(t *testing.T) { serveWithoutFiles(t, leave) })
	}
}

func serveWithoutFiles(t *testing.T, leave bool) {
	kept := filepath.Join(t.TempDir(), "kept")
	left, err := holder.Start(kept)
	if err != nil {
		t.Fatal(err)
	}
	files, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(files[0])
	defer unix.Close(files[1])
	if err := left.Put(nil, files[:1]); err != nil {
		t.Fatal(err)
	}
	left.Close()
	log := make(lines, 2)
	l, err := stream.ListenUnix(filepath.Join(t.TempDir(), "v"))
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{listener: l, kept: kept, ended: make(chan struct{}), container: container.New(container.Spec{Log: slog.New(slog.NewTextHandler(log, nil))}, nil)}
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
			t.Fatalf("the machine has ended: %v", err)
		case <-time.After(testkit.Patience):
			t.Fatal("the VMM is accepted without a file")
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if leave {
		m.Leave()
	} else {
		m.End()
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	h, _, held, err := holder.Open(kept)
	if is := !errors.Is(err, holder.ErrNone); is != leave || is && err != nil {
		t.Errorf("the device that was left is there: %v, %v", is, err)
	}
	for _, file := range held {
		unix.Close(file)
	}
	if h != nil {
		if err := h.End(); err != nil {
			t.Error(err)
		}
	}
}

// TestVMMEnds has VMMs with hybrid vsock that end. Their pids are not kept: other processes may get them.
func TestVMMEnds(t *testing.T) {
	pids := make(chan int, 1)
	m := &Machine{ended: make(chan struct{}), vmm: func(pid int) { pids <- pid }}
	told := func(want int) {
		t.Helper()
		select {
		case pid := <-pids:
			if pid != want {
				t.Fatalf("told of %d, want %d", pid, want)
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("not told of %d", want)
		}
	}
	start := func() (pid int, end func()) {
		t.Helper()
		cmd := exec.Command("cat")
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		end = sync.OnceFunc(func() {
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(end)
		return cmd.Process.Pid, end
	}
	first, end := start()
	m.seen(first)
	told(first)
	m.seen(first) // another control stream
	end()
	told(0)
	m.seen(first) // a connection that nobody had accepted yet
	told(0)
	second, end := start()
	third, _ := start()
	m.seen(second)
	told(second)
	m.seen(third)
	told(third)
	end() // nobody is told
	m.End()
	m.seen(0) // as Serve does
	told(0)
	m.seen(third)
	if len(pids) > 0 || m.boots.Load() != 4 {
		t.Errorf("told of %d, and %d boots", len(pids), m.boots.Load())
	}
}
