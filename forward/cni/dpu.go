package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload/card"
	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
	"github.com/tsugiki/tsugiki/forward/offload/ports"
)

// dpuKeys are those of "dpu" in the configuration.
type dpuKeys struct {
	Endpoint    string `json:"endpoint"`
	Credentials string `json:"credentials"`
	Card        string `json:"card"`
}

// The values of "card".
const (
	cardHardware = "hardware"
	cardEmulated = "emulated"
)

func (k *dpuKeys) check(c *config) error {
	if k.Card == "" {
		k.Card = cardHardware
	}
	e, err := dpu.ParseEndpoint(k.Endpoint)
	switch {
	case err != nil:
		return fmt.Errorf("dpu.%w", err)
	case e.TLS() && k.Credentials == "":
		return errors.New("dpu.credentials is missing: a tls endpoint needs a folder with ca.pem, cert.pem and key.pem")
	case k.Card != cardHardware && k.Card != cardEmulated:
		return fmt.Errorf("dpu.card %q is unknown; write hardware or emulated", k.Card)
	case c.Bridge != "" && c.Bridge != dpu.Bridge:
		return fmt.Errorf("bridge %q: the bridge of a DPU is %s; leave out bridge", c.Bridge, dpu.Bridge)
	case c.IPAM.Type == "":
		return errors.New("ipam is missing; a pod of a DPU's switch has a virtual function, and no other plugin's link")
	}
	return nil
}

// offloaded is the switch of a DPU. A pod's packets come to it by a virtual function (VF) of the
// card, which stays in the host's namespace, out of the pod's reach.
//
//	pod eth0 ── host [forward_from_pod] ─redirect─► VF ══ representor ── Open vSwitch on the DPU
//	                        redirect_peer ◄── [forward_from_wire]
//
// A VF is free if it has no alias and the host does not use it. The plugin writes the port into the
// DPU's database, where the controller (package offload) finds it, and waits until that has its flows
// in the switch.
type offloaded struct {
	host   *dpu.Host
	card   card.Host
	direct bool
	health *dpu.Health // after prepare
}

// installTime is how long the switch and the controller may take for a pod's flows. One pod's take
// milliseconds. If hundreds of pods come at once, the last one waits for all: DPUs are slow.
const installTime = time.Minute

// removeTime is how long DEL waits for a database that does not answer. It may have hundreds of pods'
// to remove before.
const removeTime = 20 * time.Second

func newDPU(c *config) (*offloaded, error) {
	host, err := dpu.NewHost(c.DPU.Endpoint, c.DPU.Credentials)
	if err != nil {
		return nil, err
	}
	o := &offloaded{host: host, card: card.NewHardware(), direct: c.DirectForward}
	if c.DPU.Card == cardEmulated {
		o.card = card.Emulated{}
	}
	return o, nil
}

func (o *offloaded) prepare(*current.Result) error { return o.reachable() }

func (o *offloaded) usable() error {
	if err := o.reachable(); err != nil {
		return err
	}
	_, err := o.free()
	return err
}

// reachable says whether the switch works and is controlled.
func (o *offloaded) reachable() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), installTime)
	defer cancel()
	if o.health, err = o.host.Healthy(ctx); err != nil {
		return err
	}
	return o.withDatabase(ctx, func(db *ovsdb.Client) error {
		held, err := db.Held(ctx, ports.ControllerLock)
		if err == nil && !held {
			err = errors.New("nobody controls the DPU's switch; start tsugiki offload on this host, or look at its log")
		}
		return err
	})
}

func (o *offloaded) withDatabase(ctx context.Context, use func(*ovsdb.Client) error) error {
	conn, err := o.host.Dial(ctx, dpu.OVSDB)
	if err != nil {
		return err
	}
	db := ovsdb.NewClient(conn)
	defer db.Close()
	return use(db)
}

func (o *offloaded) mtu() int {
	if o.health == nil {
		return usualMTU
	}
	return o.health.PodMTU()
}

func (o *offloaded) connect(l *podLink, name names, _ *current.Result, done *undo) error {
	*done = append(*done, func() error { return o.disconnect(name) })
	vf, err := o.claim(name)
	if err != nil {
		return err
	}
	// The card takes frames for the VF's MAC address, unless it is told otherwise.
	if err := netlink.LinkSetHardwareAddr(vf, l.mac); err != nil {
		return fmt.Errorf("set MAC address of VF %s: %w", vf.Attrs().Name, err)
	}
	if vf.Attrs().MTU < l.mtu {
		if err := netlink.LinkSetMTU(vf, l.mtu); err != nil {
			return fmt.Errorf("set MTU of VF %s: %w", vf.Attrs().Name, err)
		}
	}
	for _, each := range []string{name.host, vf.Attrs().Name} {
		file := "/proc/sys/net/ipv6/conf/" + each + "/disable_ipv6"
		if err := os.WriteFile(file, []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("set %s: %w", file, err)
		}
	}
	l.wire = vf.Attrs().Index
	// The switch delivers by IP addresses. A change of the MAC address, which announces the pod, would
	// also make the kernel forget the gateway's.
	l.quiet = true
	l.network = networkOf(o.host.String(), dpu.Bridge)
	return nil
}

