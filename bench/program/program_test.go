package program

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tsugiki/tsugiki/bench/measure"
)

// newBench is one with an output and nothing to measure.
func newBench(stdout io.Writer, args ...string) *Bench {
	f := flag.NewFlagSet("test", flag.ContinueOnError)
	o := &Output{}
	o.Flags(f)
	return &Bench{
		Name: "test", Args: args,
		Parse: func(args []string, help io.Writer) error { return Parse(f, args, help) },
		Measure: func(context.Context, io.Writer) (*measure.Report, error) {
			return &measure.Report{Figure: "nothing"}, nil
		},
		Write: func(r *measure.Report) error {
			return o.Write(r, stdout, func(*measure.Report, io.Writer) error {
				_, err := io.WriteString(stdout, "the table\n")
				return err
			})
		},
	}
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]struct {
		status int
		said   string
	}{
		"-h":              {0, "-o string"},
		"-no-such":        {2, "test: flag provided but not defined: -no-such\n"},
		"other":           {2, "test: unexpected argument \"other\"\n"},
		"-o /dev/no/file": {1, "no such file"},
	} {
		var said bytes.Buffer
		if status := newBench(io.Discard, strings.Fields(args)...).Main(&said); status != want.status || !strings.Contains(said.String(), want.said) {
			t.Errorf("%s: exit status %d, %q, want %d, %q", args, status, said.String(), want.status, want.said)
		}
	}
}

func TestOutput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	var table, said, printed bytes.Buffer
	if status := newBench(&table, "-o", file).Main(&said); status != 0 || table.String() != "the table\n" {
		t.Errorf("exit status %d, printed %q, said %q", status, table.String(), said.String())
	}
	if status := newBench(&printed, "-j").Main(&said); status != 0 {
		t.Errorf("exit status %d, said %q", status, said.String())
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for args, data := range map[string][]byte{"-o": written, "-j": printed.Bytes()} {
		var r measure.Report
		if err := json.Unmarshal(data, &r); err != nil || r.Figure != "nothing" || r.Command[0] != "test" || r.Command[1] != args {
			t.Errorf("%s: %v in %s", args, err, data)
		}
	}
}

func TestFailures(t *testing.T) {
	var said bytes.Buffer
	b := newBench(io.Discard)
	b.Measure = func(context.Context, io.Writer) (*measure.Report, error) { return nil, errors.New("it withered") }
	if status := b.Main(&said); status != 1 || said.String() != "test: it withered\n" {
		t.Errorf("exit status %d, said %q", status, said.String())
	}
	said.Reset()
	b.Measure = func(ctx context.Context, _ io.Writer) (*measure.Report, error) {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return nil, err
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if status := b.Main(&said); status != 1 || said.String() != "test: interrupted\n" {
		t.Errorf("interrupted: exit status %d, said %q", status, said.String())
	}
}
