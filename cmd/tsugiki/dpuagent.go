package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/signal"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward/offload/card"
	"github.com/tsugiki/tsugiki/forward/offload/dpuagent"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// dpuAgentFlags are the texts of the command line.
type dpuAgentFlags struct {
	dpuagent.Config
	address, gateway, masquerade string
	log                          logFlags
	emulate                      int
	host                         string
}

func dpuAgentCommand() *cobra.Command {
	f := &dpuAgentFlags{}
	cmd := &cobra.Command{
		Use:   "dpu-agent --listen ENDPOINT --uplink LINK --address ADDR/LENGTH [flags]",
		Short: "Look after the switch of a DPU, and let the host control it",
		Long: `Dpu-agent runs on a DPU, a network card with processors of its own, beside Open vSwitch.
It makes the bridges br-int and br-phy, gives br-phy the address of the tunnel to other
nodes, sets representors up, forwards the sockets of Open vSwitch's database and of br-int
to the host, and tells the host whether the switch works. It does not start Open vSwitch,
and sets everything up again whenever that was started.

ENDPOINT is unix:/FOLDER or tls:ADDR:PORT. Who connects there is root over the DPU's Open
vSwitch: the folder is root's alone, and TLS needs --credentials, a folder with ca.pem,
cert.pem and key.pem, and --client, the name in the certificate of the host.

--emulate-vfs makes pairs of links in place of a card's virtual functions, in the network
namespace of the host, --host-netns.`,
		Example: `  tsugiki dpu-agent --listen tls:192.0.2.2:9471 --credentials /etc/tsugiki/dpu --client node1 \
      --uplink p0 --address 198.51.100.1/24 --gateway 198.51.100.254 --masquerade 198.51.100.101`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments("dpu-agent"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.run(cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("dpu-agent: %w", err)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Endpoint, "listen", "", "where the host connects: unix:/FOLDER or tls:ADDR:PORT")
	flags.StringVar(&f.Credentials, "credentials", "", "folder with ca.pem, cert.pem and key.pem")
	flags.StringVar(&f.Client, "client", "", "name in the host's certificate")
	flags.StringVar(&f.RunDir, "ovs-run-dir", "/run/openvswitch", "where the sockets of Open vSwitch are")
	flags.StringVar(&f.Datapath, "datapath", "system", "datapath of the bridges: system (the kernel's, and the card's) or netdev (in user space)")
	flags.StringVar(&f.Uplink, "uplink", "", "link to the other nodes and to the outside")
	flags.StringVar(&f.address, "address", "", "address of the tunnel, with the length of the uplink's network")
	flags.StringVar(&f.gateway, "gateway", "", "gateway of the uplink's network")
	flags.StringVar(&f.masquerade, "masquerade", "", "free address of the uplink's network that pods have outside")
	flags.IntVar(&f.emulate, "emulate-vfs", 0, "number of virtual functions to emulate by links")
	flags.StringVar(&f.host, "host-netns", "", "network namespace of the host, for --emulate-vfs")
	f.log.register(flags)
	return cmd
}

// parse reads the addresses, and makes the card.
func (f *dpuAgentFlags) parse() error {
	var errs []error
	read := func(flag, text string, to *netip.Addr) {
		if text == "" {
			return
		}
		var err error
		if *to, err = netip.ParseAddr(text); err != nil {
			errs = append(errs, fmt.Errorf("--%s %q is no address", flag, text))
		}
	}
	read("gateway", f.gateway, &f.Gateway)
	read("masquerade", f.masquerade, &f.Masquerade)
	if f.address != "" {
		var err error
		if f.Address, err = netip.ParsePrefix(f.address); err != nil {
			errs = append(errs, fmt.Errorf("--address %q is no address with a length, like 192.0.2.1/24", f.address))
		}
	}
	if f.emulate < 0 || f.emulate > 0 == (f.host == "") {
		errs = append(errs, errors.New("--emulate-vfs and --host-netns belong together"))
	}
	if err := errors.Join(errs...); err != nil {
		return usageError{err}
	}
	if err := f.Check(); err != nil {
		return usageError{err}
	}
	return nil
}

func (f *dpuAgentFlags) run(stderr io.Writer) error {
	if err := f.parse(); err != nil {
		return err
	}
	log, err := f.log.open(stderr)
	if err != nil {
		return err
	}
	f.Card = card.NewHardware()
	if f.emulate > 0 {
		f.Card = card.Emulated{}
		host, err := netns.Open(f.host)
		if err != nil {
			return err
		}
		if err := errors.Join(card.Emulate(0, f.emulate, host), host.Close()); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	return dpuagent.Run(ctx, f.Config, log, func() { _, _ = daemon.SdNotify(false, daemon.SdNotifyReady) })
}
