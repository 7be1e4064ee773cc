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
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "trace [-j] CONTAINER",
		Short: "Show what is decided about a container's calls, as it happens",
		Long: `Trace prints a line for each decision about a socket call of a container of the
agent, until the container ends or trace is interrupted: what was called with which
address by whom, and the endpoint that it was grafted onto ("-" is none). -j prints
JSON objects, one in each line, with the keys time, level, msg, container and pid, and
where they are known syscall, fd, addr, endpoint and others. {"lost":N} stands for N
lines that were not read in time.

While a container is traced, each of its calls is trapped, which takes time.`,
		Example: `  tsugiki trace web-1
  tsugiki trace -j web-1 | jq 'select(.syscall == "connect") | .addr'`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeContainers(&socket),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("trace: write tsugiki trace [-j] CONTAINER")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := trace(socket, args[0], asJSON, cmd.OutOrStdout()); err != nil {
				return fmt.Errorf("trace: %w", err)
			}
			return nil
		},
	}
	addAgentFlag(cmd, &socket)
	cmd.Flags().BoolVarP(&asJSON, "json", "j", false, "print JSON")
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
		err = errors.New("the agent has ended, the container may run on; try again when the agent is back")
	}
	return orInterrupted(ctx, err)
}

// orInterrupted is an error, unless it comes of somebody's having had enough.
func orInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
