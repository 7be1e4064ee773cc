package ldd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestLibraries(t *testing.T) {
	libraries, err := Libraries("/bin/ls")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(libraries, func(path string) bool { return strings.HasPrefix(filepath.Base(path), "libc.so") }) {
		t.Errorf("of ls: %v, want the C library too", libraries)
	}
	for _, path := range libraries {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	if libraries, err := Libraries("/bin/busybox"); err != nil || len(libraries) > 0 {
		t.Errorf("of a static program: %v, %v", libraries, err)
	}
	if _, err := Libraries("/etc/passwd"); err == nil {
		t.Error("of a text: no error")
	}
}
