package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/policy"
)

const explainUsage = "write tsugiki graft explain CONTAINER [connect|bind ADDR:PORT[/tcp|/udp]]"

func graftExplain(where *api.Where) *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "explain [-o FORMAT] CONTAINER [connect|bind ADDR:PORT[/tcp|/udp]]",
		Short: "Say which rule of a container decides about an address, and why",
		Long: `Explain says what becomes of a socket that a program of a running container connects or
binds to an address: the rule that decides, its endpoint, the result, and why this rule
decides, or why none does. Without an address,
explain prints what each rule does, in the order in which rules are compared. Rules whose
endpoint was deleted are not in force, and not shown. -o json and -o yaml print objects
with the keys call, address, rule, endpoint, result and why.

tsugiki run --dry-run prints the same before a start.`,
		Example: `  tsugiki graft explain web-1
  tsugiki graft explain web-1 connect 10.0.0.1:5432
  tsugiki graft explain web-1 bind [::]:53/udp`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeExplain(where),
		RunE: func(cmd *cobra.Command, args []string) error {
			question, err := parseQuestion(args)
			if err != nil {
				return usageError{fmt.Errorf("graft explain: %w", err)}
			}
			return with(*where, args[0], "explain", func(c *api.ContainerClient) error {
				list, err := c.Endpoints()
				if err != nil {
					return err
				}
				r, err := rules.OfEndpoints(list)
				if err != nil {
					return err
				}
				return explain(cmd.OutOrStdout(), &o, &r, question)
			})
		},
	}
	o.register(cmd, formatJSON, formatYAML)
	return cmd
}

// question is a call about which explain is asked; the zero value stands for all rules.
type question struct {
	call     string
	protocol policy.Protocol
	addr     netip.AddrPort
}

func parseQuestion(args []string) (question, error) {
	if len(args) == 1 {
		return question{}, nil
	}
	if len(args) != 3 || (args[1] != "connect" && args[1] != "bind") {
		return question{}, errors.New(explainUsage)
	}
	text, protocol := policy.CutProtocol(args[2])
	addr, err := netip.ParseAddrPort(text)
	if err != nil || addr.Addr().Zone() != "" {
		return question{}, fmt.Errorf("%q is no ADDR:PORT, IPv6 in brackets; %s", args[2], explainUsage)
	}
	return question{args[1], protocol, addr}, nil
}

// explain prints the answer to a question.
func explain(out io.Writer, o *output, r *rules.Rules, q question) error {
	if q.call == "" {
		list, err := r.Explain()
		if err != nil {
			return err
		}
		return o.write(out, list, func() error { return printVerdicts(out, list) })
	}
	ask := r.ExplainConnect
	if q.call == "bind" {
		ask = r.ExplainBind
	}
	v, err := ask(q.protocol, q.addr)
	if err != nil {
		return err
	}
	return o.write(out, v, func() error { return printVerdict(out, v) })
}

// printVerdict prints a paragraph about one call.
func printVerdict(out io.Writer, v rules.Verdict) error {
	rule := "none"
	if v.Rule != "" {
		rule = v.Rule
	}
	_, err := fmt.Fprintf(out, "%s %s: %s\nrule: %s\nwhy: %s\n", v.Call, v.Address, v.Result, rule, v.Why)
	return err
}

// printVerdicts prints a line for each rule.
func printVerdicts(out io.Writer, list []rules.Verdict) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "CALL\tADDRESS\tRULE\tRESULT")
	for _, v := range list {
		rule := v.Rule
		if rule == "" {
			rule = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", v.Call, v.Address, rule, v.Result)
	}
	return w.Flush()
}

// completeExplain completes the name of a container, and the call.
func completeExplain(where *api.Where) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return containerNames(*where), cobra.ShellCompDirectiveNoFileComp
		case 1:
			return []string{"bind", "connect"}, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
