package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// command is what a noisy container runs beside dd.
type command struct {
	name  string
	paper string // what the paper has
	shell string
}

// commands are the paper's. lsmod has nothing to read in many places: instead of it
// the same number of processes writes as much.
var commands = []command{
	{"yes", "yes", "exec /usr/bin/yes"},
	{"cat", "lsmod", "while true; do /usr/bin/cat /page; done"},
	{"echo", "echo 1", "while true; do echo 1; done"},
}

// pageSize is what lsmod prints where some dozens of modules are loaded.
const pageSize = 3 << 10

// makeRootfs makes the file system that all containers share: a static busybox, and
// the machine's own yes, cat and sysbench.
func makeRootfs(dir string) error {
	for _, d := range []string{"dev", "proc", "sys", "tmp", "bin"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	for program, to := range map[string]string{"busybox": "bin/busybox", "yes": "usr/bin/yes", "cat": "usr/bin/cat", "sysbench": "usr/bin/sysbench"} {
		if err := install(dir, program, to); err != nil {
			return err
		}
	}
	for _, applet := range []string{"sh", "dd", "sleep"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", applet)); err != nil {
			return err
		}
	}
	line := "module_of_many_letters 16384  2 another_module,one_more\n"
	page := []byte(strings.Repeat(line, pageSize/len(line)))
	return os.WriteFile(filepath.Join(dir, "page"), page, 0o644)
}

// libraries are the absolute paths in what ldd prints.
var libraries = regexp.MustCompile(`(?m)(?:^\t|=> )(/\S+) \(0x`)

// install copies a program of the machine with its libraries into a file system.
func install(root, program, to string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	files := map[string]string{path: to}
	out, err := exec.Command("ldd", path).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("not a dynamic executable")) {
		return fmt.Errorf("find the libraries of %s: %w: %s", program, err, out)
	}
	for _, found := range libraries.FindAllSubmatch(out, -1) {
		files[string(found[1])] = string(found[1])
	}
	for from, to := range files {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		to = filepath.Join(root, to)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, data, 0o755)); err != nil {
			return err
		}
	}
	return nil
}
