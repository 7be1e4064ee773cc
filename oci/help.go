package oci

import (
	"fmt"
	"os"

	"github.com/tsugiki/tsugiki/internal/programs"
)

// help is the output of --help. tsugiki manpages makes the manual page from it.
const help = `tsugiki-runtime - OCI runtime that grafts containers and calls runc to create them

Usage:
  tsugiki-runtime [GLOBAL OPTION...] COMMAND [OPTION...] [ARG...]
  tsugiki-runtime --help
  tsugiki-runtime --version

Container engines call tsugiki-runtime instead of runc. It has the command line of runc.
tsugiki-runtime registers a created container with tsugiki agent, edits the container's
config.json, and calls runc or another runtime. It passes a container without rules, and
every other command, to that runtime unchanged. --version prints the version of
tsugiki-runtime first, and then the version of the runtime.

Annotations:
  tsugiki.dev/ingress    rules for sockets that programs bind, as -i of tsugiki run
  tsugiki.dev/egress     rules for sockets that programs connect, as -e of tsugiki run
  tsugiki.dev/endpoints  endpoints, as --endpoint of tsugiki run
  tsugiki.dev/mode       auto, preload or seccomp
  tsugiki.dev/name       name of the container
The agent obeys the annotations that [[allow]] in its configuration permits.

Environment:
  TSUGIKI_AGENT          socket of the agent; overrides the configuration
  TSUGIKI_OCI_RUNTIME    runtime to call if the configuration names none; the default is
                         the first of runc and crun in PATH

Files:
  /etc/tsugiki/agent.toml  the configuration, see tsugiki-agent.toml(5)

Example:
  docker run --runtime tsugiki --network none --label tsugiki.dev/egress=0.0.0.0/0=0.0.0.0 IMAGE
`

// own answers a command line that is for this program and not for the real runtime. It returns
// false if there is more to do.
func own(args []string) (done bool, err error) {
	if len(args) != 1 {
		return false, nil
	}
	switch args[0] {
	case "--help", "-h":
		_, err = os.Stdout.WriteString(help)
		return true, err
	case "--version", "-v":
		// Engines read the version of runc below: the last line of its form is the one they use.
		_, err = fmt.Printf("tsugiki-runtime version %s\n", programs.Version())
	}
	return false, err
}
