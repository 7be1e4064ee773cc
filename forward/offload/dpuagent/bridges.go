package dpuagent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
	"github.com/tsugiki/tsugiki/forward/offload/ports"
)

// Names in the switch, and the numbers that the ports of br-int ask for in OpenFlow.
const (
	physical    = "br-phy"
	tunnelPort  = "vx0"
	outsidePort = "patch-phy"
	insidePort  = "patch-int"
	userSpace   = "netdev"
)

// vsctlSeconds is how long the switch may take for a change.
const vsctlSeconds = 20

// vsctl runs ovs-vsctl, which waits until ovs-vswitchd has made the change.
func (a *Agent) vsctl(ctx context.Context, args ...string) (string, error) {
	program, err := exec.LookPath("ovs-vsctl")
	if err != nil {
		return "", errors.New("there is no ovs-vsctl; install openvswitch-switch")
	}
	words := append([]string{"--db=unix:" + filepath.Join(a.RunDir, dpu.OVSDB.SocketName()), fmt.Sprintf("--timeout=%d", vsctlSeconds)}, args...)
	out, err := exec.CommandContext(ctx, program, words...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("ovs-vsctl: %w: %s; look whether ovsdb-server and ovs-vswitchd run", err, strings.Join(strings.Fields(string(exit.Stderr)), " "))
	}
	return strings.TrimSpace(string(out)), err
}

// makeBridges makes the two bridges, in one transaction. What is there already stays.
func (a *Agent) makeBridges(ctx context.Context, hardware bool) error {
	words := []string{
		"--may-exist", "add-br", physical, "--", "set", "Bridge", physical, "datapath_type=" + a.Datapath,
		"--", "--may-exist", "add-port", physical, a.Uplink,
		"--", "--may-exist", "add-br", dpu.Bridge,
		"--", "set", "Bridge", dpu.Bridge, "datapath_type=" + a.Datapath, "fail_mode=secure", "protocols=OpenFlow13,OpenFlow15",
		"--", "--may-exist", "add-port", dpu.Bridge, tunnelPort,
		"--", "set", "Interface", tunnelPort, "type=vxlan", "options:remote_ip=flow", "options:key=flow", "ofport_request=1",
	}
	if a.Masquerade.IsValid() {
		words = append(words,
			"--", "--may-exist", "add-port", dpu.Bridge, outsidePort,
			"--", "set", "Interface", outsidePort, "type=patch", "options:peer="+insidePort, "ofport_request=2",
			"--", "--may-exist", "add-port", physical, insidePort,
			"--", "set", "Interface", insidePort, "type=patch", "options:peer="+outsidePort)
	}
	if hardware {
		// ovs-vswitchd reads it at its start alone (ovs-vswitchd.conf.db(5)).
		words = append(words, "--", "set", "Open_vSwitch", ".", "other_config:hw-offload=true")
	}
	_, err := a.vsctl(ctx, words...)
	return err
}

// portNumber is a port's number in OpenFlow.
func (a *Agent) portNumber(ctx context.Context, name string) (int, error) {
	text, err := a.vsctl(ctx, "get", "Interface", name, "ofport", "error")
	if err != nil {
		return 0, err
	}
	number, fault, _ := strings.Cut(text, "\n")
	port, err := strconv.Atoi(number)
	if err != nil || port <= 0 {
		return 0, fmt.Errorf("the switch does not take the port %s: %s", name, fault)
	}
	return port, nil
}

// database follows br-int's row.
type database struct {
	*ovsdb.Client
	monitor *ovsdb.Monitor
}

func (a *Agent) openDatabase(ctx context.Context) (*database, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := ovsdb.Dial(ctx, filepath.Join(a.RunDir, dpu.OVSDB.SocketName()))
	if err != nil {
		return nil, fmt.Errorf("reach ovsdb-server: %w", err)
	}
	db := &database{Client: ovsdb.NewClient(conn)}
	db.monitor, err = db.Monitor(ctx, map[string][]string{"Bridge": {"name", "external_ids"}})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// nodes are other nodes' tunnels. What is no address is the host's mistake, and left out.
func (d *database) nodes() (list []netip.Addr) {
	for _, row := range d.monitor.Rows("Bridge") {
		if name, err := row.String("name"); err != nil || name != dpu.Bridge {
			continue
		}
		ids, err := row.Map("external_ids")
		if err != nil {
			continue
		}
		for _, word := range strings.Fields(ids[ports.NodesKey]) {
			if addr, err := netip.ParseAddr(word); err == nil {
				list = append(list, addr)
			}
		}
	}
	return list
}
