package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
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

// A program takes the place of an applet, and leaves busybox as it was. A copy has the same
// files, links and modes.
func TestRoot(t *testing.T) {
	r := Root(filepath.Join(t.TempDir(), "root"))
	if err := r.Make(); err != nil {
		t.Fatal(err)
	}
	busybox, err := os.ReadFile(r.path("bin/busybox"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Install("yes"); err != nil {
		t.Fatal(err)
	}
	if err := r.Put("/www/index.html", []byte("hello\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	copied := Root(filepath.Join(t.TempDir(), "copy"))
	if err := r.CopyTo(string(copied)); err != nil {
		t.Fatal(err)
	}
	for _, root := range []Root{r, copied} {
		if again, err := os.ReadFile(root.path("bin/busybox")); err != nil || !bytes.Equal(again, busybox) {
			t.Errorf("%s: busybox has changed: %v", root, err)
		}
		if st, err := os.Lstat(root.path("bin/yes")); err != nil || !st.Mode().IsRegular() || st.Mode().Perm() != 0o755 {
			t.Errorf("%s: yes: %v, %v", root, st, err)
		}
		if link, err := os.Readlink(root.path("bin/sh")); err != nil || link != "busybox" {
			t.Errorf("%s: sh: %q, %v", root, link, err)
		}
		if st, err := os.Stat(root.path("tmp")); err != nil || st.Mode().Perm() != 0o777 || st.Mode()&os.ModeSticky == 0 {
			t.Errorf("%s: tmp: %v, %v", root, st, err)
		}
		if st, err := os.Stat(root.path("www/index.html")); err != nil || st.Mode().Perm() != 0o640 {
			t.Errorf("%s: index.html: %v, %v", root, st, err)
		}
	}
	if err := r.Install("no-such-program"); !errors.Is(err, ErrMissing) {
		t.Errorf("no such program: %v, want %v", err, ErrMissing)
	}
}

// The config.json is a whole one. A container that changes its spec changes no other's.
func TestSpec(t *testing.T) {
	first, err := Spec("/root", "true")
	if err != nil {
		t.Fatal(err)
	}
	first.Process.Env = append(first.Process.Env, "A=1")
	first.Mounts[0].Destination = "/other"
	second, err := Spec("/root", "true")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := Write(dir, second); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var read specs.Spec
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	if read.Mounts[0].Destination != "/proc" || len(read.Process.Env) != 1 || len(read.Linux.Seccomp.Syscalls) == 0 || read.Process.Args[0] != "true" {
		t.Errorf("config.json: %s", data)
	}
}
