// Package ports is what the switch's database knows of a host's pods: a port of br-int for each,
// whose external_ids say whose it is.
//
// The database is the only place where this is kept. It outlives ovs-vswitchd, the host's programs
// and, on the DPU's disk, its boot. The network plugin writes a port, and the controller (package
// offload) answers in the same row when the port's flows are in the switch. Package ports has the
// names and the transactions; it owns no connection. A switch on the host itself has no controller: Bridge. It needs no privileges.
package ports

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload/card"
	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
)

// Keys of external_ids of an Interface.
const (
	networkKey   = "tsugiki-network"
	containerKey = "tsugiki-container"
	interfaceKey = "tsugiki-interface"
	macKey       = "tsugiki-mac"
	addrsKey     = "tsugiki-addresses" // separated by spaces
	deviceKey    = "tsugiki-device"    // the index of the host's end of the pod's link
	directKey    = "tsugiki-direct"    // "true": the controller switches direct forward on
	// installedKey is "true" when the port's flows are in the switch. The controller writes it.
	installedKey = "tsugiki-installed"
	// refusedKey says why there are none. The controller writes it.
	refusedKey = "tsugiki-refused"
)

// NodesKey is the key of external_ids of br-int with the tunnels of other nodes, separated by spaces.
// The controller writes it; the DPU's agent finds their neighbors in advance.
const NodesKey = "tsugiki-nodes"

// ControllerLock is the lock of the database that the controller has as long as it runs.
const ControllerLock = "tsugiki_offload"

// Port is a pod's port of the switch.
type Port struct {
	forward.Owner
	Name   string // the representor's
	MAC    dpu.MAC
	Addrs  []netip.Addr
	Device int
	Direct bool

	Number    int    // in OpenFlow; 0: the switch has none yet
	Fault     string // why the switch does not take the port
	Installed bool
	Refused   string // why the controller installs no flows

	row string // UUID of the Interface
}

// Columns are those that From reads, by table.
var Columns = map[string][]string{
	"Interface": {"name", "external_ids", "ofport", "error"},
	"Port":      {"name", "interfaces"},
	"Bridge":    {"name", "ports", "external_ids"},
}

// From reads a row of Interface. It returns nil for a row that is none of ours.
func From(uuid string, row ovsdb.Row) (*Port, error) {
	ids, err := row.Map("external_ids")
	if err != nil {
		return nil, err
	}
	if _, ours := ids[macKey]; !ours {
		return nil, nil
	}
	p := &Port{
		Owner: forward.Owner{Network: ids[networkKey], Container: ids[containerKey], Interface: ids[interfaceKey]},
		row:   uuid, Direct: ids[directKey] == "true", Installed: ids[installedKey] == "true", Refused: ids[refusedKey],
	}
	if p.Name, err = row.String("name"); err != nil {
		return nil, err
	}
	wrong := func(err error) (*Port, error) { return nil, fmt.Errorf("port %s: %w", p.Name, err) }
	if err := p.MAC.UnmarshalText([]byte(ids[macKey])); err != nil {
		return wrong(err)
	}
	for _, word := range strings.Fields(ids[addrsKey]) {
		a, err := netip.ParseAddr(word)
		if err != nil {
			return wrong(err)
		}
		p.Addrs = append(p.Addrs, a)
	}
	if p.Device, err = strconv.Atoi(ids[deviceKey]); err != nil {
		return wrong(err)
	}
	if p.Number, err = row.Int("ofport"); err != nil {
		return wrong(err)
	}
	p.Number = max(p.Number, 0) // -1: refused
	p.Fault, err = row.String("error")
	if err != nil {
		return wrong(err)
	}
	return p, nil
}

func (p *Port) ids() map[string]string {
	var addrs []string
	for _, a := range p.Addrs {
		addrs = append(addrs, a.String())
	}
	return map[string]string{
		networkKey: p.Network, containerKey: p.Container, interfaceKey: p.Interface,
		macKey: p.MAC.String(), addrsKey: strings.Join(addrs, " "),
		deviceKey: strconv.Itoa(p.Device), directKey: strconv.FormatBool(p.Direct),
	}
}

// Table is what the database says, at one moment.
type Table struct {
	Ports  []*Port // those of ours, by name
	Faults []error // rows that cannot be read
	bridge string  // UUID of br-int
	ports  map[string]string
	nodes  string
}

// Bridge tells whether the switch has br-int.
func (t *Table) Bridge() bool { return t.bridge != "" }

// Nodes is br-int's NodesKey.
func (t *Table) Nodes() string { return t.nodes }

