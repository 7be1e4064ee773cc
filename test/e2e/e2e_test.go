package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

var (
	// tsugiki is the command under test.
	tsugiki string
	// tmpDir holds what tests share: runDir, and the programs that they build.
	tmpDir string
	// runDir is where the containers of these tests are written down. It is
	// empty when they are gone. A test that kills tsugiki itself gives it
	// another --run-dir.
	runDir string
)

// atOnce is how many tests run at once. Tests wait for two thirds of their time: for periods of the
// product, for engines and for one another's programs. Six for each of two CPUs keep both busy.
const atOnce = "12"

func TestMain(m *testing.M) {
	if err := testkit.DefaultParallel(atOnce); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if signal.Ignored(unix.SIGHUP) { // by nohup(1): then by the programs of tests, too
		signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if err := setUp(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(tmpDir)
	status := m.Run()
	if left, err := os.ReadDir(runDir); err != nil || len(left) > 0 {
		fmt.Fprintf(os.Stderr, "containers left behind: %v %v\n", left, err)
		return 1
	}
	return status
}

func setUp() error {
	dir, err := testkit.Binaries()
	if err != nil {
		return err
	}
	tsugiki = filepath.Join(dir, "tsugiki")
	if tmpDir, err = os.MkdirTemp("", "tsugiki-e2e-"); err != nil {
		return err
	}
	runDir = filepath.Join(tmpDir, "run")
	if err := os.Mkdir(runDir, 0o700); err != nil {
		return err
	}
	return os.Chmod(tmpDir, 0o755) // programs of other users are in it
}

// programPatience is how long a program of a test may run. It is for hangs only: a program may run
// through all waits of its test.
var programPatience = 5 * testkit.Patience

// timeout is a context for what a test runs. Unlike t.Context it is still good
// in cleanups.
func timeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), programPatience)
	t.Cleanup(cancel)
	return ctx
}

// unlimited is a context for programs that run through any number of waits.
func unlimited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx
}

// command prepares a program in a namespace. It is asked to end by SIGTERM
// where others would be killed, for tsugiki passes that on and then cleans up.
func command(t *testing.T, ns *testkit.Namespace, name string, args ...string) *testkit.Cmd {
	t.Helper()
	return commandIn(timeout(t), t, ns, name, args...)
}

// commandIn is command with a limit of the caller's.
func commandIn(ctx context.Context, t *testing.T, ns *testkit.Namespace, name string, args ...string) *testkit.Cmd {
	t.Helper()
	c := ns.Command(ctx, testkit.Program(t, name), args...)
	c.SysProcAttr.Pdeathsig = unix.SIGTERM
	c.Cancel = func() error { return c.Process.Signal(unix.SIGTERM) }
	c.WaitDelay = testkit.Patience
	return c
}

// graft prepares tsugiki run with the arguments, in the namespace that is to
// be the host.
func graft(t *testing.T, host *testkit.Namespace, args ...string) *testkit.Cmd {
	t.Helper()
	return command(t, host, tsugiki, append([]string{"run", "--run-dir", runDir}, args...)...)
}

// result is what a program left.
type result struct {
	stdout, stderr string
	err            error
}

// try runs a command, however it may end. Output that the caller wants
// elsewhere is not in the result.
func try(t *testing.T, c *testkit.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if c.Stdout == nil {
		c.Stdout = &stdout
	}
	if c.Stderr == nil {
		c.Stderr = &stderr
	}
	err := c.Run()
	checkLog(t, c, stderr.String())
	return result{stdout.String(), stderr.String(), err}
}

// succeed runs a command that has to end with the status 0, and returns what
// it printed.
func succeed(t *testing.T, c *testkit.Cmd) string {
	t.Helper()
	r := try(t, c)
	if r.err != nil {
		t.Fatalf("%s: %v\nstandard output:\n%s\nstandard error:\n%s", line(c), r.err, r.stdout, r.stderr)
	}
	return r.stdout
}

// checkLog fails the test over faults that tsugiki has logged: a program may
// work in spite of them.
func checkLog(t *testing.T, c *testkit.Cmd, stderr string) {
	t.Helper()
	for l := range strings.Lines(stderr) {
		if strings.Contains(l, "level=ERROR") || strings.Contains(l, "panic:") {
			t.Errorf("%s: logged a fault:\n%s", line(c), stderr)
			return
		}
	}
}

// line is the command as it would be typed, for messages.
func line(c *testkit.Cmd) string { return strings.Join(c.Args, " ") }

// server is a program that runs until its test ends.
type server struct {
	*testkit.Cmd
	output *syncBuffer
	ended  chan struct{}
}

// port is something that a server has to listen on before it is of use.
type port struct {
	ns      *testkit.Namespace
	network string // as WaitListen has it
	number  uint16
}

// start starts a server and stops it when the test ends.
func start(t *testing.T, c *testkit.Cmd) *server {
	t.Helper()
	s := &server{Cmd: c, output: &syncBuffer{}, ended: make(chan struct{})}
	c.Stdout, c.Stderr = s.output, s.output
	if err := c.Start(); err != nil {
		t.Fatalf("start %s: %v", line(c), err)
	}
	go func() {
		_ = c.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() { s.stop(t) })
	return s
}

// serve starts a server and waits until it listens on all of the ports.
func serve(t *testing.T, c *testkit.Cmd, ports ...port) *server {
	t.Helper()
	s := start(t, c)
	ctx, cancel := context.WithTimeout(timeout(t), testkit.Patience)
	defer cancel()
	go func() {
		select {
		case <-s.ended:
			cancel() // it will never listen
		case <-ctx.Done():
		}
	}()
	for _, p := range ports {
		if err := p.ns.WaitListen(ctx, p.network, p.number); err != nil {
			t.Fatalf("%s: %v\n%s", line(c), err, s.output)
		}
	}
	return s
}

// succeeds waits until a program has ended, which has to be with the status 0.
func (s *server) succeeds(t *testing.T) {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(testkit.Patience):
		t.Fatalf("%s does not end:\n%s", line(s.Cmd), s.output)
	}
	if !s.ProcessState.Success() {
		t.Errorf("%s: %s\n%s", line(s.Cmd), s.ProcessState, s.output)
	}
}

// stop ends a server with SIGTERM. It may be called more than once.
func (s *server) stop(t *testing.T) {
	t.Helper()
	select {
	case <-s.ended:
	default:
		if err := s.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("stop %s: %v", line(s.Cmd), err)
		}
	}
	select {
	case <-s.ended:
	case <-time.After(testkit.Patience):
		_ = s.Process.Kill() // it has ended, or will
		<-s.ended
		t.Errorf("%s: still there %v after SIGTERM", line(s.Cmd), testkit.Patience)
	}
	checkLog(t, s.Cmd, s.output.String())
	if t.Failed() {
		t.Logf("%s printed:\n%s", line(s.Cmd), s.output)
	}
}

// printed stops a server, and returns all that it has printed: what is read before the end may lack
// the last lines.
func (s *server) printed(t *testing.T) string {
	t.Helper()
	s.stop(t)
	return s.output.String()
}

// exitStatus is how a command ended: its status, or -1 for one that was killed.
func exitStatus(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		return -2 // it never ran
	}
	return 0
}
