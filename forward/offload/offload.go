// Package offload controls the switch of a node that runs elsewhere: on a DPU, which forwards its
// database and the bridge br-int.
//
// It owns br-int's flows, and the verdicts about pairs of pods that follow from the policy. It
// makes no port and no link: the network plugin does, and waits until the controller has said in
// the database that a port's flows are in the switch. A port whose pod is gone it removes: the
// plugin's DEL does not wait for a switch that is away.
//
// Theory of operation. What flows have to be is a function of the configuration file, the
// database's ports and the DPU's health (package flows). The controller keeps nothing else, and no
// file. It computes them after each change, and sends the difference in one bundle, which the
// switch takes whole or not at all (OpenFlow 1.5, section 6.9). After its own start, a lost
// connection, or a start of ovs-vswitchd it does not know what is in the switch, and replaces all
// flows, also in one bundle.
//
// The order of steps keeps packets from passing by a rule: pairs stop being direct before flows
// change, and become direct afterwards. A policy that is read while the switch is away holds for
// direct packets at once; while the switch does not answer, after the timeout of the request.
//
// One controller controls a switch: it has a lock of the database. It has to run in the host's
// network namespace as root, with what package forward needs, and ovs-ofctl 2.17 or later.
package offload

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/flows"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
	"github.com/tsugiki/tsugiki/forward/offload/ports"
)

// Switch takes flows. Each call is one bundle.
type Switch interface {
	// Replace makes the list the switch's flows, whatever it has.
	Replace(ctx context.Context, list []flows.Flow) error
	// Change carries out lines of flows.Changes.
	Change(ctx context.Context, lines []string) error
}

// Controller is one that runs.
type Controller struct {
	config  *Config
	reloads chan *Config
	host    *dpu.Host
	direct  *direct
	log     *slog.Logger
	stats   *Stats

	sw        Switch
	installed []flows.Flow // what is in the switch; nil: it is not known
}

// timeout is how long the database or the switch may take for one request.
const timeout = 30 * time.Second

// Times between two attempts to reach the DPU.
const (
	retryFirst = 20 * time.Millisecond
	retryLast  = 500 * time.Millisecond
)

// collectInterval is how often the controller looks for ports whose pods are gone.
const collectInterval = 10 * time.Second

// New makes a controller. pods is the host's table: forward.Table.
func New(c *Config, pods Pods, log *slog.Logger) (*Controller, error) {
	host, err := dpu.NewHost(c.DPU.Endpoint, c.DPU.Credentials)
	if err != nil {
		return nil, err
	}
	return &Controller{config: c, reloads: make(chan *Config, 1), host: host, direct: newDirect(pods, log), log: log, stats: newStats()}, nil
}

// Stats are the controller's.
func (c *Controller) Stats() *Stats { return c.stats }

// Reload has the controller use another configuration, which says the same about the DPU.
func (c *Controller) Reload(config *Config) {
	select {
	case <-c.reloads: // one that was not taken yet
	default:
	}
	c.reloads <- config
}

// Run controls the switch until ctx ends. The flows stay in the switch.
func (c *Controller) Run(ctx context.Context) error {
	sw, stop, err := OpenSwitch(c.host)
	if err != nil {
		return err
	}
	defer stop()
	c.sw = sw
	last := ""
	for wait := retryFirst; ; wait = min(2*wait, retryLast) {
		worked, err := c.session(ctx)
		c.installed = nil
		c.stats.setHealth(nil)
		if ctx.Err() != nil {
			return nil
		}
		if worked {
			wait, last = retryFirst, ""
		}
		if said := err.Error(); said != last {
			c.log.Error("the switch cannot be controlled", "err", err)
			last = said
		}
		select {
		case <-ctx.Done():
			return nil
		case c.config = <-c.reloads:
		case <-time.After(wait):
		}
	}
}

