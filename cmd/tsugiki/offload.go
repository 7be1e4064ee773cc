package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload"
)

type offloadFlags struct {
	config string
	check  bool
	log    logFlags
}

func offloadCommand() *cobra.Command {
	f := &offloadFlags{}
	cmd := &cobra.Command{
		Use:   "offload [flags]",
		Short: "Control the switch of this node's DPU",
		Long: `Offload controls the switch of a node that runs on a DPU: it installs the flows of the pods
that tsugiki-cni has attached in mode dpu, of the other nodes and of the policy, and
installs them again when the switch was started anew. Without it, ADD of the network plugin
fails; the pods that are there continue.

It needs no agent, and runs as root in the network namespace of the host. SIGHUP makes it
read its configuration again. SIGTERM ends it, and the flows stay.`,
		Example: `  tsugiki offload
  tsugiki offload --config ./offload.toml --check-config`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments("offload"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.run(cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("offload: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&f.config, "config", offload.DefaultConfig, "configuration file")
	cmd.Flags().BoolVar(&f.check, "check-config", false, "print the errors of the configuration, and end")
	f.log.register(cmd.Flags())
	return cmd
}

func (f *offloadFlags) run(stderr io.Writer) error {
	cfg, err := offload.Load(f.config)
	if err != nil {
		return usageError{err}
	}
	log, err := f.log.open(stderr)
	if err != nil || f.check {
		return err
	}
	table, err := forward.Open()
	if err != nil {
		return err
	}
	defer table.Close()
	c, err := offload.New(cfg, table, log)
	if err != nil {
		return err
	}
	stop, err := serveMetrics(cfg.Metrics.Listen, c.Stats())
	if err != nil {
		return err
	}
	defer stop()
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer cancel()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, unix.SIGHUP)
	go f.reload(ctx, c, cfg, hangups, log)
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	log.Info("controller is ready", "endpoint", cfg.DPU.Endpoint)
	return c.Run(ctx)
}

// reload reads the configuration again at each SIGHUP.
func (f *offloadFlags) reload(ctx context.Context, c *offload.Controller, last *offload.Config, hangups <-chan os.Signal, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		}
		cfg, err := offload.Load(f.config)
		if err == nil && (cfg.DPU != last.DPU || cfg.Metrics != last.Metrics) {
			err = errors.New("[dpu] and [metrics] are read at the start alone; start the controller again")
		}
		if err != nil {
			log.Error("the new configuration is not taken", "err", err)
			continue
		}
		c.Reload(cfg)
		last = cfg
		log.Info("configuration was read again")
	}
}

// serveMetrics serves Prometheus, if there is an address.
func serveMetrics(address string, all ...prometheus.Collector) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(all...)
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("[metrics] listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	return func() { server.Close() }, nil
}
