package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// What a program has that is not a socket is as env(1) would leave it.

// plain is a container without rules of its own.
func plain(t *testing.T, w *world, args ...string) *testkit.Cmd {
	t.Helper()
	return variant{egress: everything}.run(t, w, args...)
}

func TestStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	c := plain(t, w, "--", "sh", "-c", "cat; echo done >&2")
	c.Stdin = bytes.NewReader(data)
	r := try(t, c)
	if r.err != nil || r.stdout != string(data) || r.stderr != "done\n" {
		t.Errorf("%v, %d bytes of %d, standard error %q", r.err, len(r.stdout), len(data), r.stderr)
	}
	// A pipe whose reader goes away is the program's to notice.
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c = plain(t, w, "--", "sh", "-c", "while :; do echo y || exit; done")
	c.Stdout, c.Stderr = write, io.Discard
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	if _, err := io.ReadFull(read, make([]byte, 10)); err != nil {
		t.Error(err)
	}
	read.Close()
	if sig := signalOf(c.Wait()); sig != unix.SIGPIPE {
		t.Errorf("ended by %v, want SIGPIPE", sig)
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	const script = `pwd -P; echo "$0 $1 $2"; id -u; umask; ulimit -n; exec cat /proc/self/environ`
	args := []string{"sh", "-c", script, "zero", "a b", ""}
	runIn := func(c *testkit.Cmd) string {
		c.Dir = dir
		c.Env = []string{"PATH=" + os.Getenv("PATH"), "TSUGIKI_TEST=a b\nc", "EMPTY="}
		return succeed(t, c)
	}
	// exec.Cmd adds PWD for Dir.
	bare := runIn(command(t, w.h, args[0], args[1:]...))
	preload := regexp.MustCompile("LD_PRELOAD=[^\x00]*libtsugiki.so\x00")
	for mode, preloads := range map[string]int{"seccomp": 0, "auto": 1} {
		got := runIn(plain(t, w, append([]string{"--mode", mode, "--"}, args...)...))
		if preload.ReplaceAllString(got, "") != bare || len(preload.FindAllString(got, -1)) != preloads {
			t.Errorf("mode %s: printed\n%q, without tsugiki\n%q", mode, got, bare)
		}
	}
	if !strings.HasPrefix(bare, dir+"\n") || !strings.Contains(bare, "\x00EMPTY=") {
		t.Errorf("printed %q without tsugiki", bare)
	}
}

// TestOpenFiles checks that a program gets no files but those that its caller
// means it to have.
func TestOpenFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list := func(c *testkit.Cmd) string {
		c.ExtraFiles = []*os.File{f}
		c.Stdin = f
		// The directory that is being listed is one of them.
		return succeed(t, c)
	}
	bare := list(command(t, w.h, "ls", "/proc/self/fd"))
	got := list(plain(t, w, "--", "ls", "/proc/self/fd"))
	if got != bare || !strings.Contains(got, "\n3\n") {
		t.Errorf("has the files %q, without tsugiki %q", got, bare)
	}
}

