package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/user"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/rules"
	runner "github.com/tsugiki/tsugiki/agent/run"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/policy"
)

// runFlags are the flags of tsugiki run as they are written.
type runFlags struct {
	name, netns, mode, user, runDir, agent string
	endpoints, ingress, egress             []string
	capAdd, capDrop                        []string
	verbose                                bool
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Run a program whose sockets are grafted onto endpoints of this host",
		Long: `Run starts COMMAND in a network namespace of its own and grafts its sockets onto
named endpoints of the network namespace that tsugiki was started in, "the host".

An endpoint is a name for a host address:
  NAME type ipv4|ipv6 addr ADDR port PORT|FIRST-LAST|dynamic [netns PID|NAME] [nameable]
  NAME type unix path PATH [netns PID|NAME] [nameable]
The address 0.0.0.0, or ::, leaves the choice to the host. With "nameable", programs
may name it themselves (AF_GRAFT), and reach and serve all through it, not only what
the rules say.

Rules say which sockets are grafted; what no rule names stays in the container:
  -i ADDR:PORT[-PORT]=ENDPOINT       what COMMAND binds; 0.0.0.0 is any address
  -e PREFIX[:PORT[-PORT]]=ENDPOINT   what it connects to, longest prefix first
IPv6 with ports is written [ADDR]:PORT. Loopback, link-local, multicast and
unspecified addresses are covered only by rules that name them.

A host address may stand for ENDPOINT, and makes one, i-N or e-N for the N-th
-i or -e:
  -i ADDR:PORT[-PORT]=HOST[:PORT]    at that port of the host, or at the same
  -e PREFIX[:PORT[-PORT]]=HOST       from any port

COMMAND has the exit status, signals, standard streams, terminal and directory
that env(1) would give it. When it ends, what it left running is killed.`,
		Example: `  tsugiki run -e 0.0.0.0/0=0.0.0.0 -- curl http://198.51.100.2/
  tsugiki run -i 0.0.0.0:8080=198.51.100.1:80 -- ./server -listen :8080
  tsugiki run --endpoint "out type ipv4 addr 0.0.0.0 port dynamic" -e 0.0.0.0/0=out -- curl http://198.51.100.2/
  tsugiki run --endpoint "web type ipv4 addr 198.51.100.1 port 80" -i 0.0.0.0:8080=web -- ./server -listen :8080`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("run: a command is missing; write tsugiki run [flags] -- COMMAND [ARG...]")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := f.spec(args, cmd.ErrOrStderr())
			if err != nil {
				return usageError{fmt.Errorf("run: %w", err)}
			}
			c, err := f.start(spec)
			if err != nil {
				return fmt.Errorf("run: %w", err)
			}
			if len(spec.Endpoints.All()) == 0 { // rules have some, too
				spec.Log.Warn("nothing of the program is grafted, as no rule and no endpoint is given; to connect as the host does, write -e 0.0.0.0/0=0.0.0.0")
			}
			status, err := c.Wait()
			if err := errors.Join(err, c.Close()); err != nil {
				return fmt.Errorf("run: %w", err)
			}
			runner.Exit(status)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	flags.StringVar(&f.name, "name", "", "name of the container (default run-PID)")
	flags.StringVar(&f.netns, "netns", "new", "network namespace of the program: a NAME of ip-netns(8), a PID, a PATH, or new")
	flags.StringArrayVar(&f.endpoints, "endpoint", nil, "define an endpoint; may be repeated")
	flags.StringArrayVarP(&f.ingress, "ingress", "i", nil, "graft what the program binds; may be repeated")
	flags.StringArrayVarP(&f.egress, "egress", "e", nil, "graft what the program connects to; may be repeated")
	flags.StringVar(&f.mode, "mode", "auto", "how calls are intercepted: preload, by a library in dynamic programs; seccomp, in all programs, by the kernel; auto, both")
	flags.StringVarP(&f.user, "user", "u", "", "run the program as USER[:GROUP], names or ids")
	flags.StringArrayVar(&f.capAdd, "cap-add", nil, "add a capability, or ALL; may be repeated")
	flags.StringArrayVar(&f.capDrop, "cap-drop", nil, "drop a capability, or ALL; may be repeated")
	flags.StringVar(&f.runDir, "run-dir", api.RunDir, "directory for what is known of running containers")
	flags.StringVar(&f.agent, "agent", "", "socket of the agent that is to have the container, or none for an agent of its own (default the one of --run-dir, if it runs)")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "log each decision to standard error")
	completeRun(cmd)
	return cmd
}

