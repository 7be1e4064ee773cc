// Command testreport reads the output of go test -json, shows what failed with
// its output, and closes with a report. It needs no privileges.
//
//	go test -json ./... | go run ./internal/testreport -skips .ci/skips -budget .ci/budget -logs .cache/test-logs
//
// It fails on failures, on skips that are not expected, on a run without a test,
// and on a file of budgets that is wrong. A package that takes longer than its
// budget is a warning: a slow machine is not a fault of the change under test.
//
// The file of expected skips has a test's name, or a prefix of one that ends in
// a slash, on each line; what follows on the line says which feature is missing.
// The file of budgets is described at readBudget.
//
// The report has the slowest tests, the time of each package beside its budget,
// the sum of these times and the time between the first and the last event. It
// names the log of each failed test. Command testreport runs from the root of
// the module, where go.mod is.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	skips := flag.String("skips", "", "file of the skips that are expected")
	budgets := flag.String("budget", "", "file of the seconds that packages may take")
	logs := flag.String("logs", "", "directory for the output of each failed test")
	show := flag.String("show", "", "test whose subtests are shown as they end, with what they log")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, *skips, *budgets, *logs, *show); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, skips, budgets, logs, show string) error {
	expected, err := readExpected(skips)
	if err != nil {
		return err
	}
	b, err := readBudget(os.DirFS("."), budgets)
	if err != nil {
		return err
	}
	r := newReporter(out, expected, logs)
	r.show = show
	if err := r.read(in); err != nil {
		return err
	}
	return r.close(b)
}

func readExpected(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 0 && !strings.HasPrefix(f[0], "#") {
			names = append(names, f[0])
		}
	}
	return names, nil
}

func isExpected(name string, expected []string) bool {
	for _, e := range expected {
		if name == e || strings.HasSuffix(e, "/") && strings.HasPrefix(name, e) {
			return true
		}
	}
	return false
}