// open adds the port, and lets packets through when its flows are in the switch.
func (o *offloaded) open(l *podLink, name names, given *current.Result) error {
	vf, link, err := o.find(name)
	if err == nil && link == nil {
		err = errors.New("its VF is gone")
	}
	if err != nil {
		return err
	}
	port := &ports.Port{Owner: name.Owner, Name: vf.Representor(), MAC: ports.MACOf(l.mac), Device: l.host.Attrs().Index, Direct: o.direct}
	for _, ip := range given.IPs {
		port.Addrs = append(port.Addrs, addrOf(ip.Address.IP))
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set VF %s up: %w", vf.Link, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), installTime)
	defer cancel()
	return o.withDatabase(ctx, func(db *ovsdb.Client) error {
		monitor, err := db.Monitor(ctx, ports.Columns)
		if err != nil {
			return err
		}
		if err := ports.Read(monitor.Rows).Add(ctx, db, port); err != nil {
			return err
		}
		return o.installed(ctx, db, monitor, name.Owner)
	})
}

// installed waits until the flows of a port are in the switch.
func (o *offloaded) installed(ctx context.Context, db *ovsdb.Client, monitor *ovsdb.Monitor, owner forward.Owner) error {
	for {
		p := ports.Read(monitor.Rows).Find(owner)
		switch {
		case p != nil && p.Installed:
			return nil
		case p != nil && p.Refused != "":
			return fmt.Errorf("the controller refuses the pod: %s", p.Refused)
		}
		select {
		case <-monitor.News():
		case <-db.Ended():
			return db.Err()
		case <-ctx.Done():
			return failure(types.ErrTryAgainLater, "the switch has no flows of the pod after %s; look at the logs of tsugiki offload and, on the DPU, of tsugiki dpu-agent", installTime)
		}
	}
}

// disconnect removes the port and gives the VF back. It does not wait for a switch that is away: the
// VF's next pod gets a port in place of this one, and the controller removes ports without a pod.
// Until then packets for this pod end at the VF, where the host's program drops what is not for
// the MAC address of the VF's pod.
func (o *offloaded) disconnect(name names) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	err := o.withDatabase(ctx, func(db *ovsdb.Client) error {
		t, err := ports.Get(ctx, db)
		if err == nil {
			err = t.Remove(ctx, db, func(p *ports.Port) bool { return p.Owner == name.Owner })
		}
		return err
	})
	var refused *ovsdb.TransactionError
	if errors.As(err, &refused) {
		return err
	}
	_, link, err := o.find(name)
	if err != nil || link == nil {
		return err
	}
	if err := netlink.LinkSetDown(link); err != nil {
		return fmt.Errorf("set VF %s down: %w", link.Attrs().Name, err)
	}
	// The VF outlives its pod, and so would the program.
	index := link.Attrs().Index
	err = withTable(func(t *forward.Table) error { return t.Detach(forward.Pod{Device: index, Wire: index}) })
	if err != nil {
		return err
	}
	return forget(link)
}

func (o *offloaded) connected(_ netlink.Link, name names) error {
	vf, link, err := o.find(name)
	if err != nil {
		return err
	}
	if link == nil {
		return errors.New("no VF of the card is the pod's")
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("the VF %s is down", vf.Link)
	}
	if err := o.reachable(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), installTime)
	defer cancel()
	return o.withDatabase(ctx, func(db *ovsdb.Client) error {
		t, err := ports.Get(ctx, db)
		if err != nil {
			return err
		}
		switch p := t.Find(name.Owner); {
		case p == nil:
			return fmt.Errorf("the switch has no port %s for the pod", vf.Representor())
		case p.Name != vf.Representor():
			return fmt.Errorf("the switch has the port %s for the pod, and its VF is that of %s", p.Name, vf.Representor())
		case p.Fault != "":
			return fmt.Errorf("the switch does not take the port %s: %s", p.Name, p.Fault)
		case !p.Installed:
			return fmt.Errorf("the switch has no flows for the port %s", p.Name)
		}
		return nil
	})
}

// configure has the pod compute checksums unless a card does.
func (o *offloaded) configure(own netlink.Link, _ *podLink) error {
	if o.health.Offload == "hardware" {
		return nil
	}
	return checksumOff(own.Attrs().Name)
}

// addRoutes tells the pod where its gateways are: the switch has no neighbor discovery of its own.
func (o *offloaded) addRoutes(own netlink.Link, _ *podLink, given *current.Result) error {
	for _, ip := range given.IPs {
		if ip.Gateway == nil {
			continue
		}
		neighbor := &netlink.Neigh{LinkIndex: own.Attrs().Index, State: netlink.NUD_PERMANENT, IP: ip.Gateway, HardwareAddr: dpu.GatewayMAC[:]}
		if err := netlink.NeighSet(neighbor); err != nil {
			return fmt.Errorf("enter gateway %s in the container: %w", ip.Gateway, err)
		}
	}
	return nil
}
