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
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	runner "github.com/tsugiki/tsugiki/agent/run"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/policy"
)

// runFlags are the flags of tsugiki run.
type runFlags struct {
	name, netns, mode, user, runDir, agent string
	endpoints, ingress, egress, published  []string
	capAdd, capDrop                        []string
	verbose, dry                           bool
	translation                            translateFlags
}

const runHelp = `Run starts COMMAND in a new network namespace. It grafts COMMAND's sockets onto endpoints
of "the host", which is the network namespace in which tsugiki was started.

An endpoint is a name for an address of the host:
  NAME type ipv4|ipv6 addr ADDR port PORT|FIRST-LAST|dynamic [netns PID|NAME] [nameable]
  NAME type ip addr ADDR addr6 ADDR6 port ... [netns PID|NAME] [nameable]
  NAME type unix path PATH [netns PID|NAME] [nameable]
With the address 0.0.0.0 or ::, the host chooses the address. Programs may name a
"nameable" endpoint themselves (AF_GRAFT); its destinations and ports are then not
limited by the rules.

Rules choose the sockets that are grafted. All other sockets stay in the container:
  -i ADDR:PORT[-PORT][/tcp|/udp]=ENDPOINT
                                     sockets that COMMAND binds to ADDR and PORT; 0.0.0.0
                                     is any address; without /tcp or /udp, both protocols
  -i :PORT[-PORT][/tcp|/udp]=NAME    both, for an endpoint of type ip: 0.0.0.0 at NAME.4, and
                                     :: at NAME.6
  -i ADDR:PORT[-PORT][/tcp]+own=ENDPOINT
                                     a TCP server listens at ADDR and PORT in the container's
                                     own network, too; its accept(2) is slower then
  -i ADDR:PORT[...][+from:PREFIX]...[+except:PREFIX]...=ENDPOINT
                                     connections and datagrams are taken from these addresses
                                     alone, and from the container itself
  -e PREFIX[:PORT[-PORT]][/tcp|/udp]=ENDPOINT
                                     sockets that COMMAND connects to PREFIX and PORT; the
                                     rule with the longest prefix applies
Write an IPv6 address with a port as [ADDR]:PORT. A rule covers loopback, link-local,
multicast and unspecified addresses only if it names them.

ENDPOINT may be an address of the host instead of a name. The N-th -i or -e then defines
the endpoint i-N or e-N:
  -i ADDR:PORT[-PORT]=HOST[:PORT]    this port of the host; without :PORT the same port
  -e PREFIX[:PORT[-PORT]]=HOST       any port of the host

  -p HOST:CONTAINER[/tcp|/udp]       further -i: this port of the host for this port of any
                                     address that COMMAND binds, for IPv4, and for IPv6 if
                                     the host has it
  -p ADDR:HOST:CONTAINER[/tcp|/udp]  at this address of the host

With --translate:
  --name-rule PATTERN[:PORT[-PORT]][/tcp|/udp]
                                     hosts by their names. COMMAND reaches the addresses in the
                                     answers to its own questions for names that match, until
                                     a minute after their TTL. In PATTERN, "*" stands for
                                     letters, digits, - and _ in one label: *.example.com is
                                     a.example.com, and not a.b.example.com or example.com.
                                     **.example.com is both of the first, * alone each name.
                                     With it, or -e, COMMAND reaches nothing else

COMMAND gets its exit status, signals, standard streams, terminal and directory as from
env(1). When COMMAND ends, run kills the processes that it left behind.`

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Run a program whose sockets are grafted onto endpoints of this host",
		Long:  runHelp,
		Example: `  tsugiki run -e 0.0.0.0/0=0.0.0.0 -- curl http://198.51.100.2/
  tsugiki run -i 0.0.0.0:8080=198.51.100.1:80 -- ./server -listen :8080
  tsugiki run -p 8080:80 -- ./server -listen :80
  tsugiki run --endpoint "out type ipv4 addr 0.0.0.0 port dynamic" -e 0.0.0.0/0=out -- curl http://198.51.100.2/
  tsugiki run --translate --name-rule '*.example.com:443' -- curl -4 https://www.example.com/
  tsugiki run --endpoint "web type ipv4 addr 198.51.100.1 port 80" -i 0.0.0.0:8080=web -- ./server -listen :8080`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("run: the command is missing; write tsugiki run [flags] -- COMMAND [ARG...]")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			err := errors.Join(f.publish(), f.resolveByHost())
			var spec runner.Program
			if err == nil {
				spec, err = f.spec(args, cmd.ErrOrStderr())
			}
			if err != nil {
				return usageError{fmt.Errorf("run: %w", err)}
			}
			if f.dry {
				return f.rehearse(cmd.OutOrStdout(), spec)
			}
			c, err := f.start(spec)
			if err != nil {
				return fmt.Errorf("run: %w", err)
			}
			if len(spec.Endpoints.All()) == 0 { // each rule has an endpoint
				spec.Log.Warn("nothing of the program is grafted, because it has no rule and no endpoint; -e 0.0.0.0/0=0.0.0.0 lets it connect as the host does")
			}
			status, err := c.Wait()
			if err := errors.Join(err, c.Close()); err != nil {
				return fmt.Errorf("run: %w", err)
			}
			runner.Exit(status)
			return nil
		},
	}
	f.register(cmd.Flags())
	completeRun(cmd)
	return cmd
}

