package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cilium/ebpf"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// startBesieged starts an agent whose log says what was wrong with what came, which
// is not a fault of its own: in JSON, which checkLog does not read.
func startBesieged(t *testing.T, w *world) *asked {
	t.Helper()
	return startAgent(t, w, "[log]", `format = "json"`)
}

// unharmed checks that an agent serves, has as many files open as before, and has
// never had much memory.
func (n *asked) unharmed(t *testing.T, files int) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if now := n.files(t); now > files {
			open, _ := testkit.OpenFiles(n.cmd.Process.Pid)
			return fmt.Errorf("it had %d files open, has %d: %v", files, now, open)
		}
		return nil
	})
	if kB := peakMemory(t, n.cmd.Process.Pid); kB > 200<<10 {
		t.Errorf("the agent has had up to %d kB of memory", kB)
	}
	o := n.obey(t, variants[0].flags(n.w)...)
	o.want(sourceAddr4, "dial a tcp %s", remoteObserver())
	o.release()
	if strings.Contains(n.log.String(), "panic") {
		t.Errorf("the agent says %s", n.log)
	}
}

func (n *asked) files(t *testing.T) int {
	t.Helper()
	open, err := testkit.OpenFiles(n.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// warm starts and ends a container, after which an agent has open what it keeps open.
func (n *asked) warm(t *testing.T) int {
	t.Helper()
	n.obey(t, variants[0].flags(n.w)...).release()
	n.get(t, "/metrics")
	// Some tables of a container go after it has ended.
	testkit.Eventually(t, func() error {
		if now := openMaps(t, n.cmd.Process.Pid)["sender_tables_i"]; now != 0 {
			return fmt.Errorf("the agent has %d tables of senders, want none", now)
		}
		return nil
	})
	return n.files(t)
}

// openMaps counts the BPF maps that a process has open, by name.
func openMaps(t *testing.T, pid int) map[string]int {
	t.Helper()
	files, err := testkit.OpenFiles(pid)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	for number, what := range files {
		if what != "anon_inode:bpf-map" {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, number))
		_, rest, found := strings.Cut(string(text), "map_id:")
		var id uint32
		if _, serr := fmt.Sscan(rest, &id); err != nil || !found || serr != nil {
			continue // closed since
		}
		m, err := ebpf.NewMapFromID(ebpf.MapID(id))
		if err != nil {
			continue // likewise
		}
		if info, err := m.Info(); err == nil {
			names[info.Name]++
		}
		m.Close()
	}
	return names
}

func TestAgentAPIHostileInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startBesieged(t, w)
	files := n.warm(t)
	const good = `{"id":"x","name":"x"}`
	for _, tt := range []struct {
		name, method, path string
		body               io.Reader
		status             int
	}{
		{"unknown field", "POST", "/v1/containers", strings.NewReader(`{"id":"x","name":"x","mtu":1}`), 400},
		{"no JSON", "POST", "/v1/containers", strings.NewReader("x"), 400},
		{"half JSON", "POST", "/v1/containers", strings.NewReader(good[:10]), 400},
		{"twice", "POST", "/v1/containers", strings.NewReader(good + good), 400},
		{"1 GB in a word", "POST", "/v1/containers", io.MultiReader(strings.NewReader(`{"id":"`), &repeat{'x', 1 << 30}), 413},
		{"1 GB of brackets", "POST", "/v1/containers", io.MultiReader(strings.NewReader(`{"annotations":`), &repeat{'[', 1 << 30}), 400},
		{"no name", "POST", "/v1/containers", strings.NewReader(`{"id":"x","rules":{"egress":["0.0.0.0/0=0.0.0.0"]}}`), 400},
		{"a path for a name", "POST", "/v1/containers", strings.NewReader(`{"id":"x","name":"../x","rules":{"egress":["0.0.0.0/0=0.0.0.0"]}}`), 400},
		{"the agent's name", "POST", "/v1/containers", strings.NewReader(`{"id":"x","name":"agent","rules":{"egress":["0.0.0.0/0=0.0.0.0"]}}`), 400},
		{"an unknown annotation", "POST", "/v1/containers", strings.NewReader(`{"id":"x","name":"x","annotations":{"tsugiki.dev/x":"y"}}`), 400},
		{"an annotation that is not allowed", "POST", "/v1/containers", strings.NewReader(`{"id":"x","name":"x","annotations":{"tsugiki.dev/mode":"auto"}}`), 403},
		{"an unknown engine", "POST", "/v1/containers", strings.NewReader(`{"id":"x","name":"x","engine":"x"}`), 400},
		{"no rules", "POST", "/v1/containers", strings.NewReader(good), 200},
		{"nobody's container", "DELETE", "/v1/containers/x", nil, 404},
		{"nobody's trace", "GET", "/v1/containers/x/trace", nil, 404},
		{"another method", "POST", "/v1/stats", nil, 405},
		{"elsewhere", "GET", "/debug/pprof/", nil, 404},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(timeout(t), tt.method, "http://tsugiki"+tt.path, tt.body)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := n.http.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); resp.StatusCode != tt.status || err != nil {
				t.Errorf("%s: %s %v, want %d", resp.Status, body, err, tt.status)
			}
		})
	}
	n.unharmed(t, files)
}

