// Package dpuagent is the program of a DPU: it looks after the bridges of the DPU's Open vSwitch,
// forwards its sockets to the host, and tells the host of the switch's health.
//
// It owns the bridges br-int and br-phy, the address of the latter, and the MTU and the filters of
// representors. It knows no pod and no policy: the host writes br-int's ports and flows. It does not
// start Open vSwitch, and goes on when that ends.
//
// Theory of operation. Open vSwitch's database outlives ovs-vswitchd; its flows, its tunnel's
// neighbors and, with the datapath in user space, br-phy's device do not. So the agent sets all up
// again at each start of ovs-vswitchd, and says the switch is healthy afterwards, with a generation
// of its own. The host then replays its flows. The agent keeps nothing but in memory.
//
//	uplink ── br-phy (address of the tunnel) ══ patch ══ br-int ── representors
//	                 └─ VXLAN comes to that address, and in br-int out of vx0
//
// It needs root and Open vSwitch 2.17 or later in the network namespace in which it runs.
package dpuagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/tsugiki/tsugiki/forward/offload/card"
	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
)

// Config is how a DPU is set up.
type Config struct {
	Endpoint    string // where the host connects: dpu.ParseEndpoint
	Credentials string // a folder, of a tls endpoint
	Client      string // the name in the host's certificate
	RunDir      string // of Open vSwitch
	Datapath    string // netdev: in user space; system: the kernel's, which cards can take over
	Uplink      string // the link to the other nodes and the outside
	Address     netip.Prefix
	Gateway     netip.Addr // of the uplink's network; not valid: pods do not reach the outside
	Masquerade  netip.Addr // of the uplink's network, and nobody's
	Card        card.DPU
}

// Check says what is wrong with a configuration.
func (c *Config) Check() error {
	if c.Datapath != userSpace && c.Datapath != "system" {
		return fmt.Errorf("unknown datapath %q; write netdev or system", c.Datapath)
	}
	endpoint, err := dpu.ParseEndpoint(c.Endpoint)
	if err != nil {
		return err
	}
	switch {
	case endpoint.TLS() && (c.Client == "" || c.Credentials == ""):
		return errors.New("a tls endpoint needs --credentials and --client, the name in the host's certificate")
	case c.Uplink == "":
		return errors.New("--uplink is missing: the link to the other nodes")
	case !c.Address.IsValid():
		return errors.New("--address is missing: the tunnel's address with the length of the uplink's network, like 192.0.2.1/24")
	case c.Masquerade.IsValid() != c.Gateway.IsValid():
		return errors.New("--masquerade and --gateway belong together")
	case !c.Masquerade.IsValid():
		return nil
	case !c.Address.Contains(c.Masquerade) || !c.Address.Contains(c.Gateway):
		return fmt.Errorf("--masquerade %s and --gateway %s are to be of the uplink's network %s", c.Masquerade, c.Gateway, c.Address.Masked())
	case c.Masquerade == c.Address.Addr() || c.Masquerade == c.Gateway || c.Gateway == c.Address.Addr():
		return errors.New("--address, --masquerade and --gateway are three addresses")
	}
	return nil
}

// Agent is one that runs.
type Agent struct {
	Config
	log       *slog.Logger
	ns        *netns.NS
	board     *board
	neighbors map[netip.Addr]dpu.MAC // of the uplink's network, as long as the agent lives
}

// Run looks after the switch until ctx ends. It calls ready when the host can connect. An error is one
// of the configuration or of the sockets; faults of the switch are told to the host.
func Run(ctx context.Context, c Config, log *slog.Logger, ready func()) error {
	if err := c.Check(); err != nil {
		return err
	}
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	defer ns.Close()
	a := &Agent{Config: c, log: log, ns: ns, board: newBoard(), neighbors: map[netip.Addr]dpu.MAC{}}
	a.board.put(dpu.Health{Fault: "tsugiki dpu-agent starts"})
	stop, err := a.serve()
	if err != nil {
		return err
	}
	defer stop()
	hardware, err := c.Card.Prepare()
	if err != nil {
		return err
	}
	ready()
	log.Info("agent of the DPU is ready", "endpoint", c.Endpoint, "uplink", c.Uplink, "hardware", hardware)
	for wait := retryFirst; ; {
		worked, err := a.follow(ctx, hardware)
		if ctx.Err() != nil {
			return nil
		}
		if last := a.board.get(); last.Fault != err.Error() {
			log.Error("the switch does not work", "err", err)
			last.Fault = err.Error()
			a.board.put(last)
		}
		if worked {
			wait = retryFirst
		}
		// Nothing tells when it is worth another attempt.
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, retryLast)
	}
}

