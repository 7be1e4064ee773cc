package ports

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
)

// Bridge is a bridge of a switch on this host, as the database has it at one moment. Nobody here
// controls it: its flows are the switch's own, or another program's.
type Bridge struct {
	UserSpace bool // the switch takes packets from its ports by AF_PACKET
	Tunnels   []Tunnel
}

// Tunnel is a port of a bridge that leads elsewhere.
type Tunnel struct {
	Kind    string // the Interface's type; also those of the switch itself, like patch
	Options map[string]string
}

// FindBridge reads a bridge.
func FindBridge(ctx context.Context, db *ovsdb.Client, name string) (*Bridge, error) {
	results, err := db.Transact(ctx,
		ovsdb.Select("Bridge", ovsdb.Equal("name", name), "datapath_type", "ports"),
		ovsdb.Select("Port", []ovsdb.Condition{}, "_uuid", "interfaces"),
		ovsdb.Select("Interface", []ovsdb.Condition{{"type", "!=", ""}}, "_uuid", "type", "options")) // a pod's has none
	if err != nil {
		return nil, err
	}
	if len(results[0].Rows) != 1 {
		return nil, noBridge(name)
	}
	row := results[0].Rows[0]
	datapath, err := row.String("datapath_type")
	own, err2 := row.UUIDs("ports")
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("bridge %s: %w", name, err)
	}
	interfaces := map[string]bool{} // the bridge's
	for _, row := range results[1].Rows {
		id, err := row.UUID("_uuid")
		list, err2 := row.UUIDs("interfaces")
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("ports of bridge %s: %w", name, err)
		}
		if slices.Contains(own, id) {
			for _, i := range list {
				interfaces[i] = true
			}
		}
	}
	b := &Bridge{UserSpace: datapath == "netdev"}
	for _, row := range results[2].Rows {
		id, err := row.UUID("_uuid")
		kind, err2 := row.String("type")
		options, err3 := row.Map("options")
		if err := errors.Join(err, err2, err3); err != nil {
			return nil, fmt.Errorf("interfaces of bridge %s: %w", name, err)
		}
		if interfaces[id] {
			b.Tunnels = append(b.Tunnels, Tunnel{kind, options})
		}
	}
	return b, nil
}

func noBridge(name string) error {
	return fmt.Errorf("the switch has no bridge %s; make it: ovs-vsctl add-br %s", name, name)
}

// Plug adds a link of the host to a bridge, in place of a port of the same name, and waits until
// ovs-vswitchd has taken it.
func Plug(ctx context.Context, db *ovsdb.Client, bridge, link string, owner forward.Owner) error {
	monitor, err := db.Monitor(ctx, map[string][]string{"Open_vSwitch": {"cur_cfg"}})
	if err != nil {
		return err
	}
	old, err := portsNamed(ctx, db, link)
	if err != nil {
		return err
	}
	ids := ovsdb.MapOf(map[string]string{networkKey: owner.Network, containerKey: owner.Container, interfaceKey: owner.Interface})
	ops := append(unplug(old), plug(ovsdb.Equal("name", bridge), map[string]any{"name": link, "external_ids": ids})...)
	ops = append(ops, reconfigure())
	results, err := db.Transact(ctx, append(ops, ovsdb.Select("Open_vSwitch", []ovsdb.Condition{}, "next_cfg"))...)
	if err != nil {
		return err
	}
	if results[len(old)+plugged].Count != 1 {
		return noBridge(bridge)
	}
	number, err := single(results[len(ops)].Rows, "next_cfg")
	if err != nil {
		return err
	}
	if err := carriedOut(ctx, db, monitor, number); err != nil {
		return err
	}
	results, err = db.Transact(ctx, ovsdb.Select("Interface", ovsdb.Equal("name", link), "error"))
	if err != nil {
		return err
	}
	if len(results[0].Rows) != 1 {
		return fmt.Errorf("the switch has lost the port %s; look who changes its bridge %s", link, bridge)
	}
	fault, err := results[0].Rows[0].String("error")
	if err == nil && fault != "" {
		err = fmt.Errorf("the switch does not take the port %s: %s", link, fault)
	}
	return err
}

