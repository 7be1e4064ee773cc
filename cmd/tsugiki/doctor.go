package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/daemon"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/kernel"
)

func doctorCommand() *cobra.Command {
	var runDir string
	var asJSON, clean bool
	cmd := &cobra.Command{
		Use:   "doctor [-j | --clean]",
		Short: "List the kernel features and programs that tsugiki uses, and which of them are missing",
		Long: `Doctor tries each kernel feature that tsugiki uses, and looks for the programs that it
installs. It prints a line for each of them. -j prints a JSON array of objects with the
keys name, present, required, lost and detail. present is null if doctor cannot find out.
lost names what does not work without the feature.

Doctor removes everything that it makes for a trial. The policy programs of this version stay
pinned in /sys/fs/bpf/tsugiki, where the next start of tsugiki finds them. --clean removes
those of all versions, and does nothing else; containers go on. Without root, doctor cannot
find out about some features. The exit status is 0 if tsugiki run works here, and 1 if a required
feature is missing or unknown.`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{errors.New("doctor: write tsugiki doctor [-j | --clean]")}
			}
			if asJSON && clean {
				return usageError{errors.New("doctor: --clean prints nothing; leave out -j")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			// An interrupted trial would leave what it made.
			signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
			examine := func() error {
				results, err := daemon.Examine(runDir)
				if err == nil {
					err = printResults(cmd, results, asJSON)
				}
				if err == nil {
					err = diagnosis(results)
				}
				return err
			}
			if clean {
				examine = daemon.Clean
			}
			if err := examine(); err != nil {
				return fmt.Errorf("doctor: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&asJSON, "json", "j", false, "print JSON")
	cmd.Flags().BoolVar(&clean, "clean", false, "remove the pinned policy programs of all versions")
	cmd.Flags().StringVar(&runDir, "run-dir", api.RunDir, "directory for the state and sockets of running containers")
	return cmd
}

func printResults(cmd *cobra.Command, results []kernel.Result, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", "  ")
		return e.Encode(results)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	for _, r := range results {
		need := "optional"
		if r.Required {
			need = "required"
		}
		text := "without it: " + r.Lost
		if r.Detail != "" {
			text = strings.ReplaceAll(r.Detail, "\n", "; ") + "; " + text
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", state(r), need, r.Name, text)
	}
	return w.Flush()
}

func state(r kernel.Result) string {
	switch {
	case r.Present == nil:
		return "unknown"
	case *r.Present:
		return "present"
	}
	return "missing"
}

// diagnosis returns an error that names the required features that are missing or unknown.
func diagnosis(results []kernel.Result) error {
	var names []string
	for _, r := range results {
		if r.Required && state(r) != "present" {
			names = append(names, r.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("tsugiki run does not work here: these required features are missing or unknown: %s", strings.Join(names, ", "))
}
