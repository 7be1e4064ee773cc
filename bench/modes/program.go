package modes

import (
	"context"
	"flag"
	"io"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/program"
)

// Program is a command that runs a session and prints its report.
type Program struct {
	Session *Session
	// Flags holds the program's own flags; its name is the program's.
	Flags *flag.FlagSet
	// Check refuses values of the program's own flags.
	Check func() error
	Loads func(context.Context, *Runner) ([]Load, error)
	// Notes adds to the report what a reader should know.
	Notes func(*measure.Report)
	// Print writes the report for people.
	Print func(*measure.Report, io.Writer) error
}

// Main runs the program and returns its exit status, as program.Bench does.
func (p *Program) Main(args []string, stdout, stderr io.Writer) int {
	var output program.Output
	output.Flags(p.Flags)
	read := p.Session.flags(p.Flags)
	b := program.Bench{
		Name: p.Flags.Name(), Args: args,
		Parse: func(args []string, help io.Writer) error {
			if err := program.Parse(p.Flags, args, help); err != nil {
				return err
			}
			if err := read(); err != nil {
				return err
			}
			return p.Check()
		},
		Measure: func(ctx context.Context, progress io.Writer) (*measure.Report, error) {
			report, err := p.Session.Run(ctx, progress, p.Loads)
			if err == nil {
				p.Notes(report)
			}
			return report, err
		},
		Write: func(report *measure.Report) error { return output.Write(report, stdout, p.Print) },
	}
	return b.Main(stderr)
}