// sync makes the switch and the host's table what they have to be.
func (c *Controller) sync(ctx context.Context, db *ovsdb.Client, t *ports.Table, health *dpu.Health) error {
	for _, err := range t.Faults {
		c.log.Warn("left out a port", "err", err)
	}
	state, err := c.state(health)
	if err != nil {
		return err
	}
	refused := refuse(t, state.Subnets)
	var with []*ports.Port
	for _, p := range t.Ports {
		if refused[p] == "" && p.Number > 0 {
			with = append(with, p)
			state.Pods = append(state.Pods, flows.Pod{Port: p.Number, MAC: p.MAC, Addrs: p.Addrs})
		}
	}
	if err := c.direct.restrict(t.Ports, &state.Policy); err != nil {
		return err
	}
	if err := c.install(ctx, flows.Compute(state)); err != nil {
		return err
	}
	c.stats.setPorts(len(with), len(c.installed))
	if err := c.direct.loosen(); err != nil {
		return err
	}
	ops, err := c.answers(with, refused)
	if err != nil {
		return err
	}
	if text := tunnels(state); text != t.Nodes() {
		ops = append(ops, t.SetNodes(text)...)
	}
	if len(ops) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err = db.Transact(ctx, append([]ovsdb.Operation{ovsdb.Assert(ports.ControllerLock)}, ops...)...)
	return err
}

// state is what flows are computed from, without pods.
func (c *Controller) state(health *dpu.Health) (*flows.State, error) {
	s := &flows.State{Policy: c.config.policy, Switch: *health}
	for _, n := range c.config.nodes {
		if n.Tunnel == health.Tunnel {
			s.Subnets = n.Subnets
		} else {
			s.Nodes = append(s.Nodes, n)
		}
	}
	if s.Subnets == nil {
		return nil, fmt.Errorf("no [[node]] of the configuration has the tunnel %s, which is this one's; write it with the node's subnets", health.Tunnel)
	}
	return s, nil
}

func tunnels(s *flows.State) string {
	var list []string
	for _, n := range s.Nodes {
		list = append(list, n.Tunnel.String())
	}
	return strings.Join(list, " ")
}

// refuse says why ports get no flows.
func refuse(t *ports.Table, subnets []netip.Prefix) map[*ports.Port]string {
	owners := map[netip.Addr]int{}
	for _, p := range t.Ports {
		for _, a := range p.Addrs {
			owners[a]++
		}
	}
	refused := map[*ports.Port]string{}
	for _, p := range t.Ports {
		if p.Fault != "" {
			refused[p] = "the switch does not take the port: " + p.Fault
		}
		for _, a := range p.Addrs {
			if owners[a] > 1 {
				refused[p] = fmt.Sprintf("two ports have the address %s", a)
			}
			if !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(a) }) {
				refused[p] = fmt.Sprintf("the address %s is in no subnet of this node's [[node]]: %v", a, subnets)
			}
		}
	}
	return refused
}

// answers tell the plugin of ports that are new. Direct forward is switched on for them.
func (c *Controller) answers(with []*ports.Port, refused map[*ports.Port]string) (ops []ovsdb.Operation, err error) {
	for _, p := range with {
		if p.Installed {
			continue
		}
		if err := c.direct.switchOn(p); err != nil {
			return nil, err
		}
		ops = append(ops, p.Acknowledge())
	}
	for p, why := range refused {
		if p.Refused == "" {
			c.log.Warn("a pod gets no flows", "port", p.Name, "container", p.Container, "err", why)
			ops = append(ops, p.Refuse(why))
		}
	}
	return ops, nil
}

// install has the switch take the flows.
func (c *Controller) install(ctx context.Context, want []flows.Flow) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if c.installed == nil {
		began := time.Now()
		if err := c.sw.Replace(ctx, want); err != nil {
			return err
		}
		c.stats.replayed(time.Since(began))
		c.log.Info("all flows are in the switch", "flows", len(want), "took", time.Since(began).Round(time.Millisecond))
	} else if lines := flows.Changes(c.installed, want); len(lines) > 0 {
		old := c.installed
		c.installed = nil // if this fails, nobody knows
		if err := c.sw.Change(ctx, lines); err != nil {
			return err
		}
		c.stats.changed(len(lines))
		c.log.Debug("flows were changed", "changes", len(lines), "before", len(old))
	}
	c.installed = want
	return nil
}
