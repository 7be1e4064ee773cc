package main

import (
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/daemon"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/forward/offload"
	"github.com/tsugiki/tsugiki/internal/kernel"
)

func doctorCommand() *cobra.Command {
	var runDir, switchConfig string
	var o output
	var verbose, clean bool
	cmd := &cobra.Command{
		Use:   "doctor [-v | -o FORMAT | --clean]",
		Short: "List the kernel features and programs that tsugiki uses, and which of them are missing",
		Long: `Doctor tries each kernel feature that tsugiki uses, and looks for the programs that it
installs. It prints a line for each of them that is missing, or about which it cannot
find out, and a last line that says whether tsugiki run works here. -v prints all of them.
-o json and -o yaml print an array of objects with the keys name, present, required, lost
and detail. present is null if doctor cannot find out. lost names what does not work
without the feature.

On a host with Open vSwitch, or with a configuration of tsugiki offload, doctor also looks at
the switch: at the DPU's health, its controller, and a representor for each VF.

Doctor removes everything that it makes for a trial. The policy programs of this version stay
pinned in /sys/fs/bpf/tsugiki, where the next start of tsugiki finds them. --clean removes
those of all versions, and does nothing else; containers go on. Without root, doctor cannot
find out about some features. The exit status is 0 if tsugiki run works here, and 1 if a required
feature is missing or unknown.`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{errors.New("doctor: write tsugiki doctor [-v | -o FORMAT | --clean]")}
			}
			if !o.isTable() && clean {
				return usageError{errors.New("doctor: --clean prints nothing; leave out -o")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			// An interrupted trial would leave what it made.
			signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
			out := cmd.OutOrStdout()
			examine := func() error {
				results, err := daemon.Examine(runDir)
				if err == nil {
					var switches []kernel.Result
					switches, err = kernel.Examine(offload.Features(switchConfig))
					results = append(results, switches...)
				}
				if err == nil {
					err = o.write(out, results, func() error { return printResults(out, results, verbose || o.wide()) })
				}
				if err == nil {
					err = diagnosis(results)
				}
				if err == nil && o.isTable() {
					_, err = fmt.Fprintln(out, verdict(results))
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
	o.register(cmd, formatJSON, formatYAML, formatWide)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print what is present, too, as -o wide")
	cmd.Flags().BoolVar(&clean, "clean", false, "remove the pinned policy programs of all versions")
	cmd.Flags().StringVar(&runDir, "run-dir", api.RunDir, "directory for the state and sockets of running containers")
	cmd.Flags().StringVar(&switchConfig, "offload-config", offload.DefaultConfig, "configuration of tsugiki offload; if it exists, its DPU is examined")
	return cmd
}

// printResults prints a line for each feature: for all, or for those that are not present.
func printResults(out io.Writer, results []kernel.Result, all bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, r := range results {
		if !all && state(r) == "present" {
			continue
		}
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

// verdict is the last line where all required features are present.
func verdict(results []kernel.Result) string {
	missing := 0
	for _, r := range results {
		if state(r) != "present" {
			missing++
		}
	}
	switch missing {
	case 0:
		return fmt.Sprintf("tsugiki run works here: all %d features are present", len(results))
	case 1:
		return fmt.Sprintf("tsugiki run works here: 1 optional feature of %d is not present", len(results))
	}
	return fmt.Sprintf("tsugiki run works here: %d optional features of %d are not present", missing, len(results))
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
