package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/api"
)

func psCommand() *cobra.Command {
	var socket string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ps [-j]",
		Short: "List the agent's containers with their host addresses",
		Long: `Ps prints a line for each container of the agent: its name, id and state, the PID of its
first process, the mode of interception, the host's addresses and ports at which it
serves (PORTS), and the host's addresses from which it connects (EGRESS). -j prints a
JSON array of objects with the keys id, name, state, pid, mode, created, ports and
egress.`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments("ps"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := api.Dial(socket).Containers()
			if err == nil && asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				err = e.Encode(list)
			} else if err == nil {
				err = printContainers(cmd.OutOrStdout(), list)
			}
			if err != nil {
				return fmt.Errorf("ps: %w", err)
			}
			return nil
		},
	}
	addAgentFlag(cmd, &socket)
	cmd.Flags().BoolVarP(&asJSON, "json", "j", false, "print JSON")
	return cmd
}

func addAgentFlag(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "agent", api.DefaultSocket, "socket of the agent")
}

func printContainers(out io.Writer, list []api.Container) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tID\tSTATE\tPID\tMODE\tPORTS\tEGRESS")
	for _, c := range list {
		fmt.Fprintf(w, "%s\t%.12s\t%s\t%d\t%s\t%s\t%s\n",
			c.Name, c.ID, c.State, c.PID, c.Mode, strings.Join(c.Ports, ", "), strings.Join(c.Egress, ", "))
	}
	return w.Flush()
}
