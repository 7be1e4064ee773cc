package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// asWrapper makes the test binary run as tsugiki-runtime.
const asWrapper = "OCI_TEST_WRAPPER"

func TestMain(m *testing.M) {
	if os.Getenv(asWrapper) != "" {
		os.Exit(Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// rig has a bundle with busybox, runc with directories of its own, and an agent. Its temp is where
// the wrapper makes temporary files.
type rig struct {
	t      *testing.T
	agent  *testAgent
	bundle string
	root   string
	temp   string
	id     string
}

func newRig(t *testing.T, command ...string) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	busybox, _ := testkit.Program(t, "busybox"), testkit.Program(t, "runc")
	r := &rig{t: t, agent: startAgent(t), bundle: t.TempDir(), root: t.TempDir(), temp: t.TempDir()}
	r.id = fmt.Sprintf("oci-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	bin := filepath.Join(r.bundle, "rootfs/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(busybox)
	if err == nil {
		err = os.WriteFile(filepath.Join(bin, "busybox"), data, 0o755)
	}
	for _, name := range []string{"sh", "cat", "ls", "env", "sleep", "nc", "unshare", "true", "false"} {
		if err == nil {
			err = os.Symlink("busybox", filepath.Join(bin, name))
		}
	}
	if err == nil {
		cmd := exec.Command("runc", "spec")
		cmd.Dir = r.bundle
		err = cmd.Run()
	}
	if err != nil {
		t.Fatal(err)
	}
	profile, err := os.ReadFile("../intercept/filter/testdata/docker.json")
	if err != nil {
		t.Fatal(err)
	}
	r.edit(func(s *specs.Spec) {
		s.Process.Terminal, s.Process.Args, s.Root.Readonly = false, command, true
		s.Annotations = map[string]string{"tsugiki.dev/name": "box", "tsugiki.dev/egress": "0.0.0.0/0=x"}
		if err := json.Unmarshal(profile, &s.Linux.Seccomp); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { _, _ = r.run("delete", "--force", r.id) })
	return r
}

func (r *rig) config() string {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.bundle, configFile))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(data)
}

func (r *rig) edit(f func(*specs.Spec)) {
	r.t.Helper()
	var s specs.Spec
	if err := json.Unmarshal([]byte(r.config()), &s); err != nil {
		r.t.Fatal(err)
	}
	f(&s)
	data, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(filepath.Join(r.bundle, configFile), data, 0o600)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{"--root", r.root}, args...)...)
	cmd.Dir = r.bundle
	cmd.Env = append(os.Environ(), asWrapper+"=1", "TMPDIR="+r.temp, "TSUGIKI_AGENT="+filepath.Join(r.agent.dir, "agent.sock"))
	return cmd
}

// run runs the wrapper and returns its output and exit status.
func (r *rig) run(args ...string) (string, int) {
	r.t.Helper()
	cmd := r.command(args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); cmd.ProcessState == nil {
		r.t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

func (r *rig) check(want int, out string, status int) string {
	r.t.Helper()
	if status != want {
		r.t.Fatalf("status %d, want %d:\n%s", status, want, out)
	}
	return out
}

// checkGone checks that nothing of a container is left.
func (r *rig) checkGone(config string) {
	r.t.Helper()
	if names := r.agent.names(); names != "" {
		r.t.Errorf("still registered: %s", names)
	}
	if r.config() != config {
		r.t.Error("config.json is not what it was")
	}
	left, _ := filepath.Glob(filepath.Join(r.agent.dir, "runtime", "*"))
	more, _ := filepath.Glob(filepath.Join(r.bundle, "*tsugiki*"))
	if left = append(left, more...); len(left) > 0 {
		r.t.Errorf("left behind: %v", left)
	}
}

// The engine's profile stays in force, and the agent gets our trapped calls.
func TestRunComposed(t *testing.T) {
	for mode, seccompMode := range map[string]string{"auto": "auto", "seccomp": "seccomp", "preload": "preload", "unconfined": "auto"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, "sh", "-c", "unshare -U true && echo unshared; nc -w 1 127.0.0.1 9; exit 7")
			r.agent.change(func() { r.agent.answer.Filter.Mode = seccompMode })
			if mode == "unconfined" {
				r.edit(func(s *specs.Spec) { s.Linux.Seccomp = nil })
			}
			config := r.config()
			out, status := r.run("run", "--bundle", r.bundle, r.id)
			r.check(7, out, status)
			if strings.Contains(out, "unshared") != (mode == "unconfined") {
				t.Errorf("unshare(2), which Docker's profile refuses:\n%s", out)
			}
			asked := r.agent.asks(unix.SYS_SOCKET)
			if (asked > 0) != (mode != "preload") { // no library is loaded, so no call is trapped
				t.Errorf("socket(2) was asked about %d times:\n%s", asked, out)
			}
			if len(r.agent.states) != 1 || r.agent.states[0].Metadata != "secret" || r.agent.states[0].State.ID != r.id {
				t.Errorf("states: %+v", r.agent.states)
			}
			r.checkGone(config)
		})
	}
}

