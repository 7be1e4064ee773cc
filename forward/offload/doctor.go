package offload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/forward/offload/card"
	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
	"github.com/tsugiki/tsugiki/forward/offload/ports"
	"github.com/tsugiki/tsugiki/internal/kernel"
)

// OVSSocket is the database's socket of an Open vSwitch on this host.
const OVSSocket = "/run/openvswitch/db.sock"

// probeTime is how long a switch may take to answer.
const probeTime = 10 * time.Second

// Features are what the network plugin needs of switches, on a host that has one: an Open vSwitch of
// its own, or the configuration file of a controller. On others there are none.
func Features(config string) (list []kernel.Feature) {
	if _, err := os.Stat(OVSSocket); err == nil {
		list = append(list, kernel.Feature{
			Name: "Open vSwitch", Lost: "pods of mode ovs reach only pods of this node that they know",
			Probe: func(*kernel.Scratch) (string, error) { return examineOVS(OVSSocket) },
		})
	}
	if _, err := os.Stat(config); err != nil {
		return list
	}
	const lost = "no pod can be attached in mode dpu"
	e := &examination{config: config}
	return append(list,
		kernel.Feature{Name: "ovs-ofctl", Lost: "tsugiki offload installs no flows", Probe: func(*kernel.Scratch) (string, error) {
			return exec.LookPath("ovs-ofctl")
		}},
		kernel.Feature{Name: "DPU", Lost: "pods of mode dpu reach only pods of this node that they know", Probe: e.dpu},
		kernel.Feature{Name: "controller of the DPU", Lost: lost, Probe: e.controller},
		kernel.Feature{Name: "representors of the DPU", Lost: lost, Probe: e.representors})
}

// examineOVS tells which bridges of the switch there are.
func examineOVS(socket string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	conn, err := ovsdb.Dial(ctx, socket)
	if err != nil {
		return "", fmt.Errorf("%w; start it: systemctl start openvswitch-switch", err)
	}
	db := ovsdb.NewClient(conn)
	defer db.Close()
	results, err := db.Transact(ctx, ovsdb.Select("Bridge", []ovsdb.Condition{}, "name"),
		ovsdb.Select("Open_vSwitch", []ovsdb.Condition{}, "next_cfg", "cur_cfg"))
	if err != nil {
		return "", err
	}
	for _, row := range results[1].Rows {
		next, err := row.Int("next_cfg")
		done, err2 := row.Int("cur_cfg")
		if err := errors.Join(err, err2); err != nil {
			return "", err
		}
		if done < next {
			return "", errors.New("ovs-vswitchd has not carried out the last change; look whether it runs")
		}
	}
	var names []string
	for _, row := range results[0].Rows {
		name, err := row.String("name")
		if err != nil {
			return "", err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return "bridges: " + strings.Join(names, ", "), nil
}

// examination reads the configuration once for all probes.
type examination struct {
	config string
	health *dpu.Health
}

func (e *examination) open() (*dpu.Host, error) {
	c, err := Load(e.config)
	if err != nil {
		return nil, err
	}
	return dpu.NewHost(c.DPU.Endpoint, c.DPU.Credentials)
}

func (e *examination) dpu(*kernel.Scratch) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	host, err := e.open()
	if err == nil {
		e.health, err = host.Healthy(ctx)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("generation %s, tunnel %s, packets by %s", e.health.Generation, e.health.Tunnel, e.health.Offload), nil
}

// errNoController says that nobody has the lock.
var errNoController = errors.New("nobody controls the DPU's switch; start tsugiki offload")

func (e *examination) controller(*kernel.Scratch) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	host, err := e.open()
	if err != nil {
		return "", err
	}
	conn, err := host.Dial(ctx, dpu.OVSDB)
	if err != nil {
		return "", err
	}
	db := ovsdb.NewClient(conn)
	defer db.Close()
	held, err := db.Held(ctx, ports.ControllerLock)
	if err == nil && !held {
		err = errNoController
	}
	if err != nil {
		return "", err
	}
	t, err := ports.Get(ctx, db)
	if err != nil {
		return "", err
	}
	without := 0
	for _, p := range t.Ports {
		if !p.Installed {
			without++
		}
	}
	return fmt.Sprintf("%d ports of pods, of which %d have no flows", len(t.Ports), without), nil
}

// representors tells whether each VF of the host has one.
func (e *examination) representors(*kernel.Scratch) (string, error) {
	if e.health == nil {
		return "", kernel.Untold("unknown, because the DPU does not say")
	}
	var all []card.VF
	for _, c := range []card.Host{card.NewHardware(), card.Emulated{}} {
		list, err := c.VFs()
		if err != nil {
			return "", err
		}
		all = append(all, list...)
	}
	if len(all) == 0 {
		return "", errors.New("this network namespace has no VF")
	}
	var missing []string
	for _, vf := range all {
		if !slices.Contains(e.health.Representors, vf.Representor()) {
			missing = append(missing, fmt.Sprintf("%s of VF %s", vf.Representor(), vf.Link))
		}
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("the DPU has no representor %s", strings.Join(missing, ", "))
	}
	return fmt.Sprintf("%d VFs, each with its representor", len(all)), nil
}
