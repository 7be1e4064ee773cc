package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/density/report"
	"github.com/tsugiki/tsugiki/density/result"
)

func densityReport() *cobra.Command {
	return &cobra.Command{
		Use:   "report DIR",
		Short: "Write the report of a study again",
		Long: `Report reads results.json in DIR. It replaces report.html, results.csv and results.md in
DIR by those of this version of tsugiki. It measures nothing and needs no privilege.`,
		Example:               `  tsugiki density report /tmp/study`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("density report: write tsugiki density report DIR")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := result.Load(args[0])
			if err == nil {
				r.Finish()
				err = report.Write(r, args[0])
			}
			if err != nil {
				return fmt.Errorf("density report: %w", err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(args[0], report.PageFile))
			return err
		},
	}
}
