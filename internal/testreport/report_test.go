package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The events of one package with one test, as go test prints them.
const (
	passEvents = `{"Time":"2026-11-22T10:00:00Z","Action":"start","Package":"m/a"}
{"Time":"2026-11-22T10:00:00Z","Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"hello\n"}
{"Time":"2026-11-22T10:00:02Z","Action":"pass","Package":"m/a","Test":"TestA","Elapsed":2}
{"Time":"2026-11-22T10:00:03Z","Action":"pass","Package":"m/a","Elapsed":3}
`
	failEvents = `{"Action":"run","Package":"m/b","Test":"TestB"}
{"Action":"output","Package":"m/b","Test":"TestB","Output":"b_test.go:1: wrong\n"}
{"Action":"fail","Package":"m/b","Test":"TestB","Elapsed":1}
{"Action":"output","Package":"m/b","Output":"FAIL\tm/b\t1.0s\n"}
{"Action":"fail","Package":"m/b","Elapsed":1}
`
	skipEvents = `{"Action":"run","Package":"m/c","Test":"TestC/x"}
{"Action":"output","Package":"m/c","Test":"TestC/x","Output":"needs sctp\n"}
{"Action":"skip","Package":"m/c","Test":"TestC/x","Elapsed":0}
{"Action":"pass","Package":"m/c","Elapsed":0}
`
	subtestEvents = `{"Action":"run","Package":"m/f","Test":"TestF/x"}
{"Action":"output","Package":"m/f","Test":"TestF/x","Output":"=== RUN   TestF/x\n"}
{"Action":"output","Package":"m/f","Test":"TestF/x","Output":"    f_test.go:1: a ratio of 2\n"}
{"Action":"pass","Package":"m/f","Test":"TestF/x","Elapsed":1}
{"Action":"pass","Package":"m/f","Test":"TestF","Elapsed":1}
{"Action":"pass","Package":"m/f","Elapsed":1}
`
	buildEvents = `{"ImportPath":"m/d [m/d.test]","Action":"build-output","Output":"# m/d [m/d.test]\n"}
{"ImportPath":"m/d [m/d.test]","Action":"build-output","Output":"d_test.go:1:56: undefined: x\n"}
{"ImportPath":"m/d [m/d.test]","Action":"build-fail"}
{"Action":"start","Package":"m/d"}
{"Action":"output","Package":"m/d","Output":"FAIL\tm/d [build failed]\n"}
{"Action":"fail","Package":"m/d","Elapsed":0.003,"FailedBuild":"m/d [m/d.test]"}
`
	// A test that outlives -timeout has no event of its own end.
	timeoutEvents = `{"Action":"run","Package":"m/e","Test":"TestE"}
{"Action":"output","Package":"m/e","Test":"TestE","Output":"panic: test timed out after 1s\n"}
{"Action":"output","Package":"m/e","Output":"FAIL\tm/e\t1.006s\n"}
{"Action":"fail","Package":"m/e","Elapsed":1.006}
`
)

func TestReport(t *testing.T) {
	tests := []struct {
		name, in string
		skips    []string
		show     string
		budget   budget
		want     []string // parts of the report, in this order
		not      string
		err      string
	}{
		{
			name: "a test whose subtests are shown", in: subtestEvents, show: "TestF",
			want: []string{"pass  TestF/x 1.0s\n    f_test.go:1: a ratio of 2\n"}, not: "=== RUN",
		},
		{name: "a test whose subtests are not shown", in: subtestEvents, show: "Test", want: []string{"2 passed"}, not: "a ratio of 2"},
		{
			name: "a good run", in: passEvents, not: "hello",
			want: []string{"pass  m/a 3.0s", "2.0 s  m/a TestA", "3.0 s  m/a", "3.0 s in all packages, 3.0 s from the first event to the last", "1 passed, 0 failed, 0 skipped"},
		},
		{
			name: "a failed test", in: passEvents + failEvents, err: "2 failed",
			want: []string{"FAIL m/b TestB\nb_test.go:1: wrong\n", "FAIL m/b\n", "1 passed, 2 failed"},
		},
		{
			name: "a build that fails", in: buildEvents + passEvents, err: "1 failed",
			want: []string{"FAIL m/d\n# m/d [m/d.test]\nd_test.go:1:56: undefined: x\nFAIL\tm/d [build failed]\n", "pass  m/a", "1 passed, 1 failed"},
		},
		{
			name: "a test without a verdict", in: timeoutEvents + passEvents, err: "2 failed",
			want: []string{"FAIL m/e TestE\npanic: test timed out after 1s\ntestreport: the test has no verdict\n", "FAIL m/e\n"},
		},
		{name: "a verdict lost in the output of a package that passes", in: `{"Action":"run","Package":"m/f","Test":"TestF"}
{"Action":"pass","Package":"m/f","Elapsed":1}
` + passEvents, want: []string{"pass  m/f 1.0s", "1 passed, 0 failed"}},
		{
			name: "go test that is killed", in: passEvents + `{"Action":"run","Package":"m/b","Test":"TestB"}` + "\n", err: "1 failed",
			want: []string{"FAIL m/b TestB\ntestreport: the test has no verdict"},
		},
		{
			name: "an expected skip", in: skipEvents + passEvents, skips: []string{"TestC/"},
			want: []string{"1 passed, 0 failed, 1 skipped"}, not: "UNEXPECTED",
		},
		{
			name: "a skip that is not expected", in: skipEvents + passEvents, skips: []string{"TestC"}, err: "1 skipped that should have run",
			want: []string{"UNEXPECTED SKIP m/c TestC/x\nneeds sctp\n"},
		},
		{name: "no line", in: "", err: "no test ran", want: []string{"0 passed, 0 failed, 0 skipped"}},
		{
			name: "only garbage", in: "# m/d\nd.go:1: syntax error\n{\"Action\":\n[1]\n3\nnull\n\n", err: "no test ran",
			want: []string{"# m/d\nd.go:1: syntax error\n{\"Action\":\n[1]\n3\nnull\n"},
		},
		{
			name: "garbage between events", in: "go: downloading\n" + passEvents + "\x00\xff{}\n{}\n",
			want: []string{"go: downloading\n", "pass  m/a", "\x00\xff{}\n{}\n", "1 passed, 0 failed"},
		},
		{name: "a line that is too long", in: strings.Repeat("x", 17<<20), err: "read the output of go test: bufio.Scanner: token too long"},
		{
			name: "within the budget", in: passEvents, budget: budget{file: ".ci/budget", module: "m", others: 3},
			want: []string{"2.0 s  a TestA", "3.0 s of    3 s  a\n"}, not: "WARNING",
		},
		{
			name: "over the budget", in: passEvents, not: "budget is 9",
			budget: budget{file: ".ci/budget", module: "m", others: 9, packages: map[string]float64{"a": 2}},
			want:   []string{"3.0 s of    2 s  a\n", "WARNING: a took 3.0 s, its budget is 2 s (.ci/budget)\n", "1 passed, 0 failed"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			r := newReporter(&out, tt.skips, "")
			r.show = tt.show
			err := r.read(strings.NewReader(tt.in))
			if err == nil {
				err = r.close(tt.budget)
			}
			if got := errorText(err); got != tt.err {
				t.Errorf("error %q, want %q", got, tt.err)
			}
			rest := out.String()
			for _, w := range tt.want {
				_, after, found := strings.Cut(rest, w)
				if !found {
					t.Fatalf("no %q in its place in\n%s", w, out.String())
				}
				rest = after
			}
			if tt.not != "" && strings.Contains(out.String(), tt.not) {
				t.Errorf("%q is in\n%s", tt.not, out.String())
			}
		})
	}
}