// Read reads tables that have Columns, as a Monitor has them.
func Read(rows func(table string) map[string]ovsdb.Row) *Table {
	t := &Table{ports: map[string]string{}}
	for id, row := range rows("Interface") {
		p, err := From(id, row)
		if err != nil {
			t.Faults = append(t.Faults, err)
		} else if p != nil {
			t.Ports = append(t.Ports, p)
		}
	}
	slices.SortFunc(t.Ports, func(a, b *Port) int { return strings.Compare(a.Name, b.Name) })
	for id, row := range rows("Port") {
		if name, err := row.String("name"); err == nil {
			t.ports[name] = id
		}
	}
	for id, row := range rows("Bridge") {
		if name, err := row.String("name"); err == nil && name == dpu.Bridge {
			t.bridge = id
			ids, err := row.Map("external_ids")
			if err != nil {
				t.Faults = append(t.Faults, err)
			}
			t.nodes = ids[NodesKey]
		}
	}
	return t
}

// Get reads the tables with one transaction.
func Get(ctx context.Context, db *ovsdb.Client) (*Table, error) {
	var ops []ovsdb.Operation
	var tables []string
	for table, columns := range Columns {
		tables = append(tables, table)
		ops = append(ops, ovsdb.Select(table, []ovsdb.Condition{}, append(columns, "_uuid")...))
	}
	results, err := db.Transact(ctx, ops...)
	if err != nil {
		return nil, err
	}
	return Read(func(table string) map[string]ovsdb.Row {
		rows := map[string]ovsdb.Row{}
		for _, row := range results[slices.Index(tables, table)].Rows {
			if id, err := row.UUID("_uuid"); err == nil {
				rows[id] = row
			}
		}
		return rows
	}), nil
}

// ErrNoBridge says that the DPU has no br-int.
var ErrNoBridge = fmt.Errorf("the switch has no bridge %s; tsugiki dpu-agent makes it", dpu.Bridge)

// Add adds a port, in place of all ports of the same name, owner, MAC or IP address in the table: they
// are left of pods that are gone. It has the same effect if it is done twice.
func (t *Table) Add(ctx context.Context, db *ovsdb.Client, p *Port) error {
	if t.bridge == "" {
		return ErrNoBridge
	}
	old := t.removal(p.replaces)
	if id, other := t.ports[p.Name]; other && t.byName(p.Name) == nil { // somebody else's
		old = append(old, id)
	}
	iface := map[string]any{"name": p.Name, "external_ids": ovsdb.MapOf(p.ids())}
	if n := card.PortNumber(p.Name); n > 0 {
		iface["ofport_request"] = n
	}
	ops := append(unplug(old), plug(ovsdb.Equal("_uuid", ovsdb.UUID(t.bridge)), iface)...)
	results, err := db.Transact(ctx, append(ops, reconfigure())...)
	if err == nil && results[len(old)+plugged].Count != 1 {
		err = ErrNoBridge
	}
	return err
}

// replaces tells whether the port takes another one's place.
func (p *Port) replaces(old *Port) bool {
	return old.Name == p.Name || old.Owner == p.Owner || old.MAC == p.MAC ||
		slices.ContainsFunc(old.Addrs, func(a netip.Addr) bool { return slices.Contains(p.Addrs, a) })
}

// Remove removes ports.
func (t *Table) Remove(ctx context.Context, db *ovsdb.Client, which func(*Port) bool) error {
	old := t.removal(which)
	if len(old) == 0 {
		return nil
	}
	_, err := db.Transact(ctx, append(unplug(old), reconfigure())...)
	return err
}

// removal are the rows of the ports to remove.
func (t *Table) removal(which func(*Port) bool) (list []string) {
	for _, p := range t.Ports {
		if id, ok := t.ports[p.Name]; ok && which(p) {
			list = append(list, id)
		}
	}
	return list
}

// Acknowledge says of a port that its flows are in the switch. A row that is gone is left out.
func (p *Port) Acknowledge() ovsdb.Operation { return p.say(installedKey, "true") }

// Refuse says of a port why it has no flows.
func (p *Port) Refuse(why string) ovsdb.Operation { return p.say(refusedKey, why) }

func (p *Port) say(key, value string) ovsdb.Operation {
	return ovsdb.Mutate("Interface", ovsdb.Equal("_uuid", ovsdb.UUID(p.row)),
		ovsdb.Condition{"external_ids", "insert", ovsdb.MapOf(map[string]string{key: value})})
}

// SetNodes writes NodesKey.
func (t *Table) SetNodes(text string) []ovsdb.Operation {
	where := ovsdb.Equal("_uuid", ovsdb.UUID(t.bridge))
	return []ovsdb.Operation{
		ovsdb.Mutate("Bridge", where, ovsdb.Condition{"external_ids", "delete", ovsdb.SetOf(NodesKey)}),
		ovsdb.Mutate("Bridge", where, ovsdb.Condition{"external_ids", "insert", ovsdb.MapOf(map[string]string{NodesKey: text})}),
	}
}

func (t *Table) byName(name string) *Port {
	for _, p := range t.Ports {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Find returns the port of an owner; nil if there is none.
func (t *Table) Find(o forward.Owner) *Port {
	for _, p := range t.Ports {
		if p.Owner == o {
			return p
		}
	}
	return nil
}

// MACOf reads a link's address.
func MACOf(mac net.HardwareAddr) (m dpu.MAC) {
	copy(m[:], mac)
	return m
}
