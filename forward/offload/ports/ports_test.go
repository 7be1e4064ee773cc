package ports

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
)

// row is a row of Interface as the server sends it.
func row(t *testing.T, name string, ids map[string]string, port any) ovsdb.Row {
	t.Helper()
	r := ovsdb.Row{}
	for column, v := range map[string]any{"name": name, "external_ids": ovsdb.MapOf(ids), "ofport": port, "error": ovsdb.SetOf()} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		r[column] = text
	}
	return r
}

// What Add writes, From reads. Other rows are nobody's; rows that are wrong are errors.
func TestRows(t *testing.T) {
	p := &Port{
		Owner: forward.Owner{Network: "n", Container: "c", Interface: "eth0"}, Name: "rep0-1", MAC: dpu.MAC{2, 3}, Device: 7, Direct: true,
		Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")}, Number: 257,
	}
	got, err := From("u", row(t, p.Name, p.ids(), 257))
	if diff := cmp.Diff(p, got, cmpopts.IgnoreUnexported(Port{}), cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil {
		t.Errorf("%v:\n%s", err, diff)
	}
	if got, err := From("u", row(t, "eth0", nil, -1)); got != nil || err != nil {
		t.Errorf("a stranger's: %v, %v", got, err)
	}
	if got, err := From("u", row(t, p.Name, p.ids(), -1)); err != nil || got.Number != 0 {
		t.Errorf("a refused port: %v, %v", got, err)
	}
	for key, value := range map[string]string{macKey: "x", addrsKey: "10.0.0.1 x", deviceKey: ""} {
		ids := p.ids()
		ids[key] = value
		if _, err := From("u", row(t, p.Name, ids, 1)); err == nil || !strings.Contains(err.Error(), "rep0-1") {
			t.Errorf("%s=%q: %v", key, value, err)
		}
	}
}

// A port takes the place of those that have its name, owner or addresses.
func TestRemoval(t *testing.T) {
	port := func(name, container string, mac byte, addr string) *Port {
		return &Port{Owner: forward.Owner{Container: container}, Name: name, MAC: dpu.MAC{mac}, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
	}
	table := &Table{bridge: "b", ports: map[string]string{"rep0-0": "0", "rep0-1": "1"}, Ports: []*Port{
		port("rep0-0", "a", 2, "10.0.0.1"), port("rep0-1", "b", 4, "10.0.0.2"), port("rep0-9", "gone", 4, "10.0.0.2"),
	}}
	for what, c := range map[string]struct {
		p    *Port
		want int
	}{
		"name":      {port("rep0-0", "x", 9, "10.0.0.9"), 1},
		"owner":     {port("rep0-5", "b", 9, "10.0.0.9"), 1},
		"MAC":       {port("rep0-5", "x", 2, "10.0.0.9"), 1},
		"addresses": {port("rep0-5", "x", 9, "10.0.0.2"), 1},
		"two":       {port("rep0-5", "x", 2, "10.0.0.2"), 2},
		"none":      {port("rep0-5", "x", 9, "10.0.0.9"), 0},
	} {
		if ops := table.removal(c.p.replaces); len(ops) != c.want {
			t.Errorf("%s: %v, want %d", what, ops, c.want)
		}
	}
}

// FuzzFrom reads rows of a server.
func FuzzFrom(f *testing.F) {
	f.Add(`["map",[["tsugiki-mac","02:00:00:00:00:01"],["tsugiki-device","7"]]]`, `"rep0-1"`, `257`)
	f.Add(`["map",[]]`, `["set",[]]`, `["set",[1,2]]`)
	f.Fuzz(func(t *testing.T, ids, name, port string) {
		r := ovsdb.Row{"external_ids": json.RawMessage(ids), "name": json.RawMessage(name), "ofport": json.RawMessage(port), "error": json.RawMessage(`""`)}
		p, err := From("u", r)
		if err == nil && p != nil && p.Number < 0 {
			t.Errorf("port %+v", p)
		}
		Read(func(string) map[string]ovsdb.Row { return map[string]ovsdb.Row{"u": r} })
	})
}
