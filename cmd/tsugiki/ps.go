package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/api"
)

func psCommand() *cobra.Command {
	var socket string
	var o output
	cmd := &cobra.Command{
		Use:   "ps [-o FORMAT]",
		Short: "List the agent's containers with their host addresses",
		Long: `Ps prints a line for each container of the agent: its name, id and state, the PID of its
first process, the mode of interception (guest: a virtual machine, with the PID of its VMM), the host's addresses and ports at which it
serves (PORTS; with +own also at the container's own address, with +from for some clients only), and the host's addresses from which it connects (EGRESS). -o wide prints
whole ids, and the times at which the containers were registered. -o json and -o yaml
print an array of objects with the keys id, name, state, pid, mode, created, ports and
egress.`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments("ps"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := api.Dial(socket).Containers()
			if err == nil {
				err = o.write(cmd.OutOrStdout(), list, func() error { return printContainers(cmd.OutOrStdout(), list, o.wide()) })
			}
			if err != nil {
				return fmt.Errorf("ps: %w", err)
			}
			return nil
		},
	}
	addAgentFlag(cmd, &socket)
	o.register(cmd, formatJSON, formatYAML, formatWide)
	return cmd
}

func addAgentFlag(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "agent", api.DefaultSocket, "socket of the agent")
}

// idShown is how much of an id the table of ps shows, in bytes.
const idShown = 12

// printContainers prints a table. A wide one has whole ids and the time of creation.
func printContainers(out io.Writer, list []api.Container, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	created := ""
	if wide {
		created = "\tCREATED"
	}
	fmt.Fprintf(w, "NAME\tID\tSTATE\tPID\tMODE%s\tPORTS\tEGRESS\n", created)
	for _, c := range list {
		id := c.ID
		if wide {
			created = "\t" + c.Created
		} else {
			id = id[:min(len(id), idShown)]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s%s\t%s\t%s\n",
			c.Name, id, c.State, c.PID, c.Mode, created, strings.Join(c.Ports, ", "), strings.Join(c.Egress, ", "))
	}
	return w.Flush()
}
