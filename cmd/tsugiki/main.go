// Command tsugiki grafts sockets of containers onto addresses of the host, runs the
// node's agent and shows what the agent does.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// Exit statuses of tsugiki itself. tsugiki run has the status of the program that it ran.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	os.Exit(run(os.Args[1:], os.Stderr))
}

// usageError is a mistake in the command line or in the configuration file.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func run(args []string, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "tsugiki",
		Short:         "Give containers the host's network stack, under rules that the kernel enforces",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q; see tsugiki --help", args[0])}
			}
			return usageError{errors.New("the command is missing; see tsugiki --help")}
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
	// errors.Join puts newlines between errors. This message is one line.
	fmt.Fprintf(stderr, "tsugiki: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	return exitStatus(err)
}