func TestUser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := observe(t, w.srv)
	args := []string{"--", "sh", "-c", fmt.Sprintf("id -un; id -G; curl -sS http://%s:%d/", remoteAddr4, observerPort)}
	want := "nobody\n65534\n" + sourceAddr4 + "\n"
	if out := succeed(t, plain(t, w, append([]string{"--user", "nobody"}, args...)...)); out != want {
		t.Errorf("printed %q, want %q", out, want)
	}
	if seen := o.take(); !slices.Equal(seen, []string{sourceAddr4}) {
		t.Errorf("the remote saw %q", seen)
	}
	// A port below 1024 on the host is the rule's to give, not the user's.
	for _, v := range variants {
		serve(t, v.run(t, w, "--user", "nobody", "--endpoint", "in type ipv4 addr 198.51.100.1 port 80", "-i", "0.0.0.0:8080=in",
			"--", static(t, "serve"), "tcp4://:8080"), port{w.h, "tcp4", 80}).stop(t)
	}
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	script := func(text string) string {
		path := filepath.Join(t.TempDir(), "script")
		if err := testkit.WriteExecutable(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, test := range []struct {
		name string
		args []string
		want int
	}{
		{"zero", []string{"true"}, 0},
		{"one", []string{"false"}, 1},
		{"other", []string{"sh", "-c", "exit 42"}, 42},
		{"largest", []string{"sh", "-c", "exit 255"}, 255},
		{"not-found", []string{"/nonexistent/program"}, 127},
		{"not-in-path", []string{"no-such-program-anywhere"}, 127},
		{"not-executable", []string{"/etc/passwd"}, 126},
		{"a-directory", []string{"/"}, 126},
		{"no-interpreter", []string{script("#!/nonexistent/interpreter\n")}, 127},
	} {
		t.Run(test.name, func(t *testing.T) {
			bare := try(t, command(t, w.h, "env", test.args...))
			r := try(t, plain(t, w, append([]string{"--"}, test.args...)...))
			if got := exitStatus(r.err); got != test.want || got != exitStatus(bare.err) {
				t.Errorf("status %d, want %d, env(1) has %d: %s", got, test.want, exitStatus(bare.err), r.stderr)
			}
			want := `\A\z`
			if test.want == 126 || test.want == 127 {
				want = `\Atsugiki: run: execute ` + regexp.QuoteMeta(test.args[0]) + `: [a-z ]+\n\z`
			}
			if !regexp.MustCompile(want).MatchString(r.stderr) {
				t.Errorf("printed %q, want %s", r.stderr, want)
			}
		})
	}
}

func TestDeathBySignal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, sig := range []syscall.Signal{unix.SIGKILL, unix.SIGSEGV, unix.SIGTERM, unix.SIGUSR1, unix.SIGPIPE, unix.SIGABRT, unix.SIGINT} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			c := plain(t, w, "--", "sh", "-c", fmt.Sprintf("ulimit -c 0; kill -%d $$; sleep 5", sig))
			if got := signalOf(try(t, c).err); got != sig {
				t.Errorf("ended by %v, want %v", got, sig)
			}
		})
	}
}

// TestForwardedSignals sends to tsugiki what is meant for the program.
func TestForwardedSignals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			name := strings.TrimPrefix(unix.SignalName(sig), "SIG")
			script := fmt.Sprintf("trap 'echo got; exit 7' %s; echo ready; while :; do sleep 0.01; done", name)
			s := start(t, plain(t, w, "--", "sh", "-c", script))
			waitOutput(t, s, "ready\n")
			if err := s.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			waitOutput(t, s, "got\n")
			if status := exitStatus(s.Wait()); status != 7 {
				t.Errorf("status %d, want 7", status)
			}
		})
	}
}

// TestSignalAtOnce sends a signal as soon as the program can be seen to run.
func TestSignalAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 10 {
		c := plain(t, w, "--", "sh", "-c", "trap 'exit 7' USR1; echo; while :; do sleep 0.01; done")
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if err := c.Process.Signal(unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		late := time.AfterFunc(testkit.Patience, func() { _ = c.Process.Signal(unix.SIGTERM) })
		err = c.Wait()
		late.Stop()
		if status := exitStatus(err); status != 7 {
			t.Fatalf("status %d (%v), want 7", status, err)
		}
	}
}

// TestStop checks that a program that stops is seen to, and goes on.
func TestStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := start(t, plain(t, w, "--", "sh", "-c", "kill -STOP $$; echo went on; exit 3"))
	testkit.Eventually(t, func() error {
		if state(s.Process.Pid) != 'T' {
			return errors.New("tsugiki has not stopped")
		}
		return nil
	})
	if err := s.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	waitOutput(t, s, "went on\n")
	if status := exitStatus(s.Wait()); status != 3 {
		t.Errorf("status %d, want 3", status)
	}
}

// TestChildrenEnd checks that what a program leaves running ends with it.
func TestChildrenEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	out := succeed(t, plain(t, w, "--", "sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!"))
	// Who reaps it may take its time.
	if s := state(atoi(t, out)); s != 0 {
		t.Errorf("the program's child is still there, in state %c", s)
	}
}

// signalOf is the signal that ended a command, or 0.
func signalOf(err error) syscall.Signal {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
		return exit.Sys().(syscall.WaitStatus).Signal()
	}
	return 0
}

func waitOutput(t *testing.T, s *server, want string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if out := s.output.String(); !strings.Contains(out, want) {
			return fmt.Errorf("%s printed %q, not yet %q", line(s.Cmd), out, want)
		}
		return nil
	})
}
