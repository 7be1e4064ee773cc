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
		Short: "Print the decisions about a container's socket calls as they are made",
		Long: `Trace prints a line for each decision about a socket call of a container, until the
container ends or trace is interrupted. A line has the system call, the process, the
address, and the endpoint onto which the socket was grafted ("-" is none). -j prints a
JSON object per line, with the keys time, level, msg, container and pid, and, where they
are known, syscall, fd, addr, endpoint and others. {"lost":N} stands for N lines that
trace did not read in time.

While a container is traced, all its socket calls are trapped. This slows them down.`,
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
