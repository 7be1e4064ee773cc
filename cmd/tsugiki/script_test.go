package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The scripts run this test binary as the command tsugiki. tsugiki run starts itself again
// as the child of internal/launch, under a name that testscript does not know.
func TestMain(m *testing.M) {
	if launch.IsChild() {
		launch.Child()
	}
	testscript.Main(program{m}, map[string]func(){"tsugiki": main})
}

// TestScripts runs the scripts of testdata/script. Besides the commands of testscript they use:
//
//	ends STATUS COMMAND [ARG...]   run a command in a network namespace of the test, and
//	                               compare its exit status; SIGNAL is the name of a signal
//	says [stdout|stderr] TEXT      the last command printed exactly this line, and nothing else
//	agent SOCKET DIR               serve the answers in DIR, see answers
func TestScripts(t *testing.T) {
	host := testkit.NewLoopback(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setUp,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"ends":  func(ts *testscript.TestScript, neg bool, args []string) { ends(ts, host, neg, args) },
			"says":  says,
			"agent": serveAnswers,
		},
	})
}

// setUp gives a script the root of the module and the path of the command.
func setUp(e *testscript.Env) error {
	root, err := testkit.ModuleRoot()
	if err != nil {
		return err
	}
	self, err := exec.LookPath("tsugiki")
	e.Setenv("ROOT", root)
	e.Setenv("TSUGIKI", self)
	return err
}

// program is the test binary, which testscript puts into PATH as tsugiki.
type program struct{ *testing.M }

// Run links the helper programs to where tsugiki looks for them, and runs the tests.
func (p program) Run() int {
	if err := linkHelpers(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return p.M.Run()
}

func linkHelpers() error {
	self, err := exec.LookPath("tsugiki")
	if err != nil {
		return err
	}
	bin, err := testkit.Binaries()
	if err != nil {
		return err
	}
	lib := filepath.Join(filepath.Dir(self), "../lib")
	if err := os.MkdirAll(lib, 0o755); err != nil {
		return err
	}
	return os.Symlink(bin, filepath.Join(lib, "tsugiki"))
}

// ends runs a command and compares how it ends.
func ends(ts *testscript.TestScript, host *netns.NS, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: ends STATUS COMMAND [ARG...]")
	}
	err := host.Do(func() error { return ts.Exec(args[1], args[2:]...) })
	if got := statusOf(err); got != args[0] {
		ts.Fatalf("%s ended with %s, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}

// statusOf returns the exit status, or the name of the signal, with which a command ended.
func statusOf(err error) string {
	var exit *exec.ExitError
	if err == nil {
		return "0"
	}
	if !errors.As(err, &exit) {
		return err.Error()
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return unix.SignalName(status.Signal())
	}
	return strconv.Itoa(status.ExitStatus())
}

// says compares the whole output of the last command with one line.
func says(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || (args[0] != "stdout" && args[0] != "stderr") {
		ts.Fatalf("usage: says stdout|stderr TEXT")
	}
	if got := ts.ReadFile(args[0]); got != args[1]+"\n" {
		ts.Fatalf("%s is\n%swant\n%s", args[0], got, args[1])
	}
}
