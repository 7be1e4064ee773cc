package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/api"
)

func denialsCommand() *cobra.Command {
	var socket string
	var o output
	cmd := &cobra.Command{
		Use:   "denials [-o FORMAT] CONTAINER",
		Short: "Show the last calls of a container that failed by its rules",
		Long: `Denials prints a line for each of the last 64 socket calls of a container that failed with
an errno of the agent's, such as a bind to a port that another container has, and then how
many calls and packets the kernel programs refused. While the container is traced, calls
that the kernel refused are among the lines if their errno is known. A destination for
which there is no rule is not denied: the container's own network has no way to it.
tsugiki graft explain says which rule decides about an address.`,
		Example: `  tsugiki denials web-1
  tsugiki graft explain web-1 connect 10.0.0.1:5432`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeContainers(&socket),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("denials: write tsugiki denials [-o FORMAT] CONTAINER")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := api.Dial(socket).Container(args[0]).Denials()
			if err == nil {
				out := cmd.OutOrStdout()
				err = o.write(out, d, func() error { return printDenials(out, &d) })
			}
			if err != nil {
				return fmt.Errorf("denials: %w", err)
			}
			return nil
		},
	}
	addAgentFlag(cmd, &socket)
	o.register(cmd, formatJSON, formatYAML)
	return cmd
}

func printDenials(out io.Writer, d *api.Denials) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "TIME\tPID\tCALL\tFD\tADDRESS\tERRNO")
	for _, one := range d.Last {
		addr := one.Addr
		if addr == "" {
			addr = "-"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%s\t%s\n", one.Time, one.PID, one.Syscall, one.FD, addr, one.Errno)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	k := d.Kernel
	_, err := fmt.Fprintf(out, "refused by the kernel programs: connect %d, bind %d, send %d, setsockopt %d; packets leaving %d, entering %d\n",
		k.Connect, k.Bind, k.Send, k.SetSockOpt, k.Leave, k.Enter)
	return err
}