// Connections that say nothing, or little, are closed, and keep nobody out for ever.
func TestAgentAPICrowd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startBesieged(t, w)
	files := n.warm(t)
	var crowd []net.Conn
	for i := range 1000 {
		conn, err := n.dial("agent")
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer conn.Close()
		crowd = append(crowd, conn)
		if i%2 == 0 {
			if _, err := io.WriteString(conn, "GET /v1/containers HTTP/1.1\r\nX"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if now := n.files(t); now > files+300 {
		t.Errorf("it had %d files open, with the crowd %d", files, now)
	}
	succeed(t, n.command(t, "ps"))
	for i, conn := range crowd { // all are served or turned away, one after the other
		if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	n.unharmed(t, files)
}

// Other users are nobody to the agent, even if its sockets were everybody's.
func TestAgentOfOtherUsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startBesieged(t, w)
	files := n.warm(t)
	if err := os.Chmod(filepath.Dir(n.run), 0o755); err != nil {
		t.Fatal(err)
	}
	asNobody := func(args ...string) string {
		c := command(t, w.h, args[0], args[1:]...)
		c.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		r := try(t, c)
		return r.stdout + r.stderr
	}
	agent, seccomp := n.socket(), filepath.Join(n.run, "seccomp.sock")
	get := func(path string) string {
		return asNobody("curl", "-sS", "--unix-socket", agent, "http://tsugiki"+path)
	}
	for _, path := range []string{n.run, agent} {
		if out := get("/v1/stats"); !strings.Contains(out, "ouldn't connect") {
			t.Errorf("it is let in: %s", out)
		}
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/v1/stats", "/metrics", "/v1/containers/x/trace", "/v1/containers"} {
		if out := get(path); !strings.Contains(out, "user 65534 may not") {
			t.Errorf("%s: %s", path, out)
		}
	}
	if err := os.Chmod(seccomp, 0o777); err != nil {
		t.Fatal(err)
	}
	const connect = `import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(1000))`
	if out := asNobody(python(t), "-c", connect, seccomp); !strings.Contains(out, "user 65534 may not") {
		t.Errorf("as a runtime: %s", out)
	}
	n.unharmed(t, files)
}

// seccompState is what a runtime says with a listener.
func seccompState(fds, pid, token any) []byte {
	data, _ := json.Marshal(map[string]any{
		"ociVersion": "1.0.2", "fds": fds, "pid": pid, "metadata": token,
		"state": map[string]any{"ociVersion": "1.0.2", "id": "x", "status": "creating", "bundle": "/"},
	})
	return data
}

func TestListenerSocketHostileInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startBesieged(t, w)
	files := n.warm(t)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	victim := start(t, command(t, w.h, "sleep", "1000"))
	pid := victim.Process.Pid
	listener := []string{"seccompFd"}
	for _, tt := range []struct {
		name  string
		data  []byte
		files int // with each message
		times int // messages
		says  string
	}{
		{"nothing", nil, 0, 1, "unexpected EOF"},
		{"no JSON", []byte("\x00\xff{{"), 0, 1, "unexpected EOF"},
		{"half JSON", seccompState(listener, pid, "x")[:40], 1, 1, "unexpected EOF"},
		{"another JSON", []byte(`[1,2]`), 1, 1, "process state"},
		{"no file", seccompState(listener, pid, "x"), 0, 1, "no seccomp listener came"},
		{"no listener among the files", seccompState(listener, pid, "x"), 1, 1, "no seccomp listener came"},
		{"a name too many", seccompState([]string{"a", "seccompFd"}, pid, "x"), 1, 1, "no seccomp listener came"},
		{"no name", seccompState([]string{}, pid, "x"), 1, 1, "names no seccompFd"},
		{"no process", seccompState(listener, -1, "x"), 1, 1, "is no process"},
		{"many files", []byte("{"), 200, 1, ""},
		{"files again and again", []byte(" "), 8, 200, "or 8 files"},
		{"2 MB", append(append([]byte(`{"metadata":"`), bytes.Repeat([]byte("x"), 2<<20)...), `"}`...), 1, 1, "more than 1048576 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := n.dial("seccomp")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			var rights []byte
			if tt.files > 0 {
				fds := make([]int, tt.files)
				for i := range fds {
					fds[i] = int(null.Fd())
				}
				rights = unix.UnixRights(fds...)
			}
			for range tt.times {
				if len(tt.data) > 0 {
					var sent int
					if sent, _, err = conn.(*net.UnixConn).WriteMsgUnix(tt.data, rights, nil); err == nil {
						_, err = conn.Write(tt.data[sent:])
					}
				}
				if err != nil {
					break // it has heard enough
				}
			}
			_ = conn.(*net.UnixConn).CloseWrite()
			answer, _ := io.ReadAll(conn) // who sends on may find it closed
			if !strings.Contains(string(answer), tt.says) && len(answer) > 0 {
				t.Errorf("answered %.300q, want %q", answer, tt.says)
			}
			if tt.times == 1 && len(tt.data) < 1<<20 && !strings.Contains(string(answer), `"error"`) {
				t.Errorf("answered %.300q", answer)
			}
		})
	}
	select {
	case <-victim.ended:
		t.Error("a process was killed that nobody has shown to be a container's")
	default:
	}
	n.unharmed(t, files)
}
