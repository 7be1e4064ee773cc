package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// slowRows is how many of the slowest tests are listed.
const slowRows = 20

// event is a line of go test -json, see go doc test2json and go help buildjson.
type event struct {
	Time        time.Time
	Action      string
	Package     string
	ImportPath  string // of build-output, instead of Package
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string // of fail: the ImportPath whose build failed
}

// reporter follows a run of go test.
type reporter struct {
	out      io.Writer
	expected []string // skips
	logs     string   // directory, empty for none
	show     string   // subtests of this test are shown; empty for none

	output map[string]*strings.Builder // of what has no verdict yet, see event.key
	begun  map[string][]string         // tests without a verdict, by package

	passed, skipped int
	failures        []string // what failed, with the path of its log
	unexpected      []string // skips
	tests, packages []timed
	first, last     time.Time
}

func newReporter(out io.Writer, expected []string, logs string) *reporter {
	return &reporter{
		out: out, expected: expected, logs: logs,
		output: map[string]*strings.Builder{}, begun: map[string][]string{},
	}
}

// key says whose output an event's is: of a build, of a package or of a test.
func (e event) key() string {
	if e.ImportPath != "" {
		return "build " + e.ImportPath
	}
	return strings.TrimSpace(e.Package + " " + e.Test)
}

// read takes all events. A line that is no event is shown: it is an error of
// go test itself.
func (r *reporter) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Action == "" {
			fmt.Fprintln(r.out, lines.Text())
			continue
		}
		if err := r.event(e); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the output of go test: %w", err)
	}
	return r.cutOff()
}

func (r *reporter) event(e event) error {
	if !e.Time.IsZero() {
		if r.first.IsZero() {
			r.first = e.Time
		}
		r.last = e.Time
	}
	switch e.Action {
	case "run":
		r.begun[e.Package] = append(r.begun[e.Package], e.Test)
	case "output", "build-output":
		o := r.output[e.key()]
		if o == nil {
			o = &strings.Builder{}
			r.output[e.key()] = o
		}
		o.WriteString(e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			return r.packageEnds(e)
		}
		return r.testEnds(e)
	}
	return nil
}

func (r *reporter) testEnds(e event) error {
	r.begun[e.Package] = slices.DeleteFunc(r.begun[e.Package], func(t string) bool { return t == e.Test })
	r.tests = append(r.tests, timed{pkg: e.Package, name: e.Test, seconds: e.Elapsed})
	text := r.take(e.key())
	if of, _, is := strings.Cut(e.Test, "/"); is && of == r.show && e.Action != "fail" {
		fmt.Fprintf(r.out, "%-5s %s %.1fs\n%s", e.Action, e.Test, e.Elapsed, logged(text))
	}
	switch e.Action {
	case "fail":
		return r.fail(e.key(), text)
	case "skip":
		r.skipped++
		if !isExpected(e.Test, r.expected) {
			r.unexpected = append(r.unexpected, e.key()+"\n"+text)
		}
	default:
		r.passed++
	}
	return nil
}

// logged returns what a test itself has said of its output.
func logged(text string) string {
	var said strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "    ") {
			said.WriteString(line)
		}
	}
	return said.String()
}

func (r *reporter) packageEnds(e event) error {
	r.packages = append(r.packages, timed{pkg: e.Package, seconds: e.Elapsed})
	text := r.take(e.key())
	if e.Action != "fail" {
		// A verdict is lost when a program prints half a line before it. The process's
		// status is right nevertheless.
		delete(r.begun, e.Package)
		fmt.Fprintf(r.out, "%-5s %s %.1fs\n", e.Action, e.Package, e.Elapsed)
		return nil
	}
	if err := r.unfinished(e.Package); err != nil {
		return err
	}
	return r.fail(e.key(), r.take("build "+e.FailedBuild)+text)
}

