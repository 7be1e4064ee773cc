package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/api"
)

func graftSet(where *api.Where) *cobra.Command {
	var r api.Rules
	cmd := &cobra.Command{
		Use:   "set [--endpoint DEFINITION]... [-i RULE]... [-e RULE]... [for CONTAINER]",
		Short: "Replace the endpoints and rules of a container",
		Long: `Set gives a running container these endpoints and rules in the place of all that it has. They
are written as for tsugiki run. Either all of them are in force when set returns, or nothing
has changed. Established connections continue. Servers whose rule is withdrawn, or whose
endpoint has another address, take no new connections; they have to bind again.

What the calls that are trapped in the container do not allow is refused: only a new
container can have that. So are other name rules. Set prints a line for each rule that has
changed: withdrawn, restored, added, moved or changed (its sources), and the rule.`,
		Example: `  tsugiki graft set -e 0.0.0.0/0=0.0.0.0
  tsugiki graft set -i 0.0.0.0:80=198.51.100.1:8080 -e 10.0.0.0/8=198.51.100.1 for web-1`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeGraft(where, nil, nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			words, container, err := cutFor(args, 0)
			switch {
			case err != nil:
			case len(words) > 0:
				err = errors.New("write tsugiki graft set [--endpoint DEFINITION]... [-i RULE]... [-e RULE]... [for CONTAINER]")
			case len(r.Endpoints)+len(r.Ingress)+len(r.Egress) == 0:
				err = errors.New("write the rules that the container is to have, by -i and -e; it loses all others")
			}
			if err != nil {
				return usageError{fmt.Errorf("graft set: %w", err)}
			}
			return with(*where, container, "set", func(c *api.ContainerClient) error {
				changed, err := c.SetRules(r)
				if err == nil {
					printChanged(cmd.OutOrStdout(), changed)
				}
				return err
			})
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&r.Endpoints, "endpoint", nil, "definition of an endpoint; may be repeated")
	flags.StringArrayVarP(&r.Ingress, "ingress", "i", nil, "rule for sockets that programs bind; may be repeated")
	flags.StringArrayVarP(&r.Egress, "egress", "e", nil, "rule for sockets that programs connect; may be repeated")
	return cmd
}

// printChanged prints a line for each rule.
func printChanged(out io.Writer, c api.RulesChanged) {
	for _, is := range []struct {
		word  string
		rules []string
	}{{"withdrawn", c.Withdrawn}, {"restored", c.Restored}, {"added", c.Added}, {"moved", c.Moved}, {"changed", c.Changed}} {
		for _, r := range is.rules {
			fmt.Fprintln(out, is.word, r)
		}
	}
}
