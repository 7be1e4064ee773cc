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
		Short: "Charge containers for CPU time that other processes spend for them",
		Long: `Other processes, such as loggers, spend CPU time for a container. Charge subtracts this
time from the container's own CPU quota. The agent finds shims and loggers by itself.
These commands name other helper processes to the agent, and show all accounts.

CONTAINER is the name or the id of a container. CGROUP, in place of it, is the path of
its cgroup in the hierarchy of the cpu controller, and begins with "/".`,
		Example: `  tsugiki charge add web-1 1500us
  tsugiki charge attach --helper 4711 --to web-1
  tsugiki charge show`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("charge: unknown command %q; there are add, attach, detach and show", args[0])}
			}
			return usageError{errors.New("charge: the command is missing: add, attach, detach or show")}
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
		Long: `Add charges a container for CPU time that another process has spent for it. The agent
subtracts the time from the container's quota in the next periods. DURATION has a unit,
as in 1500us or 1.5ms, and is at most 1h.`,
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
	cmd.Flags().StringVar(&source, "source", "", "name of the spender in tsugiki charge show (default "+api.SourceDefault+")")
	return cmd
}

func chargeAttach(socket *string) *cobra.Command {
	var h api.ChargeHelper
	var helper string
	cmd := &cobra.Command{
		Use:   "attach --helper PID|CGROUP --to CONTAINER|CGROUP | --shared --helper PID",
		Short: "Charge a container for all CPU time of a process or a cgroup",
		Long: `Attach charges a container for all CPU time that a helper, a process or a cgroup, spends
from now on. It ends when the helper ends or is detached. Attach prints the id of the
helper for tsugiki charge detach, and the method:
  place  the agent moved the helper under the container's quota, where the kernel counts
         it; when the container ends, the agent moves the helper back
  quota  the agent subtracts the helper's CPU time from the container's quota
--by chooses the method. The default, auto, is place where the cgroups permit this.

With --shared, the helper works for many containers. The agent divides its CPU time by
the files of containers that it reads and writes.`,
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
	flags.StringVar(&helper, "helper", "", "number of a process, or path of a cgroup, that works for the container")
	flags.StringVar(&h.To, "to", "", "name or id of the container, or path of its cgroup")
	flags.StringVar(&h.Source, "source", "", "name of the spender in tsugiki charge show (default the name of the process)")
	flags.StringVar(&h.By, "by", api.ByAuto, "method: auto, place or quota")
	flags.BoolVar(&h.Shared, "shared", false, "the helper works for many containers")
	for flag, complete := range map[string]cobra.CompletionFunc{
		"helper": cobra.NoFileCompletions, "source": cobra.NoFileCompletions,
		"to": completeCharged(socket),
		"by": cobra.FixedCompletions([]string{api.ByAuto, api.ByPlace, api.ByQuota}, cobra.ShellCompDirectiveNoFileComp),
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, complete) // the flag exists
	}
	return cmd
}

// readHelper completes and checks what the flags say.
func readHelper(h *api.ChargeHelper, helper string) error {
	switch {
	case helper == "":
		return errors.New("--helper is missing: write the number of a process, or the path of a cgroup")
	case !h.Shared && h.To == "":
		return errors.New("--to is missing: write a container or the path of its cgroup, or write --shared")
	case helper[0] == '/':
		h.Helper.Group = helper
	default:
		pid, err := strconv.ParseInt(helper, 10, 32)
		if err != nil || pid < 1 {
			return fmt.Errorf("--helper %q: write the number of a process, or the path of a cgroup, which begins with /", helper)
		}
		h.Helper.PID = int(pid)
	}
	return h.Check()
}

func chargeDetach(socket *string) *cobra.Command {
	return &cobra.Command{
		Use:   "detach ID",
		Short: "Stop charging a container for a helper",
		Long: `Detach ends what tsugiki charge attach began. tsugiki charge show prints the ids. The
agent moves the helper back to its cgroup. It does not refund CPU time that was charged.`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var ids []string
			if len(args) == 0 {
				all, _ := api.Dial(*socket).Charges() // without an agent there is nothing to complete
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
			all, _ := api.Dial(*socket).Charges() // without an agent there is nothing to complete
			for i := range all.Containers {
				names = append(names, all.Containers[i].Container)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
