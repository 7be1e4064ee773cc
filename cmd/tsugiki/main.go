// Command tsugiki gives programs in containers the host's network, without
// handing them the host's network.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/internal/launch"
)

// Exit statuses of tsugiki itself; a program that it ran has its own.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	if launch.IsChild() {
		launch.Child()
	}
	os.Exit(run(os.Args[1:], os.Stderr))
}

// usageError is an error in how tsugiki was called.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func run(args []string, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "tsugiki",
		Short:         "Host networking for containers, without handing them the host's network",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q; see tsugiki --help", args[0])}
			}
			return usageError{errors.New("a command is missing; see tsugiki --help")}
		},
		Run: func(*cobra.Command, []string) {},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(runCommand(), agentCommand(), psCommand(), topCommand(), traceCommand(), graftCommand(), chargeCommand(), densityCommand(), doctorCommand(), completionCommand(), manCommand())
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return 0
	}
	// What went wrong on the way back is joined by newlines; this is one line.
	fmt.Fprintf(stderr, "tsugiki: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	return exitStatus(err)
}
