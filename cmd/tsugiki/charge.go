package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/api"
)

func chargeCommand() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "charge",
		Short: "Charge containers for CPU time that others spend for them",
		Long: `Charge takes what other processes spend for a container, as loggers do, out of the
container's own CPU quota. The agent does so by itself for what it knows to work for
one; here is what it cannot know, and what has come of it.

A CONTAINER is its name or its id; a CGROUP, in its place, is the path of its cgroup
in the hierarchy of the cpu controller, and begins with "/".`,
		Example: `  tsugiki charge add web-1 1500us
  tsugiki charge attach --helper 4711 --to web-1
  tsugiki charge show`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("charge: unknown command %q; there are add, attach, detach and show", args[0])}
			}
			return usageError{errors.New("charge: a command is missing: add, attach, detach or show")}
		},
		Run: func(*cobra.Command, []string) {},
	}
	cmd.PersistentFlags().StringVar(&socket, "agent", api.DefaultSocket, "socket of the agent")
	cmd.AddCommand(chargeAdd(&socket), chargeAttach(&socket), chargeDetach(&socket), chargeShow(&socket))
	return cmd
}

func chargeAdd(socket *string) *cobra.Command {
	var source string
	cmd := &cobra.Command{
		Use:   "add CONTAINER|CGROUP DURATION",
		Short: "Charge a container once",
		Long: `Add charges a container for CPU time that was spent for it: its quota of the next
periods is lowered by as much. A DURATION has a unit, as in 1500us or 1.5ms, and is at
most an hour.`,
		Example: `  tsugiki charge add web-1 1500us
  tsugiki charge add /docker/8a4f1c 20ms --source backup`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeCharged(socket),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError{errors.New("charge add: write tsugiki charge add CONTAINER|CGROUP DURATION")}
			}
			d, err := api.ParseCharge(args[1])
			if err == nil {
				err = errors.Join(api.CheckChargeTarget(args[0]), api.CheckSource(source))
			}
			if err != nil {
				return usageError{fmt.Errorf("charge add: %w", err)}
			}
			if err := api.Dial(*socket).Charge(args[0], source, d); err != nil {
				return fmt.Errorf("charge add: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&source, "source", "", "what it is shown as spent by (default "+api.SourceDefault+")")
	return cmd
}

func chargeAttach(socket *string) *cobra.Command {
	var h api.ChargeHelper
	var helper string
	cmd := &cobra.Command{
		Use:   "attach --helper PID|CGROUP --to CONTAINER|CGROUP | --shared --helper PID",
		Short: "Charge a container for all that a process does",
		Long: `Attach charges a container from now on for all that a process spends, or all of a
cgroup, until it ends or is detached. It prints the id to detach it by, and how it is
charged:
  place  it was moved under the container's quota, where the kernel counts it; it goes
         back where it was when the container ends
  quota  what it spends is taken out of the container's quota
--by asks for one of them; otherwise it is place where that can be done.

With --shared it is a process that works for many containers: each is charged for a
part of its time, by the files that it reads and writes for it.`,
		Example: `  tsugiki charge attach --helper 4711 --to web-1 --source proxy
  tsugiki charge attach --helper /system.slice/sidecar.service --to /docker/8a4f1c
  tsugiki charge attach --shared --helper $(pidof dockerd)`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments("charge attach"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := readHelper(&h, helper); err != nil {
				return usageError{fmt.Errorf("charge attach: %w", err)}
			}
			a, err := api.Dial(*socket).AttachHelper(h)
			if err != nil {
				return fmt.Errorf("charge attach: %w", err)
			}
			line := a.ID + " by " + a.By
			if a.Reason != "" {
				line += ": " + a.Reason
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), line)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&helper, "helper", "", "process, or cgroup, that works for the container")
	flags.StringVar(&h.To, "to", "", "container, or its cgroup")
	flags.StringVar(&h.Source, "source", "", "what it is shown as spent by (default the process's name)")
	flags.StringVar(&h.By, "by", api.ByAuto, "how it is charged: auto, place or quota")
	flags.BoolVar(&h.Shared, "shared", false, "it works for many containers")
	for flag, complete := range map[string]cobra.CompletionFunc{
		"helper": cobra.NoFileCompletions, "source": cobra.NoFileCompletions,
		"to": completeCharged(socket),
		"by": cobra.FixedCompletions([]string{api.ByAuto, api.ByPlace, api.ByQuota}, cobra.ShellCompDirectiveNoFileComp),
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, complete) // there is that flag, and only once
	}
	return cmd
}

// readHelper completes and checks what the flags say.
func readHelper(h *api.ChargeHelper, helper string) error {
	switch {
	case helper == "":
		return errors.New("--helper is missing: a process's number, or a cgroup's path")
	case !h.Shared && h.To == "":
		return errors.New("--to is missing: a container, or its cgroup's path; or --shared")
	case helper[0] == '/':
		h.Helper.Group = helper
	default:
		pid, err := strconv.ParseInt(helper, 10, 32)
		if err != nil || pid < 1 {
			return fmt.Errorf("--helper %q: write a process's number, or a cgroup's path, which begins with /", helper)
		}
		h.Helper.PID = int(pid)
	}
	return h.Check()
}

func chargeDetach(socket *string) *cobra.Command {
	return &cobra.Command{
		Use:   "detach ID",
		Short: "Charge nobody any more for what a process does",
		Long: `Detach ends what attach began; charge show has the ids. A process that was moved goes
back where it was. What was charged stays charged.`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var ids []string
			if len(args) == 0 {
				all, _ := api.Dial(*socket).Charges() // none is an answer too
				for _, h := range all.Helpers {
					ids = append(ids, h.ID)
				}
			}
			return ids, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usageError{errors.New("charge detach: write tsugiki charge detach ID")}
			}
			if err := api.Dial(*socket).DetachHelper(args[0]); err != nil {
				return fmt.Errorf("charge detach: %w", err)
			}
			return nil
		},
	}
}

// completeCharged completes the name of a container that has an account.
func completeCharged(socket *string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var names []string
		if len(args) == 0 {
			all, _ := api.Dial(*socket).Charges() // none is an answer too
			for i := range all.Containers {
				names = append(names, all.Containers[i].Container)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
