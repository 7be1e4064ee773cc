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

const guestAttachHelp = `Attach listens at a unix socket for a VMM with a vhost-user-vsock device (QEMU, User-Mode Linux),
and makes the sockets of programs that run in the guest by tsugiki guest run. They are sockets of
this host, under the rules that -i and -e give as for tsugiki run. The guest needs no network card.

What a program in the guest connects to must be covered by -e. What it listens at is reached from
outside only if -i covers it; else it stays in the guest. The guest's loopback stays in the guest.

Attach serves one boot of the guest after another, until SIGINT or SIGTERM.`

func guestAttachCommand() *cobra.Command {
	var f runFlags
	var path string
	var cid uint64
	cmd := &cobra.Command{
		Use:   "attach --vsock PATH --name VM [flags]",
		Short: "Serve the sockets of a virtual machine on this host",
		Long:  guestAttachHelp,
		Example: `  tsugiki guest attach --vsock /run/web.sock --name web -e 0.0.0.0/0=0.0.0.0 -p 8080:80
  qemu-system-x86_64 -object memory-backend-memfd,id=mem,size=256M,share=on -M q35,memory-backend=mem \
    -chardev socket,id=vsock,path=/run/web.sock -device vhost-user-vsock-pci,chardev=vsock ...`,
		DisableFlagsInUseLine: true,
		Args:                  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.netns = "new"
			err := errors.Join(f.publish(), f.resolveByHost())
			switch {
			case path == "":
				err = errors.New("--vsock PATH is missing: where the VMM connects")
			case f.name == "":
				err = errors.New("--name is missing: what to call the virtual machine")
			case cid <= unix.VMADDR_CID_HOST || cid >= 1<<32-1:
				err = fmt.Errorf("--cid %d: 0, 1 and 2 are taken; use 3 or more", cid)
			}
			var spec runner.Program
			if err == nil {
				spec, err = f.spec(nil, cmd.ErrOrStderr())
			}
			if err != nil {
				return usageError{fmt.Errorf("guest attach: %w", err)}
			}
			if err := attach(spec, path, cid); err != nil {
				return fmt.Errorf("guest attach: %w", err)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&path, "vsock", "", "path of the unix socket at which the VMM finds the device")
	flags.Uint64Var(&cid, "cid", 3, "the guest's vsock context id")
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
func attach(spec runner.Program, path string, cid uint64) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	g, err := runner.Attach(spec, path, cid)
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