// Times between two attempts to set the switch up: the first soon after the last ovs-vswitchd has
// ended, as the next one has mostly been started already.
const (
	retryFirst = 10 * time.Millisecond
	retryLast  = 200 * time.Millisecond
)

// tick is how often the agent looks whether ovs-vswitchd answers, and what neighbors are known.
const tick = 500 * time.Millisecond

// follow sets the switch up and says that it is healthy, as long as it is. worked tells whether it
// was.
func (a *Agent) follow(ctx context.Context, hardware bool) (worked bool, err error) {
	v, err := findVswitchd(a.RunDir)
	if err != nil {
		return false, err
	}
	process, err := pidfd.Open(v.pid)
	if err != nil {
		return false, fmt.Errorf("ovs-vswitchd has ended: %w", err)
	}
	defer process.Close()
	ended := make(chan struct{})
	go func() {
		pidfd.Await(process)
		close(ended)
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes, err := a.ns.Changes(ctx)
	if err != nil {
		return false, err
	}
	health, err := a.setUp(ctx, v, hardware)
	if err != nil {
		return false, err
	}
	db, err := a.openDatabase(ctx)
	if err != nil {
		return false, err
	}
	defer db.Close()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for {
		if err := a.refresh(v, health, db.nodes()); err != nil {
			return worked, err
		}
		if !worked {
			a.log.Info("the switch works", "generation", health.Generation, "pid", v.pid)
		}
		worked = true
		a.board.put(*health)
		select {
		case <-ctx.Done():
			return worked, ctx.Err()
		case <-ended:
			return worked, errors.New("ovs-vswitchd has ended; start it: systemctl start openvswitch-switch")
		case <-db.Ended():
			return worked, errors.New("ovsdb-server has ended; start it: systemctl start openvswitch-switch")
		case <-db.monitor.News():
		case _, open := <-changes:
			if !open { // more than could wait; refresh looks at all links
				if changes, err = a.ns.Changes(ctx); err != nil {
					return worked, err
				}
			}
		case <-ticks.C:
			if err := a.probe(ctx); err != nil {
				return worked, err
			}
		}
	}
}

// setUp makes everything that ovs-vswitchd has lost, or never had.
func (a *Agent) setUp(ctx context.Context, v vswitchd, hardware bool) (*dpu.Health, error) {
	if err := a.makeBridges(ctx, hardware); err != nil {
		return nil, err
	}
	if err := a.setUpLinks(); err != nil {
		return nil, err
	}
	health := &dpu.Health{Generation: v.generation, Tunnel: a.Address.Addr(), Masquerade: a.Masquerade, Offload: "software"}
	if hardware {
		health.Offload = "hardware"
	}
	var err error
	if health.TunnelPort, err = a.portNumber(ctx, tunnelPort); err != nil {
		return nil, err
	}
	if a.Masquerade.IsValid() {
		health.MasqueradeMAC = masqueradeMAC(a.Masquerade)
		if health.OutsidePort, err = a.portNumber(ctx, outsidePort); err != nil {
			return nil, err
		}
	}
	if err := a.probe(ctx); err != nil {
		return nil, err
	}
	// The last generation's neighbors are most likely this one's.
	return health, a.giveNeighbors(v)
}

// refresh follows links that come and go, and neighbors.
func (a *Agent) refresh(v vswitchd, health *dpu.Health, nodes []netip.Addr) (err error) {
	if health.Representors, err = a.setUpRepresentors(); err != nil {
		return err
	}
	if health.MTU, err = linkMTU(a.Uplink); err != nil {
		return err
	}
	if err := a.findNeighbors(v, nodes); err != nil {
		return err
	}
	health.GatewayMAC = a.neighbors[a.Gateway]
	return nil
}

// masqueradeMAC is an address of nobody else in the uplink's network: the IP address is in it.
func masqueradeMAC(a netip.Addr) dpu.MAC {
	b := a.As16()
	return dpu.MAC{0x02, 't', b[12], b[13], b[14], b[15]}
}

// runDirExists is for messages.
func runDirExists(dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("there is no Open vSwitch in %s: %w; start it, or write its folder as --ovs-run-dir", dir, err)
	}
	return nil
}
