package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/script"
)

// The scripts run this test binary as the command tsugiki.
func TestMain(m *testing.M) {
	testscript.Main(program{m}, map[string]func(){"tsugiki": main})
}

// TestScripts runs the scripts of testdata/script in a network namespace of the test. Besides
// the commands of testscript and of package script they use:
//
//	agent SOCKET DIR   serve the answers in DIR, see answers
func TestScripts(t *testing.T) {
	host := testkit.NewLoopback(t)
	commands := script.Commands(host.Do)
	commands["agent"] = serveAnswers
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setUp,
		Cmds:                commands,
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
