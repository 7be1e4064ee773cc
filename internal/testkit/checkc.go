package testkit

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// CheckC has the C compiler compare what a header says with what a Go package says. Each key of
// want is a C expression that is constant, or the name of a C type; its value is Go's:
//
//	an integer  the expression has this value
//	a string    the expression is a string with these bytes
//	a struct    the type has the same size, and each field of Go's has a namesake in C with the
//	            same offset and size
//
// A namesake is the Go name in snake case, or the field's tag `c`. Fields called _ are padding
// that C may name. CheckC skips the test where there is no C compiler.
func CheckC(t TB, header string, want map[string]any) {
	t.Helper()
	Program(t, "cc")
	source := fmt.Sprintf("#include <stddef.h>\n#include <stdint.h>\n#include %q\n", header)
	if err := openIncluded(source); err != nil {
		t.Fatalf("%v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		source += assertions(name, reflect.ValueOf(want[name]))
	}
	if out, err := compileC(source, "-fsyntax-only"); err != nil {
		t.Errorf("Go and %s differ: %v\n%s", header, err, out)
	}
}

func compileC(source string, flags ...string) ([]byte, error) {
	cmd := exec.Command("cc", append(flags, "-std=gnu11", "-iquote", ".", "-x", "c", "-")...)
	cmd.Stdin = strings.NewReader(source)
	return cmd.CombinedOutput()
}

// openIncluded opens all files of ours that a source includes. So they are known to go test, whose
// cached results depend on them.
func openIncluded(source string) error {
	out, err := compileC(source, "-MM", "-MT", "all")
	if err != nil {
		return fmt.Errorf("find included headers: %w\n%s", err, out)
	}
	rule := strings.ReplaceAll(strings.TrimPrefix(string(out), "all:"), "\\\n", " ")
	for _, path := range strings.Fields(rule) {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		f.Close()
	}
	return nil
}

// assertions are C statements that fail to compile where C and Go differ.
func assertions(name string, value reflect.Value) string {
	switch {
	case value.Kind() == reflect.Struct:
		return structAssertions(name, value.Type())
	case value.Kind() == reflect.String:
		s := value.String()
		return assertion(fmt.Sprintf("sizeof(%s)", name), uint64(len(s)+1)) +
			assertion(fmt.Sprintf("__builtin_memcmp(%s, %q, %d)", name, s, len(s)), 0)
	case value.CanInt():
		return assertion(name, uint64(value.Int()))
	default:
		return assertion(name, value.Uint())
	}
}

func structAssertions(name string, t reflect.Type) string {
	all := assertion(fmt.Sprintf("sizeof(%s)", name), uint64(t.Size()))
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Name == "_" {
			continue
		}
		c := f.Tag.Get("c")
		if c == "" {
			c = snakeCase(f.Name)
		}
		all += assertion(fmt.Sprintf("offsetof(%s, %s)", name, c), uint64(f.Offset))
		all += assertion(fmt.Sprintf("sizeof(((%s *)0)->%s)", name, c), uint64(f.Type.Size()))
	}
	return all
}

func assertion(expression string, want uint64) string {
	says := fmt.Sprintf("Go has %d for %s", want, expression)
	return fmt.Sprintf("_Static_assert((uint64_t)(%s) == %dull, %q);\n", expression, want, says)
}

// snakeCase is the C name of a Go field: batchSockets is batch_sockets.
func snakeCase(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
