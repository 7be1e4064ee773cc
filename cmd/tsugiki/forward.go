package main

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/forward"
)

func forwardCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "forward COMMAND",
		Short: "Show and change which packets go directly from pod to pod",
		Long: `Forward shows the node's pods that tsugiki-cni has attached, and changes which of their
packets go directly to another pod of the node instead of through the bridge or the
switch. It works in the network namespace in which it runs, and needs root. It does not
need the agent. A POD is the id of a container, the beginning of one, or the name of the
host's end of its link.`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("forward: unknown command %q; there are off, on, pair and show", args[0])}
			}
			return usageError{errors.New("forward: the command is missing: off, on, pair or show")}
		},
		Run: func(*cobra.Command, []string) {},
	}
	cmd.AddCommand(forwardShowCommand(), forwardSwitchCommand(true), forwardSwitchCommand(false), forwardPairCommand())
	return cmd
}

func forwardShowCommand() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "show [-o FORMAT]",
		Short: "List pods and pairs, and what went directly and what did not",
		Long: `Show prints a line for each pod: the host's end of its link, its container and network, its
addresses, whether direct forward is on, and how many of its packets went directly, went
the slow way and were dropped, with the reasons. Then it prints a line for each pair of pods
that has a verdict, and one for each reason. -o json and -o yaml print an object with the
keys pods, pairs and reasons.`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments("forward show"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := withForwardTable(func(t *forward.Table) error { return showForward(cmd.OutOrStdout(), t, &o) })
			if err != nil {
				return fmt.Errorf("forward show: %w", err)
			}
			return nil
		},
	}
	o.register(cmd, formatJSON, formatYAML)
	return cmd
}

// withForwardTable calls a function with the table of this network namespace.
func withForwardTable(use func(*forward.Table) error) error {
	t, err := forward.OpenExisting()
	if err != nil {
		return err
	}
	defer t.Close()
	return use(t)
}

func forwardSwitchCommand(on bool) *cobra.Command {
	name, short := "off", "Have all packets of a pod, and to it, go the slow way"
	if on {
		name, short = "on", "Let packets of a pod, and to it, go directly"
	}
	return &cobra.Command{
		Use:   name + " POD",
		Short: short,
		Long: short + `. This lasts until the pod is
removed. A flow that began the slow way stays there.`,
		DisableFlagsInUseLine: true,
		Args:                  arguments("forward "+name, "POD"),
		RunE: func(_ *cobra.Command, args []string) error {
			err := withForwardTable(func(t *forward.Table) error {
				pods, err := findPods(t, args)
				if err != nil {
					return err
				}
				return t.SetDirect(pods[0].Device, on)
			})
			if err != nil {
				return fmt.Errorf("forward %s: %w", name, err)
			}
			return nil
		},
	}
}

func forwardPairCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pair POD POD VERDICT",
		Short: "Decide how packets go between two pods",
		Long: `Pair decides how packets go between two pods, in both directions. VERDICT is

  direct   they skip the bridge or the switch, and the rules there: write this for pods
           between which everything is allowed
  slow     they go through the bridge or the switch
  default  as the network's configuration says

A policy controller that comes to forbid something between two pods writes slow before the
rule of the switch. A verdict lasts until one of the pods is removed.`,
		DisableFlagsInUseLine: true,
		Args:                  arguments("forward pair", "POD", "POD", "VERDICT"),
		RunE: func(_ *cobra.Command, args []string) error {
			verdict := forward.Verdict(args[2])
			if verdict != forward.Direct && verdict != forward.Slow && verdict != forward.Default {
				return usageError{fmt.Errorf("forward pair: unknown verdict %q; write direct, slow or default", args[2])}
			}
			err := withForwardTable(func(t *forward.Table) error {
				pods, err := findPods(t, args[:2])
				if err != nil {
					return err
				}
				return t.SetPair(pods[0].Device, pods[1].Device, verdict)
			})
			if err != nil {
				return fmt.Errorf("forward pair: %w", err)
			}
			return nil
		},
	}
}

// arguments checks how many there are; names are those of the usage.
func arguments(command string, names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		usage := "tsugiki " + command
		for _, n := range names {
			usage += " " + n
		}
		return usageError{fmt.Errorf("%s: write %s", command, usage)}
	}
}

func findPods(t *forward.Table, names []string) ([]forward.Entry, error) {
	entries, err := t.Entries()
	if err != nil {
		return nil, err
	}
	var found []forward.Entry
	for _, name := range names {
		e, err := forward.Find(entries, name)
		if err != nil {
			return nil, err
		}
		found = append(found, e)
	}
	return found, nil
}

func macText(mac [6]byte) string { return net.HardwareAddr(mac[:]).String() }
