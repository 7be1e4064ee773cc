// Package programs finds the native programs that come with tsugiki: helper processes,
// and what runs in containers. It starts none. It needs no privileges.
package programs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ErrMissing says that a program is in none of the places where it may be.
var ErrMissing = errors.New("program is missing")

// Find returns the path of a program: beside this one's, or where packages and
// make install put it.
func Find(name string) (string, error) {
	dirs := []string{"/usr/lib/tsugiki", "/usr/libexec/tsugiki"}
	if self, err := os.Executable(); err == nil {
		bin := filepath.Dir(self)
		dirs = append([]string{bin, filepath.Join(bin, "../lib/tsugiki")}, dirs...)
	}
	return FindIn(name, dirs)
}

// FindIn returns the path of a program in the first of some directories that
// has it.
func FindIn(name string, dirs []string) (string, error) {
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %s is not in %s; build it with make build, or reinstall", ErrMissing, name, strings.Join(dirs, ", "))
}
