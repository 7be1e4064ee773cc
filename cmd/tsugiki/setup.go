package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tsugiki/tsugiki/internal/programs"
	"github.com/tsugiki/tsugiki/internal/setup"
)

// setupFlags are the flags of tsugiki setup.
type setupFlags struct {
	file, runtime, root  string
	translate, undo, yes bool
}

// change is one of a file.
type change interface {
	IsNone() bool
	Diff() string
	Apply() error
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

With --translate, containerd gets the runtime of Kubernetes' pods whose IPv4 is translated, too, with
its network in ` + setup.NetworkFile + `, and a link to tsugiki-cni in
containerd's folder of network plugins.

A container uses the runtime if the engine is told so, as in docker run --runtime tsugiki.
What the container's annotations may ask for stands in tsugiki-agent.toml(5).`,
		Example: `  tsugiki setup docker
  tsugiki setup --yes containerd
  tsugiki setup --translate containerd
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
			if f.translate && engine.Name != "containerd" {
				return usageError{errors.New("setup: --translate is for containerd")}
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
	flags.BoolVar(&f.translate, "translate", false, "containerd also gets the runtime of pods whose IPv4 is translated")
	flags.StringVar(&f.root, "root", "", "folder with the machine's /etc and network plugins, of an image that is being made")
	flags.StringVar(&f.runtime, "runtime", "", "path of tsugiki-runtime (default that beside tsugiki)")
	return cmd
}

func (f *setupFlags) run(engine setup.Engine, in io.Reader, out io.Writer) error {
	engine.File = filepath.Join(f.root, engine.File)
	if f.file != "" {
		engine.File = f.file
	}
	engine.Translate = f.translate
	list, err := f.changes(engine)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(c change) bool { return c.IsNone() })
	if len(list) == 0 {
		_, err := fmt.Fprintf(out, "%s is as it shall be; nothing is changed\n", engine.File)
		return err
	}
	for _, c := range list {
		if _, err := io.WriteString(out, c.Diff()); err != nil {
			return err
		}
	}
	if !f.yes {
		if err := ask(in, out, "Write this? [y/N] "); err != nil {
			return err
		}
	}
	for _, c := range list {
		if err := c.Apply(); err != nil {
			return err
		}
	}
	text := "written; the engine's next container can use it"
	if engine.Next != "" {
		text = "written; now run: " + engine.Next
	}
	_, err = fmt.Fprintln(out, text)
	return err
}

// changes are what there is to do, the engine's configuration last: it names the others.
func (f *setupFlags) changes(engine setup.Engine) ([]change, error) {
	if f.undo { // the programs may be gone
		return f.undone(engine)
	}
	runtime, err := f.program(f.runtime, "tsugiki-runtime")
	if err != nil {
		return nil, err
	}
	c, err := engine.Add(runtime)
	if err != nil || !f.translate {
		return []change{c}, err
	}
	list, err := f.network(c.After)
	return append(list, c), err
}

// undone takes the network away, too, if the runtime that needs it goes.
func (f *setupFlags) undone(engine setup.Engine) ([]change, error) {
	c, err := engine.Remove()
	if err != nil || engine.Name != "containerd" || !setup.EndsTranslation(c) {
		return []change{c}, err
	}
	list, err := f.network(c.Before)
	return append([]change{c}, list...), err
}

// network are the changes of the network of pods whose IPv4 is translated, by containerd's configuration.
func (f *setupFlags) network(text []byte) ([]change, error) {
	told, err := setup.ReadContainerd(text, "")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(f.root, setup.NetworkFile)
	c, err := setup.AddNetwork(file)
	if f.undo {
		c, err = setup.RemoveNetwork(file)
	}
	if err != nil {
		return nil, err
	}
	link := setup.Link{Path: filepath.Join(f.root, told.PluginDirs[0], setup.Plugin), Undo: f.undo}
	link.Target, err = f.program("", setup.Plugin)
	if f.undo && errors.Is(err, programs.ErrMissing) {
		link.Target, err = setup.Dangling(link.Path), nil
	}
	return []change{c, link}, err
}

// program returns the path of a program: the given one, or that beside tsugiki.
func (f *setupFlags) program(path, name string) (string, error) {
	var err error
	if path == "" {
		path, err = programs.Find(name)
	}
	if err == nil {
		path, err = filepath.Abs(path)
	}
	return path, err
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
