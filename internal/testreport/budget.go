package main

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// budget is how many seconds each package may take. The zero value has no
// limits.
type budget struct {
	file     string
	module   string
	others   float64            // of packages without a line
	packages map[string]float64 // by directory
}

// readBudget reads a file of budgets. A line is a package's directory and its
// seconds. The line of the name "default" is for all other packages. A line that
// begins with # is a comment, and so is the rest of a line after a second field.
//
// A package that does not exist is an error: nobody would see that the budget of
// a package that moved holds no longer.
func readBudget(root fs.FS, name string) (budget, error) {
	if name == "" {
		return budget{}, nil
	}
	data, err := fs.ReadFile(root, path.Clean(name))
	if err != nil {
		return budget{}, err
	}
	b := budget{file: name, packages: map[string]float64{}}
	if b.module, err = moduleOf(root); err != nil {
		return budget{}, err
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if err := b.add(root, f); err != nil {
			return budget{}, fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	if b.others == 0 {
		return budget{}, fmt.Errorf("%s: no line of the name default", name)
	}
	return b, nil
}

func (b *budget) add(root fs.FS, fields []string) error {
	name := fields[0]
	if len(fields) < 2 {
		return fmt.Errorf("package %s has no seconds", name)
	}
	seconds, err := strconv.ParseFloat(fields[1], 64)
	if err != nil || !(seconds > 0) {
		return fmt.Errorf("package %s: %q is no number of seconds", name, fields[1])
	}
	if name == "default" {
		if b.others > 0 {
			return fmt.Errorf("a second line of the name default")
		}
		b.others = seconds
		return nil
	}
	if _, there := b.packages[name]; there {
		return fmt.Errorf("a second line for package %s", name)
	}
	if files, err := fs.Glob(root, path.Join(name, "*.go")); err != nil || len(files) == 0 {
		return fmt.Errorf("there is no package %s", name)
	}
	b.packages[name] = seconds
	return nil
}

// of is the budget of a package, given by its import path. It is 0 without a
// file of budgets.
func (b budget) of(importPath string) float64 {
	if s, ok := b.packages[b.short(importPath)]; ok {
		return s
	}
	return b.others
}

// short is the directory of a package within the module.
func (b budget) short(importPath string) string {
	return strings.TrimPrefix(importPath, b.module+"/")
}

// moduleOf is the path of the module whose root directory this is.
func moduleOf(root fs.FS) (string, error) {
	data, err := fs.ReadFile(root, "go.mod")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "module" {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("go.mod: no line of the name module")
}
