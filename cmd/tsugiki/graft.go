package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
)

func graftCommand() *cobra.Command {
	var where api.Where
	cmd := &cobra.Command{
		Use:   "graft",
		Short: "Change and show the endpoints and rules of a running container, and explain its rules",
		Long: `Graft adds, deletes and shows endpoints. The rules of a container name its endpoints.
Set replaces endpoints and rules. Explain says which rule decides about an address.

"for CONTAINER" may be omitted if exactly one container is running. Established
connections continue when their endpoint is deleted. The endpoint of a rule with a host
address is e-1 for the first -e and i-1 for the first -i; that of name rules is names.`,
		Example: `  tsugiki run --name web-1 -e 0.0.0.0/0=0.0.0.0 -- sleep 600 &
  tsugiki graft show
  tsugiki graft del e-1
  tsugiki graft add e-1 type ipv4 addr 198.51.100.7 port dynamic
  tsugiki graft add db type unix path /run/db.sock for web-1`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("graft: unknown command %q; there are add, del, set, show and explain", args[0])}
			}
			return usageError{errors.New("graft: the command is missing: add, del, set, show or explain")}
		},
		Run: func(*cobra.Command, []string) {},
	}
	cmd.PersistentFlags().StringVar(&where.RunDir, "run-dir", api.RunDir, "directory for the state and sockets of running containers")
	cmd.PersistentFlags().StringVar(&where.Agent, "agent", "", "socket of the agent (default agent.sock in --run-dir)")
	cmd.AddCommand(graftAdd(&where), graftDel(&where), graftSet(&where), graftShow(&where), graftExplain(&where))
	return cmd
}

func graftAdd(where *api.Where) *cobra.Command {
	return &cobra.Command{
		Use:   "add NAME type TYPE ... [for CONTAINER]",
		Short: "Add an endpoint to a container",
		Long: `Add gives a running container a new endpoint:
  NAME type ipv4|ipv6 addr ADDR port PORT|FIRST-LAST|dynamic [netns PID|NAME] [nameable] [for CONTAINER]
  NAME type unix path PATH [netns PID|NAME] [nameable] [for CONTAINER]
Rules that name the endpoint apply to sockets that are bound or connected after that. The
endpoint's type and ports must fit these rules, and the host must have its address.`,
		Example: `  tsugiki graft add e-1 type ipv4 addr 198.51.100.7 port dynamic
  tsugiki graft add web type ipv6 addr 2001:db8::7 port 80 for web-1`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeGraft(where, noName, endpointKeys),
		RunE: func(_ *cobra.Command, args []string) error {
			words, container, err := cutFor(args, 1)
			if err != nil {
				return usageError{fmt.Errorf("graft add: %w", err)}
			}
			ep, err := endpoint.Parse(strings.Join(words, " "))
			if err != nil {
				return usageError{fmt.Errorf("graft add: %w", err)}
			}
			return with(*where, container, "add", func(c *api.ContainerClient) error { return c.Add(ep.Name, rules.DefinitionOf(ep)) })
		},
	}
}

func graftDel(where *api.Where) *cobra.Command {
	return &cobra.Command{
		Use:   "del NAME [for CONTAINER]",
		Short: "Delete an endpoint of a container",
		Long: `Del deletes an endpoint of a running container. Rules that name the endpoint do not apply
until an endpoint of that name is added. Without another rule, sockets that are bound or
connected after that stay in the container's network namespace.`,
		Example: `  tsugiki graft del e-1
  tsugiki graft del e-1 for web-1`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeGraft(where, endpointNames, nil),
		RunE: func(_ *cobra.Command, args []string) error {
			words, container, err := cutFor(args, 1)
			if err == nil && len(words) != 1 {
				err = errors.New("write tsugiki graft del NAME [for CONTAINER]")
			}
			if err != nil {
				return usageError{fmt.Errorf("graft del: %w", err)}
			}
			return with(*where, container, "del", func(c *api.ContainerClient) error { return c.Delete(words[0]) })
		},
	}
}

func graftShow(where *api.Where) *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "show [-o FORMAT] [for CONTAINER]",
		Short: "Show the endpoints of a container",
		Long: `Show prints the endpoints of a running container, sorted by name. Each line is what
tsugiki graft add accepts. -o wide adds the rules that name the endpoint. -o json and
-o yaml print an array of objects with the keys container, name, type, addr, port, path,
netns, nameable and rules.`,
		Example: `  tsugiki graft show
  tsugiki graft show -o wide for web-1`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeGraft(where, nil, nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			words, container, err := cutFor(args, 0)
			if err == nil && len(words) > 0 {
				err = errors.New("write tsugiki graft show [-o FORMAT] [for CONTAINER]")
			}
			if err != nil {
				return usageError{fmt.Errorf("graft show: %w", err)}
			}
			return with(*where, container, "show", func(c *api.ContainerClient) error {
				list, err := c.Endpoints()
				if err != nil {
					return err
				}
				return o.write(cmd.OutOrStdout(), list, func() error { return printEndpoints(cmd.OutOrStdout(), list, o.wide()) })
			})
		},
	}
	o.register(cmd, formatJSON, formatYAML, formatWide)
	return cmd
}

// printEndpoints prints a line for each endpoint. A wide one has the endpoint's rules.
func printEndpoints(out io.Writer, list []api.Endpoint, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, e := range list {
		ep, err := rules.ParseDefinition(e.Name, e.Definition)
		if err != nil {
			return err
		}
		line := ep.String()
		if wide {
			line += "\t" + strings.Join(e.Rules, " ")
		}
		fmt.Fprintln(w, line)
	}
	return w.Flush()
}

// with calls fn with a connection to a container, and says in its error which verb failed.
func with(where api.Where, container, verb string, fn func(*api.ContainerClient) error) error {
	c, err := api.Connect(where, container)
	if err == nil {
		err = fn(c)
	}
	if err != nil {
		return fmt.Errorf("graft %s: %w", verb, err)
	}
	return nil
}

// cutFor splits "for CONTAINER" off the end of the arguments. The first words stand alone, and
// pairs of a key and a value follow: so the value "for" is told from the key.
func cutFor(args []string, first int) (words []string, container string, err error) {
	words = strings.Fields(strings.Join(args, " "))
	switch n := len(words); {
	case n > first && (n-first)%2 == 1 && words[n-1] == "for":
		return nil, "", errors.New(`"for" needs the name of a container`)
	case n >= first+2 && (n-first)%2 == 0 && words[n-2] == "for":
		return words[:n-2], words[n-1], nil
	}
	return words, "", nil
}
