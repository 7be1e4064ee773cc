package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/tsugiki/tsugiki/internal/sys/lock"
)

// binEnv names the folder of built binaries for tests of an installed tree.
const binEnv = "TSUGIKI_BIN"

// Program finds a program that a test needs and skips the test where it is
// missing.
func Program(t TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("skip: needs the program %s", name)
	}
	return path
}

// Programs checks that all of some programs are installed; the error is a
// NeedsError that names each missing one.
func Programs(names ...string) error {
	var missing []string
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return &NeedsError{"the programs " + strings.Join(missing, ", ")}
	}
	return nil
}

// BuildTsugiki returns the folder that holds the built binaries: that of the
// environment variable TSUGIKI_BIN if it is set, else bin in the module's
// root, brought up to date by make once per process.
func BuildTsugiki(t TB) string {
	t.Helper()
	dir, err := Binaries()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return dir
}

// BuildSanitized returns a folder with binaries whose C parts have the sanitizers of addresses
// and of undefined behaviour, and an empty folder that these write their findings to. It is
// "sanitized" in the folder of BuildTsugiki, and "make sanitized" builds it.
func BuildSanitized(t TB) (bin, findings string) {
	t.Helper()
	bin = filepath.Join(BuildTsugiki(t), "sanitized")
	if os.Getenv(binEnv) == "" {
		root, err := ModuleRoot()
		if err != nil {
			t.Fatalf("%v", err)
		}
		if err := makeIn(root, "sanitized"); err != nil {
			t.Fatalf("%v", err)
		}
	}
	findings = filepath.Join(bin, "findings")
	if err := os.RemoveAll(findings); err != nil {
		t.Fatalf("empty the sanitizers' findings: %v", err)
	}
	if err := os.Mkdir(findings, 0o700); err != nil {
		t.Fatalf("find the sanitized binaries (make sanitized builds them): %v", err)
	}
	// Programs of any user write there.
	if err := os.Chmod(findings, 0o1777); err != nil {
		t.Fatalf("open the sanitizers' findings: %v", err)
	}
	return bin, findings
}

// Binaries is BuildTsugiki for programs that are no tests.
var Binaries = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(binEnv); dir != "" {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("find binaries of %s: %w", binEnv, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "tsugiki")); err != nil {
			return "", fmt.Errorf("find binaries of %s: %w", binEnv, err)
		}
		return dir, nil
	}
	root, err := ModuleRoot()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "bin"), makeIn(root, "build")
})

// makeIn runs a make target in the module's root, one process at a time: the
// tests of several packages run side by side and build the same files.
func makeIn(root, target string) error {
	folder, err := os.Open(root)
	if err != nil {
		return fmt.Errorf("lock %s: %w", root, err)
	}
	defer folder.Close()
	if err := lock.Wait(folder); err != nil {
		return fmt.Errorf("lock %s: %w", root, err)
	}
	out, err := exec.Command("make", "-s", "-C", root, target).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make %s: %w\n%s", target, err, out)
	}
	return nil
}

// ModuleRoot is the folder of the go.mod that the working directory, or the
// nearest folder above it, has.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find module root: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find module root: no go.mod above the working directory")
		}
		dir = parent
	}
}
