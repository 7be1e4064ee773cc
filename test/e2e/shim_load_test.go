package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// compile builds a source of testdata/loaded. Where there is no such compiler the
// test is skipped.
func compile(t *testing.T, source string, command ...string) string {
	t.Helper()
	testkit.Program(t, command[0])
	dir, err := os.MkdirTemp(tmpDir, "loaded-")
	if err == nil {
		err = unix.Chmod(dir, 0o755) // for other users
	}
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "loaded")
	args := append(command[1:], "-O1", "-Wall", "-Wextra", "-Werror", "-o", out, filepath.Join("testdata/loaded", source))
	if text, err := exec.Command(command[0], args...).CombinedOutput(); err != nil {
		if slices.Contains(command, "-m32") {
			t.Skipf("skip: needs a C library for %s -m32", command[0])
		}
		t.Fatalf("compile %s: %v\n%s", source, err, text)
	}
	return out
}

// The shim is in the programs of every C library, and 32-bit ones, which cannot
// have it, get no complaint.
func TestShimLoads(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for _, tt := range []struct {
		name     string
		compiler []string
		parked   string
	}{
		{"glibc", []string{"gcc"}, "yes"},
		{"musl", []string{"musl-gcc"}, "yes"},
		{"32-bit", []string{"gcc", "-m32", "-idirafter", "/usr/include/x86_64-linux-gnu"}, "no"},
		{"static", []string{"gcc", "-static"}, "no"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "32-bit" && runtime.GOARCH != "amd64" {
				t.Skip("skip: needs the i386 ABI")
			}
			program := compile(t, "loaded.c", tt.compiler...)
			for _, mode := range shimModes {
				r := try(t, graft(t, a.Host, append(inMode(mode, hostFirst()), "--", program)...))
				if want := "failed: 0\nparked: " + tt.parked + "\n"; r.err != nil || r.stdout != want || r.stderr != "" {
					t.Errorf("%s: %v, printed %q and %q, want %q", mode, r.err, r.stdout, r.stderr, want)
				}
			}
		})
	}
}

// Libraries that are preloaded anyway see what they would see without us.
func TestShimBesideOtherLibraries(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	program := compile(t, "loaded.c", "gcc")
	other := compile(t, "other.c", "gcc", "-shared", "-fPIC")
	second := compile(t, "other.c", "gcc", "-shared", "-fPIC")
	for _, tt := range []struct{ name, value, stderr string }{
		{"none", "", ""},
		{"one", other, "other: 20\n"},
		{"colon", other + ":" + second, "other: 20\nother: 20\n"},
		{"space", other + " " + second, "other: 20\nother: 20\n"},
		{"at the end", ":" + other + ":", "other: 20\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, mode := range shimModes {
				c := graft(t, a.Host, append(inMode(mode, hostFirst()), "--", program)...)
				c.Env = append(os.Environ(), "LD_PRELOAD="+tt.value)
				r := try(t, c)
				if want := "failed: 0\nparked: yes\n"; r.err != nil || r.stdout != want || r.stderr != tt.stderr {
					t.Errorf("%s: %v, printed %q and %q, want %q and %q", mode, r.err, r.stdout, r.stderr, want, tt.stderr)
				}
			}
		})
	}
}

// A shim that the program's user cannot read is none: done without, where that will
// do, and else an error.
func TestShimUnreadable(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	program := compile(t, "loaded.c", "gcc")
	dir := copyTree(t, filepath.Dir(tsugiki))
	if err := os.Chmod(filepath.Join(dir, "libtsugiki.so"), 0o700); err != nil {
		t.Fatal(err)
	}
	run := func(mode string) result {
		args := append(append([]string{"run", "--run-dir", runDir}, inMode(mode, hostFirst())...), "--user", "65534:65534", "--", program)
		return try(t, command(t, a.Host, filepath.Join(dir, "tsugiki"), args...))
	}
	r := run("auto")
	if r.err != nil || r.stdout != "failed: 0\nparked: no\n" || r.stderr != "" {
		t.Errorf("auto: %v, printed %q and %q", r.err, r.stdout, r.stderr)
	}
	r = run("preload")
	if want := "cannot read"; exitStatus(r.err) != 1 || r.stdout != "" || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("preload: %v, printed %q and %q, want an error: %s", r.err, r.stdout, r.stderr, want)
	}
	if err := os.Chmod(filepath.Join(dir, "libtsugiki.so"), 0o755); err != nil {
		t.Fatal(err)
	}
	if r = run("preload"); r.stdout != "failed: 0\nparked: yes\n" {
		t.Errorf("readable: %v, printed %q and %q", r.err, r.stdout, r.stderr)
	}
}

// copyTree copies a folder of files and links to where every user finds it.
func copyTree(t *testing.T, from string) string {
	t.Helper()
	to, err := os.MkdirTemp(tmpDir, "bin-")
	if err == nil {
		err = unix.Chmod(to, 0o755)
	}
	if err == nil {
		err = exec.Command("cp", "-a", from+"/.", to).Run()
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}
