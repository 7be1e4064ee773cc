package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/api"
)

func translateCommand() *cobra.Command {
	var where api.Where
	cmd := &cobra.Command{
		Use:   "translate",
		Short: "Show and forget the virtual IPv4 addresses of containers whose IPv4 is translated",
		Long: `Translate shows how the IPv4 of containers is translated (tsugiki run --translate), and has
a container forget the virtual addresses that are not in use.`,
		Example: `  tsugiki translate show
  tsugiki translate flush web-1`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("translate: unknown command %q; there are show and flush", args[0])}
			}
			return usageError{errors.New("translate: the command is missing: show or flush")}
		},
		Run: func(*cobra.Command, []string) {},
	}
	cmd.PersistentFlags().StringVar(&where.RunDir, "run-dir", api.RunDir, "directory for the state and sockets of running containers")
	cmd.PersistentFlags().StringVar(&where.Agent, "agent", "", "socket of the agent (default agent.sock in --run-dir)")
	cmd.AddCommand(translateShow(&where), translateFlush(&where))
	return cmd
}

func translateShow(where *api.Where) *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "show [-o FORMAT] [CONTAINER]",
		Short: "Show the virtual addresses of a container, or of all",
		Long: `Show prints for each container whose IPv4 is translated: its pool, how many virtual
addresses of it are in use, idle and free, the prefix of the network's NAT64, the
resolvers, and what was counted. Then it prints a line for each virtual address: the host,
how many sockets are connected to it, and the time to which an answer has it in use. Only
an address that is idle can become another host's. -o json and -o yaml print an array of
objects with the keys container, pool, peers, nat64, resolvers, udp, counts and mappings.`,
		Example: `  tsugiki translate show
  tsugiki translate show -j web-1`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeRunning(where),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{errors.New("translate show: write tsugiki translate show [-o FORMAT] [CONTAINER]")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := translations(*where, args)
			if err == nil {
				err = o.write(cmd.OutOrStdout(), list, func() error { return printTranslations(cmd.OutOrStdout(), list) })
			}
			if err != nil {
				return fmt.Errorf("translate show: %w", err)
			}
			return nil
		},
	}
	o.register(cmd, formatJSON, formatYAML)
	return cmd
}

func translateFlush(where *api.Where) *cobra.Command {
	return &cobra.Command{
		Use:   "flush CONTAINER",
		Short: "Forget the virtual addresses of a container that are not in use",
		Long: `Flush has a container forget the virtual addresses to which no socket of it is connected, and
which no answer has in use. A program that keeps such an address has to ask for the host's
name again.`,
		Example:               `  tsugiki translate flush web-1`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeRunning(where),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("translate flush: write tsugiki translate flush CONTAINER")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := api.Connect(*where, args[0])
			var f api.Flushed
			if err == nil {
				f, err = c.Flush()
			}
			if err != nil {
				return fmt.Errorf("translate flush: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d forgotten, %d in use\n", f.Forgotten, f.Kept)
			return err
		},
	}
}

// translations asks for a container, or for all that are translated.
func translations(where api.Where, args []string) ([]api.Translation, error) {
	if len(args) == 1 {
		c, err := api.Connect(where, args[0])
		if err != nil {
			return nil, err
		}
		t, err := c.Translation()
		return []api.Translation{t}, err
	}
	sockets, err := api.Running(where)
	if err != nil {
		return nil, err
	}
	list := []api.Translation{}
	for _, name := range slices.Sorted(maps.Keys(sockets)) {
		t, err := api.Dial(sockets[name]).Container(name).Translation()
		if errors.Is(err, api.ErrNotFound) {
			continue // it is not translated, or has ended
		}
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, nil
}

// printTranslations prints some lines about each container, and a table of its addresses.
func printTranslations(out io.Writer, list []api.Translation) error {
	for i, t := range list {
		if i > 0 {
			fmt.Fprintln(out)
		}
		nat64, udp, a := t.NAT64, "", t.Counts.Addresses
		if nat64 == "" {
			nat64 = "none"
		}
		if !t.UDP {
			udp = "; UDP is not translated"
		}
		fmt.Fprintf(out, "%s: pool %s, %d in use, %d idle, %d free; NAT64 %s; resolvers %s%s\n",
			t.Container, t.Pool, a.InUse, a.Idle, a.Free, nat64, strings.Join(t.Resolvers, ", "), udp)
		n := t.Counts.Names
		fmt.Fprintf(out, "hosts without an address: %d exhausted, %d refused; names: %d answered, %d failed, %d unanswered, %d forged\n",
			t.Counts.Exhausted, t.Counts.Refused, n.Answered, n.Failed, n.Unanswered, n.Forged)
		printRelays(out, t.Counts.Relays)
		if err := printMappings(out, t.Mappings); err != nil {
			return err
		}
	}
	return nil
}

func printMappings(out io.Writer, list []api.Mapping) error {
	if len(list) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "VIRTUAL\tHOST\tSTATE\tSOCKETS\tUNTIL")
	for _, m := range list {
		state := "idle"
		if m.InUse {
			state = "in use"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", m.V4, m.V6, state, m.Sockets, m.Until)
	}
	return w.Flush()
}

// printRelays prints what went by relays, if anything did.
func printRelays(out io.Writer, r api.Relays) {
	line := func(name string, p api.RelayedProtocol, more string) {
		if p != (api.RelayedProtocol{}) || more != "" {
			fmt.Fprintf(out, "%s: %d connections, %d refused; messages: %d rewritten, %d refused%s\n", name, p.Connections, p.Full, p.Rewritten, p.Refused, more)
		}
	}
	datagrams := ""
	if r.Datagrams+r.Lost > 0 {
		datagrams = fmt.Sprintf("; datagrams: %d relayed, %d lost", r.Datagrams, r.Lost)
	}
	line("FTP", r.FTP, "")
	line("SIP", r.SIP, datagrams)
}
