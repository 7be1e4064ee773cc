package main

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestReadBudget(t *testing.T) {
	tests := []struct {
		name, text string
		want       map[string]float64 // by import path
		err        string
	}{
		{
			name: "packages and comments", text: "# a comment\n\ndefault 5 of all others\ne2e 600 the slowest\n\tcharge/enforce\t1.5\n",
			want: map[string]float64{"m.org/t/e2e": 600, "m.org/t/charge/enforce": 1.5, "m.org/t/relay": 5, "m.org/t/enforce": 5},
		},
		{name: "no such package", text: "default 5\nrelay2 3\n", err: "budget:2: there is no package relay2"},
		{name: "a directory without Go files", text: "default 5\ndocs 3\n", err: "budget:2: there is no package docs"},
		{name: "outside of the module", text: "default 5\n../x 3\n", err: "budget:2: there is no package ../x"},
		{name: "no seconds", text: "e2e\n", err: "budget:1: package e2e has no seconds"},
		{name: "no number", text: "e2e ten\n", err: `budget:1: package e2e: "ten" is no number of seconds`},
		{name: "no time", text: "e2e 0\n", err: `budget:1: package e2e: "0" is no number of seconds`},
		{name: "not a number", text: "e2e NaN\n", err: `budget:1: package e2e: "NaN" is no number of seconds`},
		{name: "twice", text: "e2e 3\ne2e 4\n", err: "budget:2: a second line for package e2e"},
		{name: "two defaults", text: "default 3\ndefault 4\n", err: "budget:2: a second line of the name default"},
		{name: "no default", text: "e2e 3\n", err: "budget: no line of the name default"},
		{name: "empty", err: "budget: no line of the name default"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := fstest.MapFS{
				"go.mod":                  {Data: []byte("// a comment\nmodule m.org/t\n\ngo 1.24\n")},
				"budget":                  {Data: []byte(tt.text)},
				"e2e/e2e_test.go":         {},
				"charge/enforce/group.go": {},
				"relay/relay.go":          {},
				"docs/API.md":             {},
			}
			b, err := readBudget(root, "budget")
			if got := errorText(err); got != tt.err {
				t.Fatalf("error %q, want %q", got, tt.err)
			}
			for path, want := range tt.want {
				if got := b.of(path); got != want {
					t.Errorf("%s may take %v s, want %v", path, got, want)
				}
			}
		})
	}
}

// TestBudgetOfThisModule finds a line for a package that is no more, without a
// run of all tests.
func TestBudgetOfThisModule(t *testing.T) {
	b, err := readBudget(os.DirFS("../.."), ".ci/budget")
	if err != nil {
		t.Fatal(err)
	}
	for p := range b.packages {
		if strings.HasSuffix(p, "/") {
			t.Errorf("%q ends in a slash: no package's name does", p)
		}
	}
}
