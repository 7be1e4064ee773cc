package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/density/figures"
	"github.com/tsugiki/tsugiki/density/report"
	"github.com/tsugiki/tsugiki/density/rig"
	"github.com/tsugiki/tsugiki/density/sweep"
)

// allFigures is the name that stands for all figures.
const allFigures = "all"

// densityFlags are the flags of tsugiki density run.
type densityFlags struct {
	figures      []string
	options      sweep.Options
	out, workDir string
	resume       bool
	force        bool
	verbose      bool
}

func densityRun() *cobra.Command {
	var f densityFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -o DIR",
		Short: "Measure the study, or some of its figures",
		Long: `Run measures real containers. An OCI runtime makes them of programs of this machine; run
downloads nothing. It writes report.html, results.json, results.csv and results.md into
DIR. It needs root, a runtime and busybox-static, and for the network "bridge" the CNI
plugins and iptables.

The study has namespaces, a cgroup and a folder of its own, and does not change the
network of this machine. At the end, run removes all of them, also after an error or
Ctrl-C. If a run is killed, the next run removes what it left.

A run that ends early keeps its measurements, and --resume measures the missing ones. Run
does not change a study that DIR holds already, except with --resume or --force. If a
step fails, such as a network whose plugin is missing, run tries it twice, names it in
the report and in the error, and continues. Run checks the limits of the machine first.
If one is too low, the error says how to raise it.

Figures: ` + strings.Join(figureNames(), ", ") + `.
Networks: bridge, veth links to a bridge with address translation, made by CNI plugins;
host, the host's network namespace; graft, sockets grafted by tsugiki; none, a loopback
only.
Storages: overlay, layers that containers share; dir, a copy for each container.`,
		Example: `  tsugiki density run --quick -o /tmp/quick
  tsugiki density run --figure start --figure memory --network bridge --network graft -o /tmp/start
  tsugiki density run --resume -o /tmp/study`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments("density run"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			experiments, err := f.check()
			if err != nil {
				return usageError{fmt.Errorf("density run: %w", err)}
			}
			if err := f.run(experiments, cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("density run: %w", err)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.out, "output", "o", "", "folder of the results; run creates it")
	flags.StringSliceVar(&f.figures, "figure", []string{allFigures}, "figure to measure; may be repeated")
	flags.IntVar(&f.options.Max, "max", 0, "largest number of containers (default the number of the published study)")
	flags.BoolVar(&f.options.Quick, "quick", false, "measure briefly with 4 containers, to see that the study works")
	flags.IntVar(&f.options.Rounds, "rounds", 0, "number of measurements of each point (default 3, with --quick 1)")
	flags.StringSliceVar(&f.options.Networks, "network", nil, "network of the containers; may be repeated (default those that the figure compares)")
	flags.StringSliceVar(&f.options.Runtimes, "runtime", []string{"runc"}, "OCI runtime that makes the containers: runc, crun or a path; may be repeated")
	flags.StringSliceVar(&f.options.Storages, "storage", nil, "root file system of the containers; may be repeated (default those that the figure compares)")
	flags.IntVar(&f.options.Files, "files", 0, "number of files of 1 MB for file I/O; the published study had 4096 (default fewer, see the report)")
	flags.Uint64Var(&f.options.Seed, "seed", 0, "seed for the order of measurements (default random)")
	flags.BoolVar(&f.resume, "resume", false, "measure what DIR does not have yet; the other flags must be the same")
	flags.BoolVar(&f.force, "force", false, "replace the study in DIR, complete or not")
	flags.StringVar(&f.workDir, "work-dir", "", "folder for the files of the containers during the run (default "+os.TempDir()+")")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "log each step to standard error")
	completeDensity(cmd)
	return cmd
}

func figureNames() []string {
	var names []string
	for _, e := range figures.All() {
		names = append(names, e.Name())
	}
	return names
}

var (
	densityNetworks = []string{rig.Bridge, rig.Host, rig.Graft, rig.None}
	densityStorages = []string{rig.Overlay, rig.Dir}
)

func completeDensity(cmd *cobra.Command) {
	for flag, values := range map[string][]string{
		"figure": append(figureNames(), allFigures), "network": densityNetworks, "storage": densityStorages, "runtime": {"runc", "crun"},
		"max": nil, "rounds": nil, "files": nil, "seed": nil,
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	}
	_ = cmd.MarkFlagDirname("output")
	_ = cmd.MarkFlagDirname("work-dir")
}

// check returns the experiments that the flags choose, or an error that names a wrong flag.
func (f *densityFlags) check() (list []sweep.Experiment, err error) {
	o := &f.options
	if f.out == "" {
		return nil, errors.New("-o DIR is missing")
	}
	if o.Max < 0 || o.Rounds < 0 || o.Files < 0 {
		return nil, errors.New("--max, --rounds and --files must be 0 or more, not negative")
	}
	if f.resume && f.force {
		return nil, errors.New("--resume continues the study in DIR, --force replaces it: write one of them")
	}
	for _, values := range []struct {
		flag      string
		has, list []string
	}{
		{"figure", f.figures, append(figureNames(), allFigures)},
		{"network", o.Networks, densityNetworks},
		{"storage", o.Storages, densityStorages},
	} {
		for _, v := range values.has {
			if !slices.Contains(values.list, v) {
				return nil, fmt.Errorf("there is no %s %q; there are %s", values.flag, v, strings.Join(values.list, ", "))
			}
		}
	}
	if len(o.Runtimes) == 0 {
		return nil, errors.New("--runtime is empty")
	}
	for _, e := range figures.All() {
		if slices.Contains(f.figures, e.Name()) || slices.Contains(f.figures, allFigures) {
			list = append(list, e)
		}
	}
	return list, nil
}

func (f *densityFlags) run(experiments []sweep.Experiment, stdout, stderr io.Writer) error {
	if err := os.MkdirAll(f.out, 0o755); err != nil {
		return err
	}
	level := slog.LevelWarn
	if f.verbose {
		level = slog.LevelDebug
	}
	// The first signal ends the study. No signal interrupts the removal of its containers.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	go func() {
		<-signals
		fmt.Fprintln(stderr, "\ninterrupted; removing the containers")
		cancel()
		for range signals {
			fmt.Fprintln(stderr, "still removing; if you kill this run, the next run removes what it left")
		}
	}()
	s := &sweep.Sweep{
		Experiments: experiments, Options: f.options, Dir: f.out, WorkDir: f.workDir, Resume: f.resume, Force: f.force,
		Command:  commandAgain(os.Args),
		Progress: stderr, Log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})),
	}
	results, err := s.Run(ctx)
	if results != nil {
		err = errors.Join(err, report.Write(results, f.out))
	}
	switch {
	case errors.Is(err, context.Canceled) && results == nil:
		return errors.New("interrupted before the first measurement")
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted; the measurements are in %s, and --resume continues", f.out)
	case err != nil && results != nil:
		return fmt.Errorf("%w; the measurements are in %s, and --resume continues", err, f.out)
	case err != nil:
		return err
	}
	_, err = fmt.Fprintln(stdout, filepath.Join(f.out, report.PageFile))
	return err
}

// commandAgain returns the command that measures the same study in an empty folder. It leaves
// out the seed, which the sweep adds.
func commandAgain(args []string) []string {
	var again []string
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--seed":
			i++
		case args[i] != "--resume" && args[i] != "--force" && !strings.HasPrefix(args[i], "--seed="):
			again = append(again, args[i])
		}
	}
	again[0] = filepath.Base(again[0])
	return again
}
