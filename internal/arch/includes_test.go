package arch

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// cFolders are the folders of C programs, from the module's root.
var cFolders = []string{"charge/journal/c", "gate/c", "keeper/c", "native/logger", "native/privilege", "policy/c", "shim/c"}

// A part is a C file and the header of the same name, or one of them alone. It is named by its
// path without the ending.
type part struct {
	files    []string
	includes []string // parts
}

var (
	includeRE = regexp.MustCompile(`(?m)^#include "([^"]+)"`)
	commentRE = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	bodyRE    = regexp.MustCompile(`(?s)\{[^{}]*\}`)
	macroRE   = regexp.MustCompile(`(?m)^#(.*\\\n)*.*`)
	// A declaration of a function: what is before its name, and the name.
	declaredRE = regexp.MustCompile(`(?m)^([^;(\n]*)\b(\w+)\([^;]*;`)
)

func name(file string) string { return strings.TrimSuffix(file, filepath.Ext(file)) }

// partsOf reads the C files of folders below root.
func partsOf(t *testing.T, root string, folders []string) map[string]*part {
	t.Helper()
	parts := map[string]*part{}
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(root, folder, "*.[ch]"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			p := parts[name(file)]
			if p == nil {
				p = &part{}
				parts[name(file)] = p
			}
			p.files = append(p.files, file)
			for _, m := range includeRE.FindAllStringSubmatch(read(t, file), -1) {
				if to := name(filepath.Join(filepath.Dir(file), m[1])); to != name(file) {
					p.includes = append(p.includes, to)
				}
			}
		}
	}
	return parts
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// circle is a way through includes from the last part of path back to one that is on it, or nil.
// Parts that lead to none are added to done.
func circle(parts map[string]*part, path []string, done map[string]bool) []string {
	at := path[len(path)-1]
	if i := slices.Index(path, at); i < len(path)-1 {
		return path[i:]
	}
	p := parts[at]
	if p == nil || done[at] {
		return nil
	}
	for _, to := range p.includes {
		if c := circle(parts, append(slices.Clone(path), to), done); c != nil {
			return c
		}
	}
	done[at] = true
	return nil
}

// anyCircle says what includes what in one circle, if there is any.
func anyCircle(parts map[string]*part) string {
	done := map[string]bool{}
	for _, from := range slices.Sorted(maps.Keys(parts)) {
		if c := circle(parts, []string{from}, done); c != nil {
			return strings.Join(c, " includes ")
		}
	}
	return ""
}

// foreign are the functions that a header declares and the C file of the same name does not
// define. By such a header a part can use another without including it.
func foreign(t *testing.T, p *part) (found []string) {
	t.Helper()
	var header, source string
	for _, file := range p.files {
		text := commentRE.ReplaceAllString(read(t, file), "")
		if filepath.Ext(file) == ".c" {
			source = text
			continue
		}
		header = macroRE.ReplaceAllString(text, "")
		for bodyRE.MatchString(header) {
			header = bodyRE.ReplaceAllString(header, ";")
		}
	}
	for _, m := range declaredRE.FindAllStringSubmatch(header, -1) {
		before, name := m[1], m[2]
		defined := regexp.MustCompile(`(?m)^\w[^;\n]*\b` + name + `\(`)
		if name != "_Static_assert" && !strings.Contains(before, "inline") && !defined.MatchString(source) {
			found = append(found, name)
		}
	}
	return found
}

// A part of a C program is used by those that include it, and uses none of them.
func TestIncludesHaveNoCircle(t *testing.T) {
	parts := partsOf(t, "../..", cFolders)
	for _, folder := range cFolders {
		if matches, _ := filepath.Glob(filepath.Join("../..", folder, "*.c")); len(matches) == 0 {
			t.Errorf("%s has no C files", folder)
		}
	}
	if c := anyCircle(parts); c != "" {
		t.Error(c)
	}
	for name, p := range parts {
		for _, function := range foreign(t, p) {
			t.Errorf("%s.h declares %s: the header of the file that defines it is to do so", name, function)
		}
	}
}

func TestCirclesAreFound(t *testing.T) {
	for _, c := range []struct {
		name    string
		files   map[string]string
		circle  bool
		foreign string
	}{
		{"a line", map[string]string{"a.c": `#include "a.h"` + "\n" + `#include "b.h"`, "a.h": "", "b.h": `#include "c.h"`, "c.h": ""}, false, ""},
		{"two", map[string]string{"a.c": `#include "b.h"`, "a.h": "", "b.c": `#include "a.h"`, "b.h": ""}, true, ""},
		{"three", map[string]string{"a.c": `#include "b.h"`, "b.h": `#include "c.h"`, "c.c": `#include "a.h"`, "c.h": "", "a.h": ""}, true, ""},
		{"a circle that is entered", map[string]string{"a.c": `#include "b.h"`, "b.h": `#include "c.h"`, "c.c": `#include "b.h"`, "c.h": ""}, true, ""},
		{"own functions", map[string]string{"a.h": "int f(int a,\n\tint b);\nstruct s { void (*g)(void); };\nstatic inline int h(void)\n{\n\treturn f(1, 2);\n}\n", "a.c": "int f(int a,\n\tint b)\n{\n}\n"}, false, ""},
		{"another's function", map[string]string{"a.h": "/* int f(void); */\nint g(void);\n", "a.c": "int f(void)\n{\n\tg();\n\treturn g();\n}\n", "b.c": "int g(void)\n{\n}\n"}, false, "g"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range c.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			parts := partsOf(t, dir, []string{"."})
			if got := anyCircle(parts); (got != "") != c.circle {
				t.Errorf("circle %q, want one: %v", got, c.circle)
			}
			var got []string
			for _, p := range parts {
				got = append(got, foreign(t, p)...)
			}
			if fmt.Sprint(got) != "["+c.foreign+"]" {
				t.Errorf("foreign functions %v, want [%s]", got, c.foreign)
			}
		})
	}
}

// The table of the gate's parts in docs/design/gate.md has every part, from the top down, with what
// each includes.
func TestTableOfTheGate(t *testing.T) {
	parts := partsOf(t, "../..", []string{"gate/c"})
	rowRE := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| [^|]+ \\| ([^|]+) \\|$")
	var above []string
	_, section, _ := strings.Cut(read(t, "../../docs/design/gate.md"), "| part | owns | includes |")
	section, _, _ = strings.Cut(section, "\n\n")
	for _, row := range rowRE.FindAllStringSubmatch(section, -1) {
		p := parts["../../gate/c/"+row[1]]
		if p == nil {
			t.Errorf("the table has %s, which is no part of the gate", row[1])
			continue
		}
		var includes []string
		for _, to := range p.includes {
			if folder, name := filepath.Split(to); folder == "../../gate/c/" {
				includes = append(includes, name)
			}
		}
		slices.Sort(includes)
		includes = slices.Compact(includes)
		want := strings.Split(row[2], ", ")
		slices.Sort(want)
		if got := cmp.Or(strings.Join(includes, ", "), "none"); got != strings.Join(want, ", ") {
			t.Errorf("%s includes %s; the table says %s", row[1], got, row[2])
		}
		for _, name := range includes {
			if slices.Contains(above, name) {
				t.Errorf("%s includes %s, which is above it", row[1], name)
			}
		}
		above = append(above, row[1])
	}
	for path := range parts {
		if name := filepath.Base(path); !strings.HasPrefix(name, "fuzz_") && !slices.Contains(above, name) {
			t.Errorf("the table has no %s", name)
		}
	}
}
