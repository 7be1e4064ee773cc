package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/api"
)

// inspected is what inspect prints of a container.
type inspected struct {
	api.Container
	Endpoints []api.Endpoint     `json:"endpoints"`
	Stats     api.ContainerStats `json:"stats"`
}

func inspectCommand() *cobra.Command {
	var socket string
	o := output{format: formatJSON}
	cmd := &cobra.Command{
		Use:   "inspect [-o json|yaml] CONTAINER",
		Short: "Show all that the agent knows of a container",
		Long: `Inspect prints an object with the keys of tsugiki ps -j; endpoints, as tsugiki graft show
-j prints them; and stats, the container's counters, as GET /v1/stats of the agent returns
them.`,
		Example: `  tsugiki inspect web-1
  tsugiki inspect -o yaml web-1`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeContainers(&socket),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("inspect: write tsugiki inspect [-o json|yaml] CONTAINER")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := inspect(socket, args[0])
			if err == nil {
				err = o.write(cmd.OutOrStdout(), found, nil)
			}
			if err != nil {
				return fmt.Errorf("inspect: %w", err)
			}
			return nil
		},
	}
	addAgentFlag(cmd, &socket)
	o.register(cmd, formatJSON, formatYAML)
	return cmd
}

// inspect asks the agent for a container, its endpoints and its counters.
func inspect(socket, name string) (inspected, error) {
	var found inspected
	client := api.Dial(socket)
	container := client.Container(name)
	var err error
	if found.Container, err = container.Show(); err == nil {
		found.Endpoints, err = container.Endpoints()
	}
	var all api.Stats
	if err == nil {
		all, err = client.Stats()
	}
	for _, s := range all.Containers {
		if s.ID == found.ID {
			found.Stats = s
		}
	}
	return found, err
}
