// Package program is what the command lines of all benches have in common: reading flags,
// interrupts, exit statuses, and where a report is written.
//
// It measures nothing and knows no flag but those of the output. It needs no privileges.
package program

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

// Bench is one command line.
type Bench struct {
	Name string
	Args []string
	// Parse reads Args. It prints the flags to help if it is asked for them, and returns
	// flag.ErrHelp then.
	Parse func(args []string, help io.Writer) error
	// Measure makes the report, and takes down what it has made, also when ctx ends.
	Measure func(ctx context.Context, progress io.Writer) (*measure.Report, error)
	// Write writes the report.
	Write func(*measure.Report) error
}

// Main runs the bench and returns its exit status: 2 for usage, 1 for any other failure. An
// interrupt ends the bench with everything taken down. Errors and progress go to stderr.
func (b *Bench) Main(stderr io.Writer) int {
	err := b.Parse(b.Args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", b.Name, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := b.Measure(ctx, stderr)
	if err == nil {
		report.Command = append([]string{b.Name}, b.Args...)
		err = b.Write(report)
	}
	switch {
	case ctx.Err() != nil:
		fmt.Fprintf(stderr, "%s: interrupted\n", b.Name)
		return 1
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", b.Name, err)
		return 1
	}
	return 0
}

// Parse reads flags. An error is one line; other arguments than flags are an error too.
func Parse(f *flag.FlagSet, args []string, help io.Writer) error {
	f.SetOutput(io.Discard) // Main prints errors
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(help)
			f.PrintDefaults()
		}
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return nil
}

// Output says where a report is written.
type Output struct {
	File string // JSON too, if it is not empty
	JSON bool   // instead of the text
}

// Flags defines -o and -j.
func (o *Output) Flags(f *flag.FlagSet) {
	f.StringVar(&o.File, "o", "", "write the results as JSON into this file too")
	f.BoolVar(&o.JSON, "j", false, "print JSON instead of the table")
}

// Write prints the report by print, or as JSON, and writes the file.
func (o *Output) Write(report *measure.Report, stdout io.Writer, print func(*measure.Report, io.Writer) error) error {
	if o.JSON {
		print = (*measure.Report).WriteJSON
	}
	if err := print(report, stdout); err != nil || o.File == "" {
		return err
	}
	return report.WriteFile(o.File)
}