// container is one of ours, or of the agent's.
type container interface {
	Wait() (unix.WaitStatus, error)
	Close() error
}

func (f *runFlags) start(spec runner.Program) (container, error) {
	socket := f.agent
	if socket == "" {
		socket = runner.AgentAt(f.runDir)
	}
	if socket == "" || socket == "none" {
		return runner.Start(spec)
	}
	return runner.Join(api.Dial(socket), spec, f.texts())
}

func (f *runFlags) texts() rules.Texts {
	return rules.Texts{Mode: f.mode, Endpoints: f.endpoints, Ingress: f.ingress, Egress: f.egress}
}

func (f *runFlags) spec(command []string, stderr io.Writer) (runner.Program, error) {
	spec := runner.Program{Name: f.name, RunDir: f.runDir, Netns: f.netns, Command: command}
	var err error
	if spec.Rules, err = f.texts().Parse(); err != nil {
		return spec, err
	}
	if spec.Caps, err = launch.Default.Edit(f.capAdd, f.capDrop); err != nil {
		return spec, err
	}
	if f.user != "" {
		if spec.User, err = parseUser(f.user); err != nil {
			return spec, err
		}
	}
	level := slog.LevelWarn
	if f.verbose {
		level = slog.LevelDebug
	}
	spec.Log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	if names := spec.Caps.Voids(); len(names) > 0 {
		spec.Log.Warn("with these capabilities the program can get around its rules", "capabilities", strings.Join(names, ","))
	}
	return spec, nil
}

// parseUser reads USER[:GROUP], each a name or a number. Without a group it is
// the user's own, with the supplementary ones.
func parseUser(s string) (*launch.User, error) {
	name, group, hasGroup := strings.Cut(s, ":")
	u := &launch.User{}
	known, err := user.Lookup(name)
	if err != nil {
		known, err = user.LookupId(name)
	}
	if err == nil {
		u.UID, _ = strconv.Atoi(known.Uid)
		u.GID, _ = strconv.Atoi(known.Gid)
		if !hasGroup {
			ids, _ := known.GroupIds()
			for _, id := range ids {
				if n, err := strconv.Atoi(id); err == nil {
					u.Groups = append(u.Groups, n)
				}
			}
		}
	} else if u.UID, err = parseID(name); err != nil {
		return nil, fmt.Errorf("unknown user %q", name)
	}
	if !hasGroup {
		return u, nil
	}
	if g, err := user.LookupGroup(group); err == nil {
		u.GID, _ = strconv.Atoi(g.Gid)
	} else if u.GID, err = parseID(group); err != nil {
		return nil, fmt.Errorf("unknown group %q", group)
	}
	return u, nil
}

func parseID(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err
}

// exitStatus is the status for an error: as env(1) for a program that cannot be
// executed, and else as all of tsugiki.
func exitStatus(err error) int {
	var u usageError
	var e *launch.ExecError
	switch {
	case errors.As(err, &u), errors.Is(err, policy.ErrRule), errors.Is(err, api.ErrName):
		return exitUsage
	case errors.As(err, &e) && e.Errno == unix.ENOENT:
		return 127
	case errors.As(err, &e):
		return 126
	}
	return exitFailure
}