// carriedOut waits until ovs-vswitchd has carried out the change of this number.
func carriedOut(ctx context.Context, db *ovsdb.Client, monitor *ovsdb.Monitor, number int) error {
	for {
		for _, row := range monitor.Rows("Open_vSwitch") {
			done, err := row.Int("cur_cfg")
			if err != nil || done >= number {
				return err
			}
		}
		select {
		case <-monitor.News():
		case <-db.Ended():
			return db.Err()
		case <-ctx.Done():
			return fmt.Errorf("ovs-vswitchd does not carry out changes of the database: %w", context.Cause(ctx))
		}
	}
}

// single reads a number of the only row.
func single(rows []ovsdb.Row, column string) (int, error) {
	if len(rows) != 1 {
		return 0, fmt.Errorf("the database has %d rows, want one with %s", len(rows), column)
	}
	return rows[0].Int(column)
}

// Unplug removes a port from the bridge that has it, if there is one. It does not wait for
// ovs-vswitchd.
func Unplug(ctx context.Context, db *ovsdb.Client, link string) error {
	old, err := portsNamed(ctx, db, link)
	if err != nil || len(old) == 0 {
		return err
	}
	_, err = db.Transact(ctx, append(unplug(old), reconfigure())...)
	return err
}

// BridgeOf returns the name of the bridge that has a port.
func BridgeOf(ctx context.Context, db *ovsdb.Client, link string) (string, error) {
	list, err := portsNamed(ctx, db, link)
	if err != nil {
		return "", err
	}
	for _, id := range list {
		results, err := db.Transact(ctx, ovsdb.Select("Bridge", []ovsdb.Condition{{"ports", "includes", ovsdb.UUID(id)}}, "name"))
		if err != nil {
			return "", err
		}
		for _, row := range results[0].Rows {
			return row.String("name")
		}
	}
	return "", fmt.Errorf("the switch has no port %s", link)
}

// portsNamed returns the rows of a port: one or none.
func portsNamed(ctx context.Context, db *ovsdb.Client, name string) (list []string, err error) {
	results, err := db.Transact(ctx, ovsdb.Select("Port", ovsdb.Equal("name", name), "_uuid"))
	if err != nil {
		return nil, err
	}
	for _, row := range results[0].Rows {
		id, err := row.UUID("_uuid")
		if err != nil {
			return nil, fmt.Errorf("port %s: %w", name, err)
		}
		list = append(list, id)
	}
	return list, nil
}

// plugged is which result of plug counts the bridges that got the port.
const plugged = 2

// plug adds a port to a bridge. A bridge that is gone gets none, which is no error of the
// transaction: the database deletes rows to which nothing refers.
func plug(bridge []ovsdb.Condition, iface map[string]any) []ovsdb.Operation {
	return []ovsdb.Operation{
		ovsdb.Insert("Interface", "interface", iface),
		ovsdb.Insert("Port", "port", map[string]any{"name": iface["name"], "interfaces": ovsdb.Named("interface")}),
		ovsdb.Mutate("Bridge", bridge, ovsdb.Condition{"ports", "insert", ovsdb.SetOf(ovsdb.Named("port"))}),
	}
}

// unplug takes ports from whichever bridge has them: an operation for each. The database deletes rows
// to which nothing refers.
func unplug(ports []string) (ops []ovsdb.Operation) {
	for _, id := range ports {
		ops = append(ops, ovsdb.Mutate("Bridge", []ovsdb.Condition{}, ovsdb.Condition{"ports", "delete", ovsdb.SetOf(ovsdb.UUID(id))}))
	}
	return ops
}

// reconfigure has ovs-vswitchd look, as ovs-vsctl does.
func reconfigure() ovsdb.Operation {
	return ovsdb.Mutate("Open_vSwitch", []ovsdb.Condition{}, ovsdb.Condition{"next_cfg", "+=", 1})
}