// A container with containerd's sequence of commands, and added processes.
func TestCreateExecDelete(t *testing.T) {
	r := newRig(t, "sh", "-c", "echo $LD_PRELOAD; ls /dev/tsugiki; sleep 1000")
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "marker"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r.agent.change(func() { r.agent.answer.Library = folder })
	config := r.config()
	// The container's output comes through the files that the wrapper was given.
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cmd := r.command("create", "--bundle", r.bundle, r.id)
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	if r.agent.names() != "box" {
		t.Errorf("registered: %q", r.agent.names())
	}
	out, status := r.run("start", r.id)
	r.check(0, out, status)
	buf := make([]byte, 1000)
	for text := ""; !strings.Contains(text, "marker"); {
		n, err := read.Read(buf)
		if text += string(buf[:n]); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if strings.Contains(text, "marker") && !strings.HasPrefix(text, "/dev/tsugiki/preload/$LIB/libtsugiki.so\n") {
			t.Errorf("the container says %s", text)
		}
	}

	before := r.agent.asks(unix.SYS_SOCKET)
	process := filepath.Join(t.TempDir(), "process.json")
	// Both streams use one file: runc copies two streams in any order.
	text := `{"cwd":"/","args":["sh","-c","echo $LD_PRELOAD; nc -w 1 127.0.0.1 9 2>&1"],"env":["PATH=/bin"],"user":{"uid":0,"gid":0}}`
	if err := os.WriteFile(process, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _ = r.run("exec", "--process", process, r.id)
	if !strings.HasPrefix(out, "/dev/tsugiki/preload/$LIB/libtsugiki.so\n") || r.agent.asks(unix.SYS_SOCKET) == before {
		t.Errorf("exec: asked %d times, then %d: %s", before, r.agent.asks(unix.SYS_SOCKET), out)
	}
	if left, err := filepath.Glob(filepath.Join(r.temp, "tsugiki-process-*")); err != nil || left != nil {
		t.Errorf("left behind: %v", left)
	}
	out, status = r.run("exec", r.id, "sh", "-c", "echo $LD_PRELOAD; exit 3")
	if r.check(3, out, status); !strings.HasPrefix(out, "/dev/tsugiki/") {
		t.Errorf("exec: %s", out)
	}
	out, status = r.run("exec", "--cap", "CAP_NET_ADMIN", r.id, "true")
	if status != 1 || !strings.Contains(out, "CAP_NET_ADMIN") {
		t.Errorf("exec --cap: %d, %s", status, out)
	}

	// A second create and a delete of a running container do no harm.
	out, status = r.run("create", "--bundle", r.bundle, r.id)
	if status == 0 || r.agent.names() != "box" {
		t.Errorf("made again: %d, %s, registered: %q", status, out, r.agent.names())
	}
	out, status = r.run("delete", r.id)
	if status == 0 || r.agent.names() != "box" {
		t.Errorf("deleted while it runs: %d, %s, registered: %q", status, out, r.agent.names())
	}
	out, status = r.run("delete", "--force", r.id)
	r.check(0, out, status)
	r.checkGone(config)
}

func TestRunUngrafted(t *testing.T) {
	r := newRig(t, "sh", "-c", "nc -w 1 127.0.0.1 9; echo pid $$; exit 5")
	r.agent.change(func() { r.agent.answer.Graft = false })
	config := r.config()
	out, status := r.run("run", r.id)
	r.check(5, out, status)
	if !strings.Contains(out, "pid 1") || r.agent.asks(unix.SYS_SOCKET) > 0 {
		t.Errorf("asked %d times: %s", r.agent.asks(unix.SYS_SOCKET), out)
	}
	r.checkGone(config)
}

// A refused container is reported on standard error and in the log, and leaves nothing.
func TestRunRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(r *rig)
		want   string
	}{
		"no agent": {func(r *rig) { os.Remove(filepath.Join(r.agent.dir, "agent.sock")) }, "tsugiki agent is not running at "},
		"the agent": {func(r *rig) {
			r.agent.change(func() { r.agent.refuse = "port 80 of 198.51.100.1 is another container's" })
		}, "port 80 of 198.51.100.1 is another container's"},
		"CAP_NET_ADMIN": {func(r *rig) {
			r.edit(func(s *specs.Spec) {
				s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, "CAP_NET_ADMIN")
			})
		}, "CAP_NET_ADMIN"},
		"host network": {func(r *rig) {
			r.edit(func(s *specs.Spec) { s.Linux.Namespaces[1] = s.Linux.Namespaces[0] })
		}, "host's network namespace"},
		"another listener": {func(r *rig) {
			r.edit(func(s *specs.Spec) { s.Linux.Seccomp.ListenerPath = "/x" })
		}, "listener"},
	} {
		for _, format := range []string{"json", "text"} {
			t.Run(name+" "+format, func(t *testing.T) {
				r := newRig(t, "true")
				tt.change(r)
				config := r.config()
				log := filepath.Join(t.TempDir(), "log")
				out, status := r.run("--log", log, "--log-format", format, "create", "--bundle", r.bundle, r.id)
				if status != 1 || !strings.HasPrefix(out, "tsugiki: ") || strings.Count(out, "\n") != 1 || !strings.Contains(out, tt.want) {
					t.Errorf("status %d, %q, want %q", status, out, tt.want)
				}
				said, err := os.ReadFile(log)
				if err != nil {
					t.Fatal(err)
				}
				line := map[string]string{}
				if format == "json" {
					if err := json.Unmarshal(said, &line); err != nil || line["level"] != "error" {
						t.Fatalf("%s: %v", said, err)
					}
					said = []byte(line["msg"])
				}
				if !strings.Contains(string(said), tt.want) {
					t.Errorf("the log says %s", said)
				}
				r.checkGone(config)
			})
		}
	}
}

