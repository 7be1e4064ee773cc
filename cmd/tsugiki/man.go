package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manCommand writes the manual pages for make man and make install. Their texts are those of
// --help, of this program and of the others that users name, and of config.Keys.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:                   "manpages DIRECTORY",
		Short:                 "Write the manual pages",
		Hidden:                true,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("manpages: write tsugiki manpages DIRECTORY")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			err := writePages(cmd.Root(), filepath.Join(args[0], "man1"))
			if err == nil {
				err = writeProgramPages(filepath.Join(args[0], "man1"))
			}
			if err == nil {
				err = writeConfigPage(filepath.Join(args[0], "man5"))
			}
			if err != nil {
				return fmt.Errorf("manpages: %w", err)
			}
			return nil
		},
	}
}

// writePages writes the page of a command and of those below it.
func writePages(cmd *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, pageName(cmd)+".1"), page(cmd), 0o644); err != nil {
		return err
	}
	for _, c := range subcommands(cmd) {
		if err := writePages(c, dir); err != nil {
			return err
		}
	}
	return nil
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func subcommands(cmd *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, c := range cmd.Commands() {
		if !c.Hidden && c.Name() != "help" {
			list = append(list, c)
		}
	}
	return list
}

// page returns the page of a command in the language of man(7).
func page(cmd *cobra.Command) []byte {
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.TH "%s" 1 "" "Tsugiki" "Tsugiki"`, strings.ToUpper(escape(pageName(cmd))))
	line(".SH NAME")
	short := strings.ToLower(cmd.Short[:1]) + cmd.Short[1:]
	line(`%s \- %s`, escape(pageName(cmd)), escape(short))
	line(".SH SYNOPSIS")
	if sub := subcommands(cmd); len(sub) > 0 {
		for i, c := range sub {
			if i > 0 {
				line(".br")
			}
			line(".B %s", escape(c.UseLine()))
		}
	} else {
		line(".B %s", escape(cmd.UseLine()))
	}
	line(".SH DESCRIPTION")
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	prose(&b, text)
	if sub := subcommands(cmd); len(sub) > 0 {
		line(".SH COMMANDS")
		for _, c := range sub {
			line(".TP\n.BR %s (1)\n%s.", escape(pageName(c)), escape(c.Short))
		}
	}
	options(&b, cmd)
	if cmd.Example != "" {
		line(".SH EXAMPLES")
		prose(&b, cmd.Example)
	}
	if cmd.HasParent() {
		line(".SH SEE ALSO\n.BR %s (1)", escape(pageName(cmd.Parent())))
	}
	return b.Bytes()
}

// prose writes paragraphs to be filled, and indented lines unfilled.
func prose(b *bytes.Buffer, text string) {
	indented := false
	for _, l := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		switch is := strings.HasPrefix(l, "  "); {
		case is && !indented:
			b.WriteString(".PP\n.nf\n")
			indented = true
		case !is && indented:
			b.WriteString(".fi\n")
			if l != "" {
				b.WriteString(".PP\n")
			}
			indented = false
		}
		if l == "" {
			b.WriteString(".PP\n")
			continue
		}
		b.WriteString(escape(l) + "\n")
	}
	if indented {
		b.WriteString(".fi\n")
	}
}

func options(b *bytes.Buffer, cmd *cobra.Command) {
	if cmd.HasAvailableSubCommands() {
		return
	}
	b.WriteString(".SH OPTIONS\n")
	cmd.InitDefaultHelpFlag()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.AddFlagSet(cmd.InheritedFlags())
	flags.AddFlagSet(cmd.LocalFlags())
	flags.VisitAll(func(f *pflag.Flag) {
		name := `\fB\-\-` + escape(f.Name) + `\fR`
		if f.Shorthand != "" {
			name = `\fB\-` + f.Shorthand + `\fR, ` + name
		}
		if f.Value.Type() != "bool" {
			name += ` \fIVALUE\fR`
		}
		usage := f.Usage
		if f.Value.Type() == "string" && f.DefValue != "" {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, ".TP\n%s\n%s\n", name, escape(usage))
	})
}

var escapes = strings.NewReplacer(`\`, `\e`, "-", `\-`)

// escape keeps man(1) from reading a line of text as a request.
func escape(l string) string {
	l = escapes.Replace(l)
	if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
		l = `\&` + l
	}
	return l
}
