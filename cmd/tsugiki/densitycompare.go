package main

import (
	"encoding/json"
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
		Short: "Put two studies side by side",
		Long: `Compare prints what became of each point from the first study to the second: both
medians with their intervals, their ratio, and whether it is better or worse. It is
not significantly different where the intervals overlap, and nothing is said where there
were fewer than three runs, or their spread was too wide. What makes the studies hard to
compare, such as another machine, is said first.

-o writes all of that, with plots, into a page of one file.

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
	cmd.Flags().StringVarP(&page, "output", "o", "", "write a page also")
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
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(c)
}
