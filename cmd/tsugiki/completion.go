package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/internal/netns"
)

func completionCommand() *cobra.Command {
	shells := map[string]func(root *cobra.Command) error{
		"bash": func(root *cobra.Command) error { return root.GenBashCompletionV2(root.OutOrStdout(), true) },
		"zsh":  func(root *cobra.Command) error { return root.GenZshCompletion(root.OutOrStdout()) },
		"fish": func(root *cobra.Command) error { return root.GenFishCompletion(root.OutOrStdout(), true) },
	}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a completion script for a shell",
		Long: `Completion prints a script for a shell. The script completes commands, flags, and the
names of containers and endpoints. The package and make install install it.`,
		Example: `  source <(tsugiki completion bash)
  tsugiki completion fish | source`,
		DisableFlagsInUseLine: true,
		ValidArgs:             []string{"bash", "zsh", "fish"},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || shells[args[0]] == nil {
				return usageError{errors.New("completion: write tsugiki completion bash|zsh|fish")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := shells[args[0]](cmd.Root()); err != nil {
				return fmt.Errorf("completion: %w", err)
			}
			return nil
		},
	}
}

// completeRun completes values of the flags of tsugiki run.
func completeRun(cmd *cobra.Command) {
	fixed := cobra.FixedCompletions
	nothing := cobra.NoFileCompletions
	help := func(text string) cobra.CompletionFunc {
		return fixed(cobra.AppendActiveHelp(nil, text), cobra.ShellCompDirectiveNoFileComp)
	}
	for flag, complete := range map[string]cobra.CompletionFunc{
		"mode": fixed(filter.ModeNames(), cobra.ShellCompDirectiveNoFileComp),
		// The value may be a path, too: files are completed as well.
		"netns": func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return append(namespaces(), "new"), cobra.ShellCompDirectiveDefault
		},
		"ingress": help("ADDR:PORT[-PORT][/tcp|/udp][+own][+from:PREFIX]=ENDPOINT, or =HOST[:PORT] of an address of the host"),
		"egress":  help("PREFIX[:PORT[-PORT]]=ENDPOINT, or =HOST of an address of the host"),
		"publish": help("[ADDR:]HOST:CONTAINER[/tcp|/udp]"),
		"name":    nothing, "endpoint": nothing,
		"user": nothing, "cap-add": nothing, "cap-drop": nothing,
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, complete) // the flag exists
	}
	_ = cmd.MarkFlagDirname("run-dir")
}

// namespaces returns the names that ip-netns(8) has given to network namespaces.
func namespaces() []string {
	entries, _ := os.ReadDir(netns.RunDir) // without the folder there are no names
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// completeGraft completes the arguments of a graft command: the first one by first, keys and
// their values by grammar, and "for CONTAINER" at the end.
func completeGraft(where *api.Where, first func(api.Where) []string, grammar func() map[string][]string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		const directive = cobra.ShellCompDirectiveNoFileComp
		if first != nil {
			if len(args) == 0 {
				return first(*where), directive
			}
			args = args[1:]
		}
		var keys map[string][]string
		if grammar != nil {
			keys = grammar()
		}
		last := len(args) - 1
		switch {
		case len(args)%2 == 1 && args[last] == "for":
			return containerNames(*where), directive
		case len(args)%2 == 1 && args[last] == "nameable":
			return []string{"for"}, directive
		case len(args)%2 == 1 && args[last] == "path":
			return nil, cobra.ShellCompDirectiveDefault
		case len(args)%2 == 1:
			return keys[args[last]], directive
		case len(args) >= 2 && args[last-1] == "for":
			return nil, directive
		}
		left := append(slices.Sorted(maps.Keys(keys)), "for")
		return slices.DeleteFunc(left, func(key string) bool { return slices.Contains(args, key) }), directive
	}
}

// containerNames returns the names of all running containers.
func containerNames(where api.Where) []string {
	names, _ := api.Running(where) // without an agent there is nothing to complete
	return slices.Sorted(maps.Keys(names))
}

// endpointNames returns the names of the endpoints of all running containers.
func endpointNames(where api.Where) []string {
	containers, _ := api.Running(where)
	var names []string
	for container := range containers {
		c, err := api.Connect(where, container)
		if err != nil {
			continue // the container has ended
		}
		list, _ := c.Endpoints()
		for _, e := range list {
			names = append(names, e.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// endpointKeys returns the keys of an endpoint's definition with the values to complete.
func endpointKeys() map[string][]string {
	return map[string][]string{
		"type": {"ipv4", "ipv6", "unix"}, "addr": nil, "port": {"dynamic"}, "path": nil, "netns": namespaces(), "nameable": nil,
	}
}

// completeRunning completes the name of a running container.
func completeRunning(where *api.Where) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return containerNames(*where), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeContainers completes the name of a container that the agent knows.
func completeContainers(socket *string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var names []string
		if len(args) == 0 {
			list, _ := api.Dial(*socket).Containers() // without an agent there is nothing to complete
			for _, c := range list {
				names = append(names, c.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// noName completes nothing: the user invents the name.
func noName(api.Where) []string { return nil }
