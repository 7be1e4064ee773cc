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

// allFigures stands for every figure there is.
const allFigures = "all"

// densityFlags are the flags of tsugiki density run as they are written.
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
		Short: "Make the study, or some of its figures",
		Long: `Run measures with real containers, which an OCI runtime makes of this machine's own
programs, and writes report.html, results.json, results.csv and results.md into DIR.
Nothing is downloaded. It takes root, a runtime, busybox-static, and for the network
"bridge" the CNI plugins and iptables.

Containers have namespaces, a cgroup and a folder of the study's own: the network of
this machine is not touched. All of that is removed in the end, also after an error or
Ctrl-C; what a killed run has left, the next run removes.

What was measured when a run ends early is kept, and --resume measures what is
missing. A DIR that has a study is left as it is, without --resume or --force. What
fails, as a network whose plugin is missing, does not end the rest: it is tried twice,
and the report and the error name it. Limits of the machine are looked at first: one that is too low is said, with
how it is raised.

Figures: ` + strings.Join(figureNames(), ", ") + `.
Networks: bridge, veth links to a bridge with address translation, by CNI's plugins
as engines use them; host; graft, tsugiki's; none, a loopback only.
Storages: overlay, layers that containers share; dir, a copy for each.`,
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
	flags.StringVarP(&f.out, "output", "o", "", "folder of the results, which is made if it is not there")
	flags.StringSliceVar(&f.figures, "figure", []string{allFigures}, "what to measure; may be repeated")
	flags.IntVar(&f.options.Max, "max", 0, "containers at most (default as many as the study had)")
	flags.BoolVar(&f.options.Quick, "quick", false, "little of everything, with 4 containers, to see that it works")
	flags.IntVar(&f.options.Rounds, "rounds", 0, "how often everything is measured (default 3, with --quick 1)")
	flags.StringSliceVar(&f.options.Networks, "network", nil, "network of the containers; may be repeated, to compare (default what the figure is about)")
	flags.StringSliceVar(&f.options.Runtimes, "runtime", []string{"runc"}, "runtime that makes the containers, runc, crun or a path; may be repeated, to compare")
	flags.StringSliceVar(&f.options.Storages, "storage", nil, "root file system of the containers; may be repeated, to compare (default what the figure is about)")
	flags.IntVar(&f.options.Files, "files", 0, "files of 1 MB in file I/O; the study had 4096 (default fewer, which the report says)")
	flags.Uint64Var(&f.options.Seed, "seed", 0, "seed of the order of measurements (default drawn)")
	flags.BoolVar(&f.resume, "resume", false, "measure what is missing in DIR, with the same other flags")
	flags.BoolVar(&f.force, "force", false, "replace the study that DIR has, complete or not")
	flags.StringVar(&f.workDir, "work-dir", "", "folder for the containers' files, while it runs (default "+os.TempDir()+")")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "log what is done to standard error")
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
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // there is that flag, and only once
	}
	_ = cmd.MarkFlagDirname("output")
	_ = cmd.MarkFlagDirname("work-dir")
}

// check says what is wrong with the flags, and which experiments they mean.
func (f *densityFlags) check() (list []sweep.Experiment, err error) {
	o := &f.options
	if f.out == "" {
		return nil, errors.New("-o DIR is missing")
	}
	if o.Max < 0 || o.Rounds < 0 || o.Files < 0 {
		return nil, errors.New("--max, --rounds and --files are not negative")
	}
	if f.resume && f.force {
		return nil, errors.New("--resume goes on with the study in DIR, --force begins anew: choose one")
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
	// One is enough: removing is not interrupted.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	go func() {
		<-signals
		fmt.Fprintln(stderr, "\ninterrupted; removing what was made")
		cancel()
		for range signals {
			fmt.Fprintln(stderr, "still removing; what a killed run leaves, the next one removes")
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
		return errors.New("interrupted before anything was measured")
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted; what was measured is in %s, and --resume continues", f.out)
	case err != nil && results != nil:
		return fmt.Errorf("%w; what was measured is in %s, and --resume continues", err, f.out)
	case err != nil:
		return err
	}
	fmt.Fprintln(stdout, filepath.Join(f.out, report.PageFile))
	return nil
}

// commandAgain is the command that makes the same study from the beginning in a folder
// that has none, but for the seed, which only the sweep knows.
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
