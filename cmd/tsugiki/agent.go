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
		Short: "Run the node's daemon, which grafts the containers of engines",
		Long: `Agent is the daemon of a node. tsugiki-runtime and tsugiki run register their
containers with the agent. "The host" is the network namespace in which the agent was
started.

When the agent ends, containers and their connections continue. Socket calls that need
the agent wait until an agent with the same directories starts. To upgrade the agent,
restart it. SIGHUP makes the agent read its configuration again. SIGTERM ends the agent.`,
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
	flags.StringVar(&f.config, "config", "", "configuration file (default "+config.DefaultPath+", if that file exists)")
	flags.StringVar(&f.runDir, "run-dir", "", "directory for the sockets of the agent and of containers (default "+config.DefaultRunDir+")")
	flags.StringVar(&f.stateDir, "state-dir", "", "directory for data that the next agent needs (default "+config.DefaultStateDir+")")
	flags.BoolVar(&f.check, "check-config", false, "print the errors of the configuration, and end")
	return cmd
}

// noArguments refuses positional arguments of the command with this name.
func noArguments(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError{fmt.Errorf("%s: unexpected argument %q; see tsugiki %s --help", name, args[0], name)}
		}
		return nil
	}
}

// load reads the configuration. Flags replace keys of the file.
func (f *agentFlags) load() (*config.Config, error) {
	cfg, err := config.Load(f.config)
	if err == nil {
		err = errors.Join(rules.CheckConfig(cfg), node.CheckGuests(cfg))
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
	// Without systemd, SdNotify does nothing.
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Warn("cannot tell systemd that the agent is ready", "err", err)
	}
	log.Info("agent is ready", "run_dir", cfg.RunDir, "state_dir", cfg.StateDir)
	err = f.serve(d, signals, func(cfg *config.Config) { level.Set(cfg.Log.Level) }, log)
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	return errors.Join(err, d.Close())
}

// serve reads the configuration again at each SIGHUP. It returns nil after SIGTERM or SIGINT,
// and an error if the daemon has failed. It calls taken with each configuration that it accepts.
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
			log.Error("configuration has errors, the agent keeps the previous one", "err", err)
			continue
		}
		taken(cfg)
		d.Reload(cfg)
		log.Info("configuration was read again, it applies to new containers")
	}
}

func newLog(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
