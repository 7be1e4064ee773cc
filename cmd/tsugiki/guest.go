package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	runner "github.com/tsugiki/tsugiki/agent/run"
	"github.com/tsugiki/tsugiki/agent/vm"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/outsource/guest"
)

func guestCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "guest",
		Short: "Give virtual machines the host's network stack",
		Args: func(_ *cobra.Command, args []string) error {
			return usageError{errors.New("guest: the command is missing; see tsugiki guest --help")}
		},
		Run: func(*cobra.Command, []string) {},
	}
	cmd.AddCommand(guestAttachCommand(), guestRunCommand())
	return cmd
}

const guestAttachHelp = `Attach makes the sockets of programs that run in a virtual machine by tsugiki guest run. They are
sockets of this host, under the rules that -i and -e give as for tsugiki run. The guest needs no
network card. --vsock says how its VMM gives this host its vsock connections:

  PATH         the VMM connects to this unix socket with a vhost-user-vsock device (QEMU, User-Mode Linux)
  hybrid:PATH  the VMM has a unix socket there, and one PATH_PORT for each port (Firecracker, cloud-hypervisor)
  CID          the VMM uses this host's vhost_vsock, and the guest has this context id (QEMU with KVM)

Sockets that attach makes for a VMM belong to the owner of their folder.

What a program in the guest connects to must be covered by -e. What it listens at is reached from
outside only if -i covers it; else it stays in the guest. The guest's loopback stays in the guest.

Attach serves one boot of the guest after another, until SIGINT or SIGTERM. If it is killed, the same
command goes on with the guest, whose connections have ended. One process serves all guests
that are given by a CID: the agent, if there is more than one.`

func guestAttachCommand() *cobra.Command {
	var f runFlags
	var text string
	var cid uint64
	cmd := &cobra.Command{
		Use:   "attach --vsock PATH|hybrid:PATH|CID --name VM [flags]",
		Short: "Serve the sockets of a virtual machine on this host",
		Long:  guestAttachHelp,
		Example: `  tsugiki guest attach --vsock /run/web.sock --name web -e 0.0.0.0/0=0.0.0.0 -p 8080:80
  qemu-system-x86_64 -object memory-backend-memfd,id=mem,size=256M,share=on -M q35,memory-backend=mem \
    -chardev socket,id=vsock,path=/run/web.sock -device vhost-user-vsock-pci,chardev=vsock ...
  tsugiki guest attach --vsock hybrid:/run/firecracker/web/v.sock --name web -e 0.0.0.0/0=0.0.0.0`,
		DisableFlagsInUseLine: true,
		Args:                  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.netns = "new"
			place, err := vm.Parse(text, cid)
			switch {
			case text == "":
				err = errors.New("--vsock is missing: where the VMM gives the guest's connections")
			case f.name == "":
				err = errors.New("--name is missing: what to call the virtual machine")
			case err == nil:
				err = errors.Join(f.publish(), f.resolveByHost())
			}
			var spec runner.Program
			if err == nil {
				spec, err = f.spec(nil, cmd.ErrOrStderr())
			}
			if err != nil {
				return usageError{fmt.Errorf("guest attach: %w", err)}
			}
			if err := attach(spec, place); err != nil {
				return fmt.Errorf("guest attach: %w", err)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&text, "vsock", "", "where the VMM gives the guest's connections: PATH, hybrid:PATH or CID")
	flags.Uint64Var(&cid, "cid", 0, "context id that a vhost-user device gives the guest (default 3)")
	flags.StringVar(&f.name, "name", "", "name of the virtual machine")
	flags.StringArrayVar(&f.endpoints, "endpoint", nil, "definition of an endpoint; may be repeated")
	flags.StringArrayVarP(&f.ingress, "ingress", "i", nil, "rule for sockets that programs bind; may be repeated")
	flags.StringArrayVarP(&f.egress, "egress", "e", nil, "rule for sockets that programs connect; may be repeated")
	flags.StringArrayVarP(&f.published, "publish", "p", nil, "port of the host for a port that programs bind, as [ADDR:]HOST:GUEST[/tcp]; may be repeated")
	flags.StringVar(&f.runDir, "run-dir", api.RunDir, "directory for the state and sockets of running containers")
	f.translation.register(flags)
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "log each decision to standard error")
	return cmd
}

// attach serves a guest until a signal ends it.
func attach(spec runner.Program, place vm.Place) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	g, err := runner.Attach(spec, place)
	if err != nil {
		return err
	}
	go func() {
		<-signals
		g.End()
	}()
	err = g.Serve()
	return errors.Join(err, g.Close())
}

func guestRunCommand() *cobra.Command {
	var verbose bool
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "In a virtual machine, run a program whose sockets are the host's",
		Long: `Run is for the inside of a virtual machine, whose host runs tsugiki guest attach. It starts COMMAND,
has the host make COMMAND's TCP sockets, and ends with COMMAND's exit status after the last program
that COMMAND has left behind has ended.

While at least one of them runs as root, datagrams (UDP) of all programs in the guest leave by the
host, where the guest has no other route. That needs the module tun. For names, /etc/resolv.conf
has to list a nameserver that is not at the loopback: with --translate any address, else one to
which a rule leads.

A service is run by tsugiki-guest@NAME.service, whose command is in /etc/tsugiki/guest/NAME. The
program /etc/tsugiki/guest/initramfs, if there is one, runs in the initramfs (initramfs-tools).`,
		Example: `  tsugiki guest run -- wget http://198.51.100.2/
  echo "COMMAND=/usr/sbin/nginx -g 'daemon off;'" > /etc/tsugiki/guest/web
  systemctl enable --now tsugiki-guest@web`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("guest run: the command is missing; write tsugiki guest run -- COMMAND [ARG...]")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			level := slog.LevelWarn
			if verbose {
				level = slog.LevelDebug
			}
			path, err := launch.Lookup(args[0])
			if err != nil {
				return fmt.Errorf("guest run: %w", err)
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			status, err := guest.Run(guest.Program{Path: path, Args: args, Log: log})
			if err != nil {
				return fmt.Errorf("guest run: %w", err)
			}
			runner.Exit(status)
			return nil
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "log each decision to standard error")
	return cmd
}
