package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

func densityCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "density",
		Short: "Measure what many containers on this machine cost",
		Long: `Density measures how CPU, file I/O, network and container starts change with the number
of containers on one machine, up to 300, with and without tsugiki. It repeats the
experiments of a published study (Umezawa and Yamaguchi, "A Study on Highly Consolidated
Environment Using Container") and adds more.`,
		Example: `  tsugiki density run --quick -o /tmp/quick
  tsugiki density compare /tmp/quick /tmp/other`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("density: unknown command %q; there are run, report and compare", args[0])}
			}
			return usageError{errors.New("density: the command is missing: run, report or compare")}
		},
		Run: func(*cobra.Command, []string) {},
	}
	cmd.AddCommand(densityRun(), densityReport(), densityCompare())
	return cmd
}
