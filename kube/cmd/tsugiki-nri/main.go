// Command tsugiki-nri grafts pods that ask for it by an annotation, as a plugin of NRI. It runs on each
// node, beside the agent. docs/design/kubernetes.md says how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"

	agent "github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/config"
	"github.com/tsugiki/tsugiki/kube/nri"
)

const usage = `tsugiki-nri grafts pods with the annotation kube.tsugiki.dev/graft: "true", as a plugin of NRI.

  tsugiki-nri [--socket PATH] [--agent SOCKET] [--log-level LEVEL]

It connects to NRI at a socket (/var/run/nri/nri.sock), again and again, and to the agent. containerd
starts it itself as /opt/nri/plugins/90-tsugiki, and then it has no flags: the agent's socket is that of
the run_dir in /etc/tsugiki/agent.toml.
`

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	f := flag.NewFlagSet("tsugiki-nri", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	socket := f.String("socket", api.DefaultSocketPath, "")
	at := f.String("agent", "", "")
	var level slog.Level
	f.TextVar(&level, "log-level", slog.LevelInfo, "")
	if err := f.Parse(args); err != nil || f.NArg() > 0 {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Print(usage)
			return 0
		}
		fmt.Fprintf(os.Stderr, "tsugiki-nri: bad command line %q; see tsugiki-nri --help\n", args)
		return 2
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	err := serve(*socket, *at, log)
	if err != nil {
		fmt.Fprintf(os.Stderr, "tsugiki-nri: %v\n", err)
		return 1
	}
	return 0
}

func serve(socket, at string, log *slog.Logger) error {
	if at == "" {
		cfg, err := config.Load("")
		if err != nil {
			return err
		}
		at = agent.SocketIn(cfg.RunDir)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	return nri.New(agent.Dial(at), log).Run(ctx, socket)
}
