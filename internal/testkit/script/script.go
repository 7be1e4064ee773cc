// Package script owns the commands that our scripts of testscript have besides its own.
//
// It is for tests of commands. It needs no privilege and no particular kernel.
package script

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// Command is a command of a script.
type Command = func(ts *testscript.TestScript, neg bool, args []string)

// Commands returns these commands:
//
//	ends STATUS COMMAND [ARG...]  run a command and compare its exit status, or the name of the
//	                              signal that ended it, such as SIGTERM
//	says stdout|stderr LINE       the last command printed this line and nothing else
//
// ends calls do with a function that runs the command: do may run it in a namespace.
func Commands(do func(run func() error) error) map[string]Command {
	return map[string]Command{
		"ends": func(ts *testscript.TestScript, neg bool, args []string) { ends(ts, do, neg, args) },
		"says": says,
	}
}

func ends(ts *testscript.TestScript, do func(func() error) error, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: ends STATUS COMMAND [ARG...]")
	}
	err := do(func() error { return ts.Exec(args[1], args[2:]...) })
	if got := Status(err); got != args[0] {
		ts.Fatalf("%s ended with %s, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}

func says(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || (args[0] != "stdout" && args[0] != "stderr") {
		ts.Fatalf("usage: says stdout|stderr LINE")
	}
	if got := ts.ReadFile(args[0]); got != args[1]+"\n" {
		ts.Fatalf("%s is\n%swant\n%s", args[0], got, args[1])
	}
}

// Status returns the exit status, or the name of the signal, with which a command ended.
func Status(err error) string {
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
