package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed driver/*.c driver/*.h
var driverSource embed.FS

// compilers link programs, in order of preference. The driver is a dynamic one, as
// most programs are: a static one would see nothing of a preloaded library.
var compilers = []string{"gcc", "clang", "cc"}

// buildDriver compiles netdrive into a folder and returns its path.
func buildDriver(ctx context.Context, dir string) (string, error) {
	files, err := driverSource.ReadDir("driver")
	if err != nil {
		return "", fmt.Errorf("build netdrive: %w", err)
	}
	var sources []string
	for _, f := range files {
		data, err := driverSource.ReadFile("driver/" + f.Name())
		if err != nil {
			return "", fmt.Errorf("build netdrive: %w", err)
		}
		path := filepath.Join(dir, f.Name())
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return "", fmt.Errorf("build netdrive: %w", err)
		}
		if filepath.Ext(path) == ".c" {
			sources = append(sources, path)
		}
	}
	for _, cc := range compilers {
		if _, err := exec.LookPath(cc); err != nil {
			continue
		}
		path := filepath.Join(dir, "netdrive")
		args := append([]string{"-std=gnu11", "-O2", "-o", path}, sources...)
		if out, err := exec.CommandContext(ctx, cc, args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("build netdrive with %s: %w\n%s", cc, err, out)
		}
		return path, nil
	}
	return "", errors.New("build netdrive: needs gcc or clang")
}
