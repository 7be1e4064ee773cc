package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
)

func traceCommand() *cobra.Command {
	var socket string
	var packets bool
	var o output
	cmd := &cobra.Command{
		Use:   "trace [-o json] [--packets] CONTAINER",
		Short: "Print the decisions about a container's socket calls, or about a pod's packets, as they are made",
		Long: `Trace prints a line for each decision about a socket call of a container, until the
container ends or trace is interrupted. A line has the system call, the process, the
address, and the endpoint onto which the socket was grafted ("-" is none). A line
"answered" has the errno with which the agent has answered a call; 0 is success. -o json
prints a JSON object per line, with the keys time, level, msg, container and pid, and, where they
are known, syscall, fd, addr, endpoint and others. The key lost stands for so many lines
that were not read in time.

Where the kernel programs alone decide about connects and sends, a line has the socket's
cookie instead of fd, and the protocol, where the call leads on the host, and its errno.
Of equal datagrams of a socket only the first is printed. In other containers, all socket
calls are trapped while the container is traced. This slows them down.

With --packets, CONTAINER is a pod that tsugiki-cni has attached, as in tsugiki forward show. A
line has a packet that the pod has sent, whether it went directly to another pod, the slow way
or was dropped, and the reason. This needs root and no agent, and works in the network namespace
in which it runs.`,
		Example: `  tsugiki trace web-1
  tsugiki trace -o json web-1 | jq 'select(.syscall == "connect") | .addr'
  tsugiki trace --packets -o json 0f3a | jq 'select(.msg == "slow") | .reason'`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeContainers(&socket),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("trace: write tsugiki trace [-o json] [--packets] CONTAINER")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			follow := func() error { return trace(socket, args[0], !o.isTable(), cmd.OutOrStdout()) }
			if packets {
				follow = func() error { return tracePackets(args[0], !o.isTable(), cmd.OutOrStdout()) }
			}
			if err := follow(); err != nil {
				return fmt.Errorf("trace: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&packets, "packets", false, "print what becomes of the packets of a pod of tsugiki-cni")
	addAgentFlag(cmd, &socket)
	o.register(cmd, formatJSON)
	return cmd
}

func trace(socket, container string, asJSON bool, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	lines, err := api.Dial(socket).Trace(ctx, container)
	if err != nil {
		return orInterrupted(ctx, err)
	}
	if asJSON {
		defer lines.Close()
		_, err = io.Copy(out, lines)
	} else {
		err = api.Relog(lines, slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the agent has ended, the container may still run; try again when the agent runs")
	}
	return orInterrupted(ctx, err)
}

// orInterrupted returns nil instead of an error that a signal to this command has caused.
func orInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
