package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	node "github.com/tsugiki/tsugiki/agent/daemon"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/internal/config"
)

type agentFlags struct {
	config, runDir, stateDir string
	check                    bool
}

func agentCommand() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent [flags]",
		Short: "Run the node daemon, which serves the containers of engines",
		Long: `Agent is the daemon of a node. Containers that an engine starts with the runtime
tsugiki-runtime are registered with it, and so are those of tsugiki run. "The host"
is the network namespace that it was started in.

Nothing ends with it: containers and their connections go on, calls that need it
wait, and the next agent with the same directories carries on. To upgrade it,
restart it. SIGHUP makes it read its configuration again; SIGTERM ends it.`,
		Example: `  tsugiki agent
  tsugiki agent --config ./agent.toml --check-config
  curl --unix-socket /run/tsugiki/agent.sock http://tsugiki/v1/containers`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments("agent"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.run(cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("agent: %w", err)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.config, "config", "", "configuration file (default "+config.DefaultPath+", if there is one)")
	flags.StringVar(&f.runDir, "run-dir", "", "directory for sockets (default "+config.DefaultRunDir+")")
	flags.StringVar(&f.stateDir, "state-dir", "", "directory for what has to outlive the agent (default "+config.DefaultStateDir+")")
	flags.BoolVar(&f.check, "check-config", false, "say what is wrong with the configuration, and end")
	return cmd
}

func noArguments(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError{fmt.Errorf("%s: %q is one argument too many; see tsugiki %s --help", name, args[0], name)}
		}
		return nil
	}
}

// load reads the configuration, over which the command line goes.
func (f *agentFlags) load() (*config.Config, error) {
	cfg, err := config.Load(f.config)
	if err == nil {
		err = rules.CheckConfig(cfg)
	}
	if err != nil {
		return nil, usageError{err}
	}
	if f.runDir != "" {
		cfg.RunDir = f.runDir
	}
	if f.stateDir != "" {
		cfg.StateDir = f.stateDir
	}
	return cfg, nil
}

func (f *agentFlags) run(stderr io.Writer) error {
	cfg, err := f.load()
	if err != nil || f.check {
		return err
	}
	level := &slog.LevelVar{}
	level.Set(cfg.Log.Level)
	log := newLog(stderr, cfg.Log.Format, level)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	d, err := node.Start(cfg, log)
	if err != nil {
		return err
	}
	// Without systemd there is nobody to be told.
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Warn("tell systemd that the agent is ready", "err", err)
	}
	log.Info("agent is ready", "run_dir", cfg.RunDir, "state_dir", cfg.StateDir)
	err = f.serve(d, signals, func(cfg *config.Config) { level.Set(cfg.Log.Level) }, log)
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	return errors.Join(err, d.Close())
}

// serve returns when the daemon is to end: why, if nobody has asked for that.
func (f *agentFlags) serve(d *node.Daemon, signals <-chan os.Signal, taken func(*config.Config), log *slog.Logger) error {
	for {
		select {
		case err := <-d.Failed():
			return err
		case sig := <-signals:
			if sig != unix.SIGHUP {
				return nil
			}
		}
		cfg, err := f.load()
		if err != nil {
			log.Error("configuration is not taken, the last one stays", "err", err)
			continue
		}
		taken(cfg)
		d.Reload(cfg)
		log.Info("configuration is taken for containers to come")
	}
}

func newLog(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
