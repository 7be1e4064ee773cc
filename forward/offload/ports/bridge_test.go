package ports

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// script is a server whose answers are given: one result after the other, then the end of the
// connection. A text that begins with a brace is a message of its own.
func script(t testing.TB, answers ...string) *ovsdb.Client {
	t.Helper()
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		d := json.NewDecoder(far)
		for _, text := range answers {
			if !strings.HasPrefix(text, "{\"method\"") {
				var request struct {
					ID json.RawMessage `json:"id"`
				}
				if d.Decode(&request) != nil {
					return
				}
				text = fmt.Sprintf(`{"id":%s,"error":null,"result":%s}`, request.ID, text)
			}
			if _, err := fmt.Fprint(far, text); err != nil {
				return
			}
		}
	}()
	c := ovsdb.NewClient(near)
	t.Cleanup(func() { c.Close() })
	return c
}

// Answers of a server.
const (
	noRows   = `[{"rows":[]}]`
	onePort  = `[{"rows":[{"_uuid":["uuid","p"]}]}]`
	monitors = `{"Open_vSwitch":{"r":{"new":{"cur_cfg":6}}}}`
	plugs    = `[{"uuid":["uuid","i"]},{"uuid":["uuid","q"]},{"count":1},{"count":1},{"rows":[{"next_cfg":7}]}]`
	done     = `{"method":"update","id":null,"params":[null,{"Open_vSwitch":{"r":{"new":{"cur_cfg":7}}}}]}`
)

// A port is there when ovs-vswitchd has taken it, and whatever else the server says is an error and no
// hang.
func TestPlug(t *testing.T) {
	for name, c := range map[string]struct {
		answers []string
		want    string
	}{
		"taken":          {[]string{monitors, noRows, plugs, done, `[{"rows":[{"error":["set",[]]}]}]`}, ""},
		"at once":        {[]string{strings.ReplaceAll(monitors, "6", "7"), noRows, plugs, `[{"rows":[{"error":["set",[]]}]}]`}, ""},
		"in place":       {[]string{monitors, onePort, strings.Replace(plugs, "[", `[{"count":1},`, 1), done, `[{"rows":[{"error":["set",[]]}]}]`}, ""},
		"refused":        {[]string{monitors, noRows, plugs, done, `[{"rows":[{"error":"no such device"}]}]`}, "does not take the port ts1: no such device"},
		"lost":           {[]string{monitors, noRows, plugs, done, noRows}, "lost the port ts1"},
		"no bridge":      {[]string{monitors, noRows, strings.Replace(plugs, `"count":1`, `"count":0`, 1)}, "no bridge br0"},
		"not taken":      {[]string{monitors, noRows, plugs}, "ended"},
		"no number":      {[]string{monitors, noRows, strings.Replace(plugs, "7", `"x"`, 1)}, "next_cfg"},
		"no row":         {[]string{monitors, noRows, strings.Replace(plugs, `{"next_cfg":7}`, "", 1)}, "0 rows"},
		"odd number":     {[]string{monitors, noRows, plugs, strings.Replace(done, "7", `"x"`, 1)}, "cur_cfg"},
		"row is gone":    {[]string{monitors, noRows, plugs, strings.Replace(done, `"new":{"cur_cfg":7}`, "", 1)}, "ended"},
		"few results":    {[]string{monitors, noRows, `[]`}, "fewer results"},
		"violation":      {[]string{monitors, noRows, `[{},{},{},{},{},{"error":"constraint violation","details":"twice"}]`}, "twice"},
		"odd port":       {[]string{monitors, `[{"rows":[{"_uuid":"p"}]}]`}, "port ts1"},
		"odd monitor":    {[]string{`7`}, "read tables"},
		"nothing":        {nil, "the database"},
		"odd error":      {[]string{monitors, noRows, plugs, done, `[{"rows":[{"error":7}]}]`}, "column error"},
		"another's rows": {[]string{monitors, noRows, plugs, done, `[{"rows":[{},{}]}]`}, "lost the port"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			err := Plug(ctx, script(t, c.answers...), "br0", "ts1", forward.Owner{Network: "n", Container: "c", Interface: "eth0"})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || ctx.Err() != nil {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// A bridge's tunnels are its own, and not another one's. Rows that are wrong are errors.
func TestFindBridge(t *testing.T) {
	const bridge = `{"rows":[{"datapath_type":"netdev","ports":["set",[["uuid","p"],["uuid","q"]]]}]}`
	const list = `{"rows":[{"_uuid":["uuid","p"],"interfaces":["uuid","i"]},{"_uuid":["uuid","other"],"interfaces":["uuid","k"]},{"_uuid":["uuid","q"],"interfaces":["set",[["uuid","l"],["uuid","m"]]]}]}`
	vxlan := func(id string) string {
		return `{"_uuid":["uuid","` + id + `"],"type":"vxlan","options":["map",[["key","` + id + `"]]]}`
	}
	find := func(result string) (*Bridge, error) {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		return FindBridge(ctx, script(t, result), "br0")
	}
	got, err := find("[" + bridge + "," + list + `,{"rows":[` + vxlan("i") + "," + vxlan("k") + "," + vxlan("m") + "]}]")
	want := &Bridge{UserSpace: true, Tunnels: []Tunnel{{"vxlan", map[string]string{"key": "i"}}, {"vxlan", map[string]string{"key": "m"}}}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v:\n%s", err, diff)
	}
	for result, word := range map[string]string{
		`[{"rows":[]},{"rows":[]},{"rows":[]}]`:                                                     "ovs-vsctl add-br br0",
		`[{"rows":[{"datapath_type":7,"ports":["set",[]]}]},{"rows":[]},{"rows":[]}]`:               "datapath_type",
		`[{"rows":[{"datapath_type":"","ports":["map",[]]}]},{"rows":[]},{"rows":[]}]`:              "column ports",
		"[" + bridge + `,{"rows":[{"_uuid":["uuid","p"]}]},{"rows":[]}]`:                            "interfaces",
		"[" + bridge + "," + list + `,{"rows":[{"_uuid":["uuid","i"],"type":"gre","options":{}}]}]`: "options",
		"[" + bridge + "]": "fewer results",
	} {
		if got, err := find(result); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, %v, want %q", result, got, err, word)
		}
	}
}

// FuzzBridge has a server say anything.
func FuzzBridge(f *testing.F) {
	f.Add(monitors, noRows, plugs, done, `[{"rows":[{"error":["set",[]]}]}]`)
	f.Add(onePort, `[{"rows":[{"name":"br0"}]}]`, onePort, `[{},{}]`, "7")
	f.Fuzz(func(t *testing.T, a, b, c, d, e string) {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		_, _ = FindBridge(ctx, script(t, a), "br0")
		_ = Unplug(ctx, script(t, a, b), "ts1")
		_, _ = BridgeOf(ctx, script(t, a, b), "ts1")
		if ctx.Err() != nil {
			t.Error("it hangs")
		}
		short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond) // nobody may carry out the change
		defer stop()
		_ = Plug(short, script(t, a, b, c, d, e), "br0", "ts1", forward.Owner{})
	})
}