// register defines the flags.
func (f *runFlags) register(flags *pflag.FlagSet) {
	flags.SetInterspersed(false)
	flags.StringVar(&f.name, "name", "", "name of the container (default run-PID)")
	flags.StringVar(&f.netns, "netns", "new", "network namespace of COMMAND: a NAME of ip-netns(8), a PID, a PATH, or new")
	flags.StringArrayVar(&f.endpoints, "endpoint", nil, "definition of an endpoint; may be repeated")
	flags.StringArrayVarP(&f.ingress, "ingress", "i", nil, "rule for sockets that COMMAND binds; may be repeated")
	flags.StringArrayVarP(&f.egress, "egress", "e", nil, "rule for sockets that COMMAND connects; may be repeated")
	flags.StringArrayVarP(&f.published, "publish", "p", nil, "port of the host for a port that COMMAND binds, as [ADDR:]HOST:CONTAINER[/tcp|/udp]; may be repeated")
	flags.StringVar(&f.mode, "mode", "", "interception of socket calls: preload, by a library in dynamic programs; seccomp, by the kernel in all programs; auto, both (default auto)")
	flags.StringVarP(&f.user, "user", "u", "", "run COMMAND as USER[:GROUP], names or ids")
	flags.StringArrayVar(&f.capAdd, "cap-add", nil, "add a capability of COMMAND, or ALL; may be repeated")
	flags.StringArrayVar(&f.capDrop, "cap-drop", nil, "drop a capability of COMMAND, or ALL; may be repeated")
	flags.StringVar(&f.runDir, "run-dir", api.RunDir, "directory for the state and sockets of running containers")
	flags.StringVar(&f.agent, "agent", "", "socket of the agent that serves the container, or none to run without an agent (default the agent of --run-dir, if it runs)")
	f.translation.register(flags)
	flags.BoolVar(&f.dry, "dry-run", false, "check all that a start needs, print what each rule does, and start nothing")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "log each decision to standard error")
}

// container is a container of this process, or one of the agent.
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

// rehearse checks what start needs, in the network namespace of this process, and prints what the
// rules do.
func (f *runFlags) rehearse(out io.Writer, spec runner.Program) error {
	verdicts, err := spec.Explain()
	if err == nil {
		err = runner.Check(spec)
	}
	if err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return printVerdicts(out, verdicts)
}

func (f *runFlags) texts() api.Rules {
	return api.Rules{
		Mode: f.mode, Endpoints: f.endpoints, Ingress: f.ingress, Egress: f.egress, NameRules: f.translation.names, Translate: f.translation.text(),
	}
}

func (f *runFlags) spec(command []string, stderr io.Writer) (runner.Program, error) {
	spec := runner.Program{Name: f.name, RunDir: f.runDir, Netns: f.netns, Command: command}
	var err error
	if spec.Rules, err = f.rules(); err != nil {
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

// parseUser reads USER[:GROUP], each a name or a number. Without GROUP, the user's primary and
// supplementary groups apply.
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

// exitStatus returns the exit status for an error. For a program that cannot be executed it is
// that of env(1).
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
