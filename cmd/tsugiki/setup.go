package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/internal/programs"
	"github.com/tsugiki/tsugiki/internal/setup"
)

// setupFlags are the flags of tsugiki setup.
type setupFlags struct {
	file, runtime string
	undo, yes     bool
}

func setupCommand() *cobra.Command {
	var f setupFlags
	var names []string
	for _, e := range setup.Engines() {
		names = append(names, e.Name)
	}
	usage := "write tsugiki setup " + strings.Join(names, "|") + " [--undo]"
	cmd := &cobra.Command{
		Use:   "setup [flags] " + strings.Join(names, "|"),
		Short: "Tell a container engine of tsugiki-runtime",
		Long: `Setup adds the runtime tsugiki to the configuration of a container engine. It shows the
change in the form of diff -u, asks, and writes the file. Comments, and all that it does
not know, stay as they are. --undo takes the entry away again, and nothing else. Setup does
not restart the engine: it prints the command for that.

A container uses the runtime if the engine is told so, as in docker run --runtime tsugiki.
What the container's annotations may ask for stands in tsugiki-agent.toml(5).`,
		Example: `  tsugiki setup docker
  tsugiki setup --yes containerd
  tsugiki setup --undo docker`,
		DisableFlagsInUseLine: true,
		ValidArgs:             names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("setup: " + usage)}
			}
			engine, known := setup.Find(args[0])
			if !known {
				return usageError{fmt.Errorf("setup: unknown engine %q; %s", args[0], usage)}
			}
			if err := f.run(engine, cmd.InOrStdin(), cmd.OutOrStdout()); err != nil {
				return fmt.Errorf("setup: %w", err)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.undo, "undo", false, "take away what setup has added")
	flags.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	flags.StringVar(&f.file, "file", "", "configuration file of the engine (default the engine's own)")
	flags.StringVar(&f.runtime, "runtime", "", "path of tsugiki-runtime (default that beside tsugiki)")
	return cmd
}

func (f *setupFlags) run(engine setup.Engine, in io.Reader, out io.Writer) error {
	if f.file != "" {
		engine.File = f.file
	}
	change, err := f.change(engine)
	if err != nil {
		return err
	}
	if change.IsNone() {
		_, err := fmt.Fprintf(out, "%s is as it shall be; nothing is changed\n", change.File)
		return err
	}
	if _, err := io.WriteString(out, change.Diff()); err != nil {
		return err
	}
	if !f.yes {
		if err := ask(in, out, "Write this? [y/N] "); err != nil {
			return err
		}
	}
	if err := change.Apply(); err != nil {
		return err
	}
	text := "written; the engine's next container can use it"
	if engine.Next != "" {
		text = "written; now run: " + engine.Next
	}
	_, err = fmt.Fprintln(out, text)
	return err
}

func (f *setupFlags) change(engine setup.Engine) (setup.Change, error) {
	if f.undo {
		return engine.Remove()
	}
	path := f.runtime
	var err error
	if path == "" {
		path, err = programs.Find("tsugiki-runtime")
	}
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return setup.Change{}, err
	}
	return engine.Add(path)
}

// ask returns an error unless the answer is yes.
func ask(in io.Reader, out io.Writer, question string) error {
	if _, err := io.WriteString(out, question); err != nil {
		return err
	}
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		fmt.Fprintln(out)
		return errors.New("there is no answer, and nothing is changed; --yes does not ask")
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("the answer is no, and nothing is changed")
	}
	return nil
}
