// Command tsugiki grafts sockets of containers onto addresses of the host, runs the
// node's agent and shows what the agent does.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/internal/kernel"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/programs"
	"github.com/tsugiki/tsugiki/outsource/guest"
	"github.com/tsugiki/tsugiki/outsource/holder"
)

// Exit statuses of tsugiki itself. tsugiki run has the status of the program that it ran.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	if guest.IsChild() {
		guest.Child()
	}
	if holder.IsChild() {
		holder.Child()
	}
	os.Exit(run(os.Args[1:], os.Stderr))
}

// usageError is a mistake in the command line or in the configuration file.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func run(args []string, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "tsugiki",
		Short:         "Give containers the host's network stack, under rules that the kernel enforces",
		Version:       programs.Version(),
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
	root.AddCommand(runCommand(), agentCommand(), psCommand(), inspectCommand(), topCommand(), traceCommand(), denialsCommand(), graftCommand(), translateCommand(), chargeCommand(), forwardCommand(), dpuAgentCommand(), offloadCommand(), densityCommand(), guestCommand(),
		doctorCommand(), setupCommand(), completionCommand(), manCommand())
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return 0
	}
	err = explainPrivilege(err)
	// errors.Join puts newlines between errors. This message is one line.
	fmt.Fprintf(stderr, "tsugiki: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	return exitStatus(err)
}

// explainPrivilege replaces the error that a user other than root gets by advice: the directory of
// the agent's socket belongs to root.
func explainPrivilege(err error) error {
	uid := os.Geteuid()
	var exec *launch.ExecError
	if uid == 0 || errors.As(err, &exec) || !errors.Is(err, fs.ErrPermission) && !errors.Is(err, kernel.ErrPrivilege) {
		return err
	}
	command, _, _ := strings.Cut(err.Error(), ": ")
	return fmt.Errorf("%s: only root may do this, and the user id is %d; use sudo", command, uid)
}
