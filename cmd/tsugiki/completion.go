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
		Short: "Print a script that completes tsugiki's arguments in a shell",
		Long: `Completion prints a script for a shell, which completes commands, flags, and the names
of containers and endpoints. make install puts it where shells look for it.`,
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

// completeRun says what the flags of tsugiki run can be.
func completeRun(cmd *cobra.Command) {
	fixed := cobra.FixedCompletions
	nothing := cobra.NoFileCompletions
	help := func(text string) cobra.CompletionFunc {
		return fixed(cobra.AppendActiveHelp(nil, text), cobra.ShellCompDirectiveNoFileComp)
	}
	for flag, complete := range map[string]cobra.CompletionFunc{
		"mode": fixed(filter.ModeNames(), cobra.ShellCompDirectiveNoFileComp),
		// Also a path.
		"netns": func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return append(namespaces(), "new"), cobra.ShellCompDirectiveDefault
		},
		"ingress": help("ADDR:PORT[-PORT]=ENDPOINT, or =HOST[:PORT] of an address of the host"),
		"egress":  help("PREFIX[:PORT[-PORT]]=ENDPOINT, or =HOST of an address of the host"),
		"name":    nothing, "endpoint": nothing,
		"user": nothing, "cap-add": nothing, "cap-drop": nothing,
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, complete) // there is that flag, and only once
	}
	_ = cmd.MarkFlagDirname("run-dir")
}

// namespaces are those that ip-netns(8) has given names.
func namespaces() []string {
	entries, _ := os.ReadDir(netns.RunDir) // none is an answer too
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// completeGraft completes the words that follow an endpoint's name by what a
// command takes, and "for CONTAINER" at the end.
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
			names, _ := api.Running(*where)
			return slices.Sorted(maps.Keys(names)), directive
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

// endpointNames are those of all running containers.
func endpointNames(where api.Where) []string {
	containers, _ := api.Running(where)
	var names []string
	for container := range containers {
		c, err := api.Connect(where, container)
		if err != nil {
			continue // it has ended meanwhile
		}
		list, _ := c.Endpoints()
		for _, e := range list {
			names = append(names, e.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// endpointKeys are the words of an endpoint's definition, and what can follow them.
func endpointKeys() map[string][]string {
	return map[string][]string{
		"type": {"ipv4", "ipv6", "unix"}, "addr": nil, "port": {"dynamic"}, "path": nil, "netns": namespaces(), "nameable": nil,
	}
}

// completeContainers completes the name of a container of the agent.
func completeContainers(socket *string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var names []string
		if len(args) == 0 {
			list, _ := api.Dial(*socket).Containers() // none is an answer too
			for _, c := range list {
				names = append(names, c.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// noName is for what a user has to think of.
func noName(api.Where) []string { return nil }
