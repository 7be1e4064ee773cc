package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/api"
)

// A name is one process's until it is given back, and what a killed one has left is removed.
func TestLockName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	for _, name := range []string{"", "-a", "a/b", "agent", "seccomp", strings.Repeat("x", api.NameMax+1)} {
		if _, err := lockName(dir, name); !errors.Is(err, api.ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	first, err := lockName(dir, "a")
	if err == nil {
		err = first.record(leftovers{PID: 42, Cgroup: "/sys/fs/cgroup/nothing/here"})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockName(dir, "a"); err == nil || !strings.Contains(err.Error(), `the name "a" is in use by process 42`) {
		t.Errorf("taken twice: %v", err)
	}
	if err := Sweep(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a.json")); err != nil {
		t.Errorf("the name of one that lives: %v", err)
	}
	if err := first.file.Close(); err != nil { // as if it were killed
		t.Fatal(err)
	}
	socket := api.ContainerSocket(dir, "a")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := lockName(dir, "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of the killed one: %v", err)
	}
	if err := second.release(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "killed.json"), []byte(`{"pid":1,"cgroup":"/sys/fs/cgroup/nothing/here"}`), 0o600),
		os.WriteFile(filepath.Join(dir, "killed.sock"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "half.json"), []byte(`{"pid"`), 0o600),
		os.WriteFile(filepath.Join(dir, "agent.lock"), nil, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(dir); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "agent.lock" {
		t.Errorf("%v is left, %v", left, err)
	}
	if err := Sweep(filepath.Join(dir, "nothing")); err != nil {
		t.Error(err)
	}
}

// The cgroup is written down once, whatever else is saved.
func TestSave(t *testing.T) {
	name, err := lockName(t.TempDir(), "a")
	if err != nil {
		t.Fatal(err)
	}
	a := &Alone{name: name}
	for range 2 {
		if err := a.Save(container.State{Cgroup: "/g", Endpoints: []string{"x"}}); err != nil {
			t.Fatal(err)
		}
	}
	if l := readLeftovers(mustOpen(t, name.file.Name())); l == nil || l.Cgroup != "/g" || l.PID != os.Getpid() {
		t.Errorf("%+v is written down", l)
	}
	name.file.Close()
	if err := a.Save(container.State{Cgroup: "/g"}); err != nil {
		t.Errorf("nothing was to be written: %v", err)
	}
	if err := a.Save(container.State{Cgroup: "/other"}); err == nil || !strings.Contains(err.Error(), "write down container") {
		t.Errorf("what cannot be written: %v", err)
	}
}

func mustOpen(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Nothing is made for a program that is not there or cannot have what it is given.
func TestStartRefuses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		change func(*Program)
		says   string
	}{
		"no program":           {func(p *Program) { p.Command = []string{"/nothing/here"} }, "no such file"},
		"no namespace":         {func(p *Program) { p.Netns = "/nothing/here" }, "no such file"},
		"the host's namespace": {func(p *Program) { p.Netns = "/proc/self/ns/net" }, "network namespace /proc/self/ns/net is the host's"},
		"a name that is none":  {func(p *Program) { p.Name = "a/b" }, "bad container name"},
	} {
		p := Program{Name: "x", RunDir: dir, Command: []string{"true"}, Log: slog.New(slog.DiscardHandler)}
		tt.change(&p)
		if _, err := Start(p); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("%s: %v is left, %v", name, left, err)
		}
	}
}

// The listener goes to the daemon with the state that an OCI runtime would send, and its answer is
// the result.
func TestHandListener(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "seccomp.sock")
	if err := handListener(socket, "t", os.Stdin, 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a daemon: %v", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for answer, says := range map[string]string{"{}\n": "", `{"error":"not yours"}`: "not yours", "": io.ErrUnexpectedEOF.Error(), "x": "invalid character"} {
		got := make(chan specs.ContainerProcessState, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			var state specs.ContainerProcessState
			data, _ := io.ReadAll(conn)
			_ = json.Unmarshal(data, &state)
			got <- state
			_, _ = io.WriteString(conn, answer)
		}()
		err := handListener(socket, "the token", os.Stdin, 7)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("after %q: %v", answer, err)
		}
		if s := <-got; s.Metadata != "the token" || s.Pid != 7 || len(s.Fds) != 1 || s.Fds[0] != specs.SeccompFdName {
			t.Errorf("%+v was sent", s)
		}
	}
}

// The last decisions are awaited from a daemon that has removed the container, but not from another
// one when this one ends.
func TestCloseFollows(t *testing.T) {
	for _, ends := range []bool{false, true} {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "agent.sock"))
		if err != nil {
			t.Fatal(err)
		}
		removed := make(chan struct{})
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/containers/c/trace", func(w http.ResponseWriter, _ *http.Request) {
			select {
			case <-removed:
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			default:
			}
			_ = http.NewResponseController(w).Flush() // the trace begins
			<-removed
			_, _ = io.WriteString(w, `{"level":"WARN","msg":"the last"}`+"\n")
			if ends {
				panic(http.ErrAbortHandler)
			}
		})
		mux.HandleFunc("DELETE /v1/containers/c", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			close(removed)
		})
		server := &http.Server{Handler: mux}
		go func() { _ = server.Serve(l) }() // until server.Close
		var log bytes.Buffer
		j := &Joined{client: api.Dial(l.Addr().String()), name: "c", id: "id"}
		if err := j.follow(slog.NewTextHandler(&log, nil)); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		select {
		case <-j.followed:
			if !ends && !strings.Contains(log.String(), "the last") {
				t.Errorf("it says %q", &log)
			}
		default:
			t.Error("it is still followed")
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestWait(t *testing.T) {
	for script, check := range map[string]func(unix.WaitStatus) bool{
		"exit 7":          func(s unix.WaitStatus) bool { return s.ExitStatus() == 7 },
		"kill -9 $$":      func(s unix.WaitStatus) bool { return s.Signal() == unix.SIGKILL },
		"exec sleep 1000": func(s unix.WaitStatus) bool { return s.Signal() == unix.SIGUSR1 },
	} {
		cmd := exec.Command("sh", "-c", script)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		signals := make(chan os.Signal, 1)
		if strings.HasPrefix(script, "exec") {
			signals <- unix.SIGUSR1 // it is passed on
		}
		if status, err := wait(cmd.Process.Pid, signals); err != nil || !check(status) {
			t.Errorf("%s: %v, %v", script, status, err)
		}
	}
}

func TestAgentAt(t *testing.T) {
	dir := t.TempDir()
	if at := AgentAt(dir); at != "" {
		t.Errorf("no daemon is at %s", at)
	}
	if err := os.WriteFile(api.SocketIn(dir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if at := AgentAt(dir); at != api.SocketIn(dir) {
		t.Errorf("one that was killed is at %q", at)
	}
}
