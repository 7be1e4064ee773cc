package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/density/report"
	"github.com/tsugiki/tsugiki/density/result"
)

func densityCompare() *cobra.Command {
	var asJSON bool
	var page string
	cmd := &cobra.Command{
		Use:   "compare [-j] [-o FILE] DIR DIR",
		Short: "Compare two studies",
		Long: `Compare prints a line for each point that both studies measured: both medians with their
intervals, their ratio, and whether the second study is better or worse. Two medians do
not differ significantly if their intervals overlap. Compare does not judge a point with
fewer than three runs or with a spread that is too wide. First it prints differences of
the studies themselves, such as another machine.

-o also writes the comparison with plots as a page, which is one file.

-j prints a JSON object with the keys differ, only and differences.`,
		Example: `  tsugiki density compare /tmp/before /tmp/after
  tsugiki density compare -o /tmp/compare.html /tmp/before /tmp/after`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError{errors.New("density compare: write tsugiki density compare DIR DIR")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := compareStudies(cmd.OutOrStdout(), args[0], args[1], page, asJSON); err != nil {
				return fmt.Errorf("density compare: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&page, "output", "o", "", "also write the comparison as a page to this file")
	cmd.Flags().BoolVarP(&asJSON, "json", "j", false, "print JSON")
	return cmd
}

func compareStudies(out io.Writer, before, after, page string, asJSON bool) error {
	a, err := result.Load(before)
	if err != nil {
		return err
	}
	b, err := result.Load(after)
	if err != nil {
		return err
	}
	if page != "" {
		data, err := report.ComparisonHTML(a, b)
		if err == nil {
			err = result.WriteFile(page, data)
		}
		if err != nil {
			return fmt.Errorf("write the page: %w", err)
		}
	}
	c := report.Compare(a, b)
	if !asJSON {
		return c.Write(out)
	}
	return writeJSON(out, c)
}
