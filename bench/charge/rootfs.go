package main

import (
	"strings"

	"github.com/tsugiki/tsugiki/internal/bundle"
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
	{"yes", "yes", "exec /bin/yes"},
	{"cat", "lsmod", "while true; do /bin/cat /page; done"},
	{"echo", "echo 1", "while true; do echo 1; done"},
}

// pageSize is what lsmod prints where some dozens of modules are loaded.
const pageSize = 3 << 10

// makeRootfs makes the file system that all containers share. It has the machine's own yes,
// cat and sysbench.
func makeRootfs(dir string) error {
	root := bundle.Root(dir)
	if err := root.Make(); err != nil {
		return err
	}
	if err := root.Install("yes", "cat", "sysbench"); err != nil {
		return err
	}
	line := "module_of_many_letters 16384  2 another_module,one_more\n"
	return root.Put("/page", []byte(strings.Repeat(line, pageSize/len(line))), 0o644)
}
