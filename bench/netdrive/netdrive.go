// Package netdrive builds netdrive, the load driver of the benches (src/), and
// other small C programs that benches measure with.
//
// It owns how they are compiled; what they are run for is the benches' business.
// It needs gcc or clang.
package netdrive

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
)

//go:embed src/*.c src/*.h
var source embed.FS

// compilers link programs, in order of preference. The programs are dynamic, as
// most programs are, unless the caller wants others: a static one sees nothing of a
// preloaded library.
var compilers = []string{"gcc", "clang", "cc"}

// Build compiles netdrive into a folder and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	return Compile(ctx, source, filepath.Join(dir, "netdrive"))
}

// BuildStatic is Build without shared libraries.
func BuildStatic(ctx context.Context, dir string) (string, error) {
	return Compile(ctx, source, filepath.Join(dir, "netdrive-static"), "-static")
}

// Compile compiles all C files of a file system into one program, in whose folder
// it writes them, and returns the program's path.
func Compile(ctx context.Context, source fs.FS, program string, flags ...string) (string, error) {
	name := filepath.Base(program)
	var sources []string
	err := fs.WalkDir(source, ".", func(from string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(source, from)
		if err != nil {
			return err
		}
		to := filepath.Join(filepath.Dir(program), path.Base(from))
		if filepath.Ext(to) == ".c" {
			sources = append(sources, to)
		}
		return os.WriteFile(to, data, 0o600)
	})
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	for _, cc := range compilers {
		if _, err := exec.LookPath(cc); err != nil {
			continue
		}
		args := slices.Concat([]string{"-std=gnu11", "-O2", "-o", program}, flags, sources)
		if out, err := exec.CommandContext(ctx, cc, args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s with %s: %w\n%s", name, cc, err, out)
		}
		return program, nil
	}
	return "", fmt.Errorf("build %s: needs gcc or clang", name)
}