// TestLogs shows that each failed test has a file with its output, which the
// report names.
func TestLogs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	odd := "TestX/../../etc/" + strings.Repeat("é", 300)
	in := failEvents + fmt.Sprintf(`{"Action":"output","Package":"m/b","Test":%q,"Output":"odd\n"}
{"Action":"fail","Package":"m/b","Test":%[1]q}
`, odd)
	var out strings.Builder
	r := newReporter(&out, nil, dir)
	if err := r.read(strings.NewReader(in)); err != nil {
		t.Fatal(err)
	}
	if err := r.close(budget{}); err == nil {
		t.Error("no error of a failed run")
	}
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^FAIL .*: (\S+\.log)$`).FindAllStringSubmatch(out.String(), -1) {
		if filepath.Dir(m[1]) != dir {
			t.Errorf("%s is not in %s", m[1], dir)
		}
		text, err := os.ReadFile(m[1])
		if err != nil {
			t.Error(err)
		}
		got = append(got, string(text))
	}
	want := []string{"b_test.go:1: wrong\n", "FAIL\tm/b\t1.0s\n", "odd\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("logs that the report names (-want +got):\n%s", diff)
	}
}

func TestSlowest(t *testing.T) {
	cases := []timed{{"m", "TestTable", 5, 0}}
	for i := range 100 {
		cases = append(cases, timed{"m", fmt.Sprintf("TestTable/case%d", i), 0.05, 0})
	}
	tests := []struct {
		name string
		in   []timed
		n    int
		want []timed
	}{
		{"none", nil, 3, nil},
		{
			"the slowest first",
			[]timed{{"m", "A", 1, 0}, {"n", "A", 3, 0}, {"m", "B", 2, 0}},
			2,
			[]timed{{"n", "A", 3, 0}, {"m", "B", 2, 0}},
		},
		{
			"a parent and its only slow child are one row",
			[]timed{{"m", "A/x", 9, 0}, {"m", "A/y", 0.01, 0}, {"m", "A", 9, 0}, {"m", "B", 1, 0}},
			3,
			[]timed{{"m", "A/x", 9, 0}, {"m", "B", 1, 0}},
		},
		{
			"what the parent does itself",
			[]timed{{"m", "A", 9, 0}, {"m", "A/x", 6, 0}},
			3,
			[]timed{{"m", "A/x", 6, 0}, {"m", "A", 3, 1}},
		},
		{
			"a grandchild",
			[]timed{{"m", "A", 9, 0}, {"m", "A/x", 9, 0}, {"m", "A/x/y", 9, 0}},
			3,
			[]timed{{"m", "A/x/y", 9, 0}},
		},
		{"many small subtests are their parent's row", cases, 3, cases[:1]},
		{
			"parallel subtests are longer than their parent",
			[]timed{{"m", "A", 1, 0}, {"m", "A/x", 8, 0}, {"m", "A/y", 7, 0}},
			3,
			[]timed{{"m", "A/x", 8, 0}, {"m", "A/y", 7, 0}},
		},
		{
			"same names in two packages",
			[]timed{{"m", "A", 4, 0}, {"n", "A", 4, 0}, {"n", "A/x", 4, 0}},
			3,
			[]timed{{"m", "A", 4, 0}, {"n", "A/x", 4, 0}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := slowest(tt.in, tt.n)
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(timed{})); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
