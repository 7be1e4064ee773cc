package rig

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/tsugiki/tsugiki/bench/measure"
)

// Program is a command that runs a session and prints its report.
type Program struct {
	Session *Session
	// Flags holds the program's own flags; its name is the program's.
	Flags *flag.FlagSet
	// Check refuses values of the program's own flags.
	Check func() error
	Loads func(context.Context, *Rig) ([]Load, error)
	// Notes adds to the report what a reader should know.
	Notes func(*measure.Report)
	// Print writes the report for people.
	Print func(*measure.Report, io.Writer) error
}

// Main runs the program and returns its exit status: 2 for usage, 1 for any
// other failure. An interrupt ends it with everything taken down.
func (p *Program) Main(args []string, stdout, stderr io.Writer) int {
	output := p.Flags.String("o", "", "write the results as JSON into this file too")
	asJSON := p.Flags.Bool("j", false, "print JSON instead of the table")
	read := p.Session.flags(p.Flags)
	err := p.parse(args, read, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	name := p.Flags.Name()
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := p.Session.Run(ctx, stderr, p.Loads)
	if err == nil {
		p.Notes(report)
		report.Command = append([]string{name}, args...)
		err = p.write(report, *output, *asJSON, stdout)
	}
	switch {
	case ctx.Err() != nil:
		fmt.Fprintf(stderr, "%s: interrupted\n", name)
		return 1
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

func (p *Program) parse(args []string, read func() error, help io.Writer) error {
	p.Flags.SetOutput(io.Discard) // errors are printed by Main, in one line
	if err := p.Flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			p.Flags.SetOutput(help)
			p.Flags.PrintDefaults()
		}
		return err
	}
	if p.Flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", p.Flags.Arg(0))
	}
	if err := read(); err != nil {
		return err
	}
	return p.Check()
}

func (p *Program) write(report *measure.Report, output string, asJSON bool, stdout io.Writer) error {
	print := func() error { return p.Print(report, stdout) }
	if asJSON {
		print = func() error { return report.WriteJSON(stdout) }
	}
	if err := print(); err != nil {
		return err
	}
	if output == "" {
		return nil
	}
	return report.WriteFile(output)
}
