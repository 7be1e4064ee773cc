// Command testreport reads the output of go test -json, shows what failed with
// its output, and closes with a count. It fails on failures, on skips that are
// not expected, and on a run without a test.
//
//	go test -json ./... | go run ./internal/testreport -skips .ci/skips
//
// The file of expected skips has a test's name, or a prefix of one that ends in
// a slash, on each line; what follows on the line says which feature is missing.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
)

// event is a line of go test -json, see go doc test2json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

func main() {
	skips := flag.String("skips", "", "file of the skips that are expected")
	flag.Parse()
	expected, err := readExpected(*skips)
	if err == nil {
		err = report(os.Stdin, os.Stdout, expected)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
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

func report(in io.Reader, out io.Writer, expected []string) error {
	var passed, failed, skipped int
	var unexpected []string
	output := map[string]*strings.Builder{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(out, lines.Text()) // a build error
			continue
		}
		name := e.Package + " " + e.Test
		switch e.Action {
		case "output", "build-output":
			if output[name] == nil {
				output[name] = &strings.Builder{}
			}
			output[name].WriteString(e.Output)
			continue
		case "pass", "fail", "skip":
		default:
			continue
		}
		text := ""
		if o := output[name]; o != nil {
			text = o.String()
		}
		delete(output, name)
		switch {
		case e.Test == "" && e.Action == "fail":
			failed++
			fmt.Fprintf(out, "FAIL %s\n%s", e.Package, text)
		case e.Test == "":
			fmt.Fprintf(out, "%-5s %s %.1fs\n", e.Action, e.Package, e.Elapsed)
		case e.Action == "fail":
			failed++
			fmt.Fprintf(out, "FAIL %s\n%s", name, text)
		case e.Action == "skip":
			skipped++
			if !isExpected(e.Test, expected) {
				unexpected = append(unexpected, name+"\n"+text)
			}
		default:
			passed++
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	sort.Strings(unexpected)
	for _, u := range unexpected {
		fmt.Fprintf(out, "UNEXPECTED SKIP %s", u)
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	switch {
	case failed > 0:
		return fmt.Errorf("%d failed", failed)
	case len(unexpected) > 0:
		return fmt.Errorf("%d skipped that should have run", len(unexpected))
	case passed == 0:
		return fmt.Errorf("no test ran")
	}
	return nil
}
