package oci

import (
	"slices"
	"strings"
)

// command has the parts of a runtime's command line that this package uses. The syntax is that
// of runc, which other runtimes imitate.
type command struct {
	root, log, logFormat string
	name                 string // create, run, exec, ...; empty if there is none
	bundle, process      string
	caps                 []string // of exec
	force, detach        bool
	id                   string
	processAt            int // index of the argument that is the process file; 0 if there is none
	processPrefix        string
}

// valued lists the options that take a value, after "=" or in the next argument: of all commands
// ("") and of each command.
var valued = map[string][]string{
	"":        {"root", "log", "log-format", "rootless", "criu", "cgroup-manager"},
	"create":  {"bundle", "b", "console-socket", "pid-file", "preserve-fds", "pidfd-socket", "config", "f"},
	"run":     {"bundle", "b", "console-socket", "pid-file", "preserve-fds", "pidfd-socket", "config", "f"},
	"restore": {"bundle", "b"},
	"exec": {
		"console-socket", "cwd", "env", "e", "user", "u", "additional-gids", "g", "process", "p", "pid-file", "pidfd-socket",
		"process-label", "apparmor", "cap", "c", "preserve-fds", "cgroup",
	},
}

// parseCommand reads the arguments after the program's name. It ignores unknown options: the
// runtime checks them.
func parseCommand(args []string) command {
	var c command
	for i := 0; i < len(args) && c.id == ""; i++ {
		a := args[i]
		if a == "--" {
			if c.name != "" && i+1 < len(args) {
				c.id = args[i+1]
			}
			break
		}
		if len(a) < 2 || a[0] != '-' {
			if c.name == "" {
				c.name = a
			} else {
				c.id = a
			}
			continue
		}
		option, value, joined := strings.Cut(strings.TrimPrefix(a[1:], "-"), "=")
		at, prefix := i, a[:len(a)-len(value)]
		if !joined && slices.Contains(valued[c.name], option) && i+1 < len(args) {
			i++
			at, value, prefix = i, args[i], ""
		}
		c.set(option, value, at, prefix)
	}
	return c
}

func (c *command) set(option, value string, at int, prefix string) {
	switch c.name {
	case "":
		switch option {
		case "root":
			c.root = value
		case "log":
			c.log = value
		case "log-format":
			c.logFormat = value
		}
		return
	case "exec":
		switch option {
		case "process", "p":
			c.process, c.processAt, c.processPrefix = value, at, prefix
		case "cap", "c":
			c.caps = append(c.caps, value)
		}
		return
	}
	switch option {
	case "bundle", "b":
		c.bundle = value
	case "force", "f":
		c.force = value != "false"
	case "detach", "d":
		c.detach = value != "false"
	}
}