// A failing runtime leaves nothing registered. The wrapper returns its status and passes signals
// on.
func TestRuntimeFails(t *testing.T) {
	r := newRig(t, "/nonexistent")
	config := r.config()
	out, status := r.run("create", "--bundle", r.bundle, r.id)
	if status != 1 || !strings.Contains(out, "/nonexistent") {
		t.Errorf("status %d: %s", status, out)
	}
	r.checkGone(config)

	r = newRig(t, "sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 1; done")
	config = r.config()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cmd := r.command("run", "--bundle", r.bundle, r.id)
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	buf := make([]byte, 100)
	if n, err := read.Read(buf); err != nil || string(buf[:n]) != "ready\n" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 9 {
		t.Errorf("status %d after SIGTERM, want 9", got)
	}
	r.checkGone(config)
}

// A wrapper that is killed at any moment leaves a bundle from which the container can be created
// again.
func TestKilledWrapper(t *testing.T) {
	r := newRig(t, "true")
	config := r.config()
	st := &state{Name: "box", Bundle: r.bundle, path: (&Wrapper{socket: filepath.Join(r.agent.dir, "agent.sock")}).statePath(command{root: r.root, id: r.id})}
	edited := []byte(`{"edited":true}`)
	for name, reached := range map[string]func() error{
		"state written": func() error { st.Edited = hash(edited); return st.save() },
		"linked": func() error {
			st.Edited = hash(edited)
			return errors.Join(st.save(), os.Link(filepath.Join(r.bundle, configFile), filepath.Join(r.bundle, originalFile)))
		},
		"edited": func() error {
			st.Edited = hash(edited)
			return errors.Join(st.save(), replaceConfig(r.bundle, edited))
		},
	} {
		if err := reached(); err != nil {
			t.Fatal(err)
		}
		out, status := r.run("run", "--bundle", r.bundle, r.id)
		if status != 0 {
			t.Errorf("%s: status %d: %s", name, status, out)
		}
		r.checkGone(config)
	}
}

// The container gets all files without close-on-exec, as without the wrapper.
func TestFilesArePassedOn(t *testing.T) {
	r := newRig(t, "cat", "/proc/self/fd/3")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if _, err := write.WriteString("passed on"); err != nil {
		t.Fatal(err)
	}
	write.Close()
	cmd := r.command("run", "--preserve-fds", "1", "--bundle", r.bundle, r.id)
	cmd.ExtraFiles = []*os.File{read}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "passed on" {
		t.Errorf("%q, %v", out, err)
	}
}