// unfinished fails the tests of a package that have no verdict. Their process
// ended before they did, for example at the limit of go test -timeout.
func (r *reporter) unfinished(pkg string) error {
	for _, test := range r.begun[pkg] {
		name := pkg + " " + test
		if err := r.fail(name, r.take(name)+"testreport: the test has no verdict\n"); err != nil {
			return err
		}
	}
	delete(r.begun, pkg)
	return nil
}

// cutOff fails what has no verdict when all events are read: go test itself was
// killed.
func (r *reporter) cutOff() error {
	var pkgs []string
	for pkg := range r.begun {
		pkgs = append(pkgs, pkg)
	}
	slices.Sort(pkgs)
	for _, pkg := range pkgs {
		if err := r.unfinished(pkg); err != nil {
			return err
		}
	}
	return nil
}

// take returns the output under a key and forgets it.
func (r *reporter) take(key string) string {
	o := r.output[key]
	if o == nil {
		return ""
	}
	delete(r.output, key)
	return o.String()
}

// fail shows a failure and writes its log.
func (r *reporter) fail(name, text string) error {
	fmt.Fprintf(r.out, "FAIL %s\n%s", name, text)
	if r.logs == "" {
		r.failures = append(r.failures, name)
		return nil
	}
	if err := os.MkdirAll(r.logs, 0o755); err != nil {
		return err
	}
	path := filepath.Join(r.logs, logName(len(r.failures)+1, name))
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	r.failures = append(r.failures, name+": "+path)
	return nil
}

// logName is a file's name for the nth failure. A test's name can have any
// characters, and can be longer than a file's.
func logName(n int, name string) string {
	clean := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-':
			return c
		}
		return '_'
	}, name)
	return fmt.Sprintf("%03d-%s.log", n, clean[max(0, len(clean)-150):])
}

// close prints the report. It returns an error if the run is not good.
func (r *reporter) close(b budget) error {
	slices.Sort(r.unexpected)
	for _, u := range r.unexpected {
		fmt.Fprintf(r.out, "UNEXPECTED SKIP %s", u)
	}
	r.times(b)
	for _, f := range r.failures {
		fmt.Fprintf(r.out, "FAIL %s\n", f)
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, len(r.failures), r.skipped)
	switch {
	case len(r.failures) > 0:
		return fmt.Errorf("%d failed", len(r.failures))
	case len(r.unexpected) > 0:
		return fmt.Errorf("%d skipped that should have run", len(r.unexpected))
	case r.passed == 0:
		return fmt.Errorf("no test ran")
	}
	return nil
}

// times prints where the time went.
func (r *reporter) times(b budget) {
	fmt.Fprintf(r.out, "\nThe slowest tests:\n")
	for _, t := range slowest(r.tests, slowRows) {
		rest := ""
		if t.split > 0 {
			rest = fmt.Sprintf(" (%d slow subtests are counted apart)", t.split)
		}
		fmt.Fprintf(r.out, "%8.1f s  %s %s%s\n", t.seconds, b.short(t.pkg), t.name, rest)
	}
	fmt.Fprintf(r.out, "\nThe packages:\n")
	slices.SortStableFunc(r.packages, func(x, y timed) int { return cmp.Compare(y.seconds, x.seconds) })
	sum := 0.0
	var over []string
	for _, p := range r.packages {
		sum += p.seconds
		limit := b.of(p.pkg)
		if limit == 0 {
			fmt.Fprintf(r.out, "%8.1f s  %s\n", p.seconds, b.short(p.pkg))
			continue
		}
		fmt.Fprintf(r.out, "%8.1f s of %4.0f s  %s\n", p.seconds, limit, b.short(p.pkg))
		if p.seconds > limit {
			over = append(over, fmt.Sprintf("%s took %.1f s, its budget is %.0f s (%s)", b.short(p.pkg), p.seconds, limit, b.file))
		}
	}
	fmt.Fprintf(r.out, "\n%.1f s in all packages, %.1f s from the first event to the last\n", sum, r.last.Sub(r.first).Seconds())
	for _, o := range over {
		fmt.Fprintf(r.out, "WARNING: %s\n", o)
	}
}
