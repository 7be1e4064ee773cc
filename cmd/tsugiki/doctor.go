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
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [-j]",
		Short: "Tell what this machine has of what tsugiki needs",
		Long: `Doctor tries each feature of the kernel that tsugiki uses or could use, and looks
for what has to be installed. It prints a line for each, or a JSON array of objects
with the keys name, present, required, lost and detail: present is null where it
cannot be told, lost is what goes without it.

Nothing is left behind. Without root it tells what can be told without.
The exit status is 0 if tsugiki run would work here, and 1 if something that it
requires is missing, or cannot be told.`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{errors.New("doctor: write tsugiki doctor [-j]")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			// What is tried is to be undone.
			signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
			results, err := daemon.Examine(runDir)
			if err == nil {
				err = printResults(cmd, results, asJSON)
			}
			if err == nil {
				err = diagnosis(results)
			}
			if err != nil {
				return fmt.Errorf("doctor: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&asJSON, "json", "j", false, "print JSON")
	cmd.Flags().StringVar(&runDir, "run-dir", api.RunDir, "directory for what is known of running containers")
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

// diagnosis is what tsugiki run would fail of.
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
	return fmt.Errorf("tsugiki run would not work here; it requires, and does not have or cannot tell of: %s", strings.Join(names, ", "))
}
