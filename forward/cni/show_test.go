package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// shown is what the test reads of tsugiki forward show -j.
type shown struct {
	Pods []struct {
		Link, Container, Interface, Network, Fault string
		Addresses                                  []netip.Addr
		Direct                                     bool
		Packets                                    map[string]uint64
	}
	Pairs []struct {
		Links   [2]string
		Verdict string
	}
	Reasons []struct{ Name, Outcome string }
}

// The command shows what the plugin has attached, and switches pods and pairs.
func TestShow(t *testing.T) {
	r := newRig(t)
	tsugiki := func(status int, args ...string) string {
		t.Helper()
		cmd := r.command(context.Background(), filepath.Join(r.path[0], "tsugiki"), append([]string{"forward"}, args...)...)
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil && cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != status {
			t.Fatalf("%v: %v: %s%s", args, err, out, said.Bytes())
		}
		return string(out) + said.String()
	}
	show := func() (s shown) {
		t.Helper()
		must(t, json.Unmarshal([]byte(tsugiki(0, "show", "-j")), &s))
		return s
	}
	tsugiki(1, "show")
	n := r.network("shown", r.plugin(object{"pairs": "listed"}))
	pods := n.pods(2)
	a, b := pods[0].conf.ContainerID, pods[1].conf.ContainerID
	r.echo(pods[0], pods[1])
	s := show()
	if len(s.Pods) != 2 || s.Pods[0].Packets["pair"] == 0 || s.Pods[0].Packets["direct"] != 0 || len(s.Pairs) > 0 {
		t.Fatalf("%+v", s)
	}
	for i, p := range s.Pods {
		want := p
		want.Container, want.Network, want.Interface, want.Fault, want.Direct = pods[i].conf.ContainerID, "shown", "eth0", "", true
		want.Link, want.Addresses = namesOf("shown", pods[i].conf.ContainerID, "eth0").host, pods[i].addrs
		if diff := cmp.Diff(want, p, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("pod:\n%s", diff)
		}
	}
	tsugiki(0, "pair", a, s.Pods[1].Link, "direct")
	r.echo(pods[0], pods[1])
	if s = show(); s.Pods[0].Packets["direct"] == 0 || len(s.Pairs) != 1 || s.Pairs[0].Verdict != "direct" {
		t.Errorf("after pair: %+v", s)
	}
	tsugiki(0, "off", b)
	if s = show(); s.Pods[1].Direct || !s.Pods[0].Direct {
		t.Errorf("after off: %+v", s)
	}
	tsugiki(0, "on", b)
	if text := tsugiki(0, "show"); strings.Count(text, "\n") < 6 || !strings.Contains(text, "pair ") {
		t.Errorf("table:\n%s", text)
	}
	if text := tsugiki(1, "off", "pod-"); !strings.Contains(text, "2 containers") {
		t.Errorf("not the only one: %s", text)
	}
	if text := tsugiki(1, "off", "nobody"); !strings.Contains(text, "no such pod") {
		t.Errorf("nobody: %s", text)
	}
	if !slices.ContainsFunc(s.Reasons, func(r struct{ Name, Outcome string }) bool { return r.Name == "bad-mac" && r.Outcome == "dropped" }) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	for _, p := range pods {
		must(t, n.del(p))
	}
	r.nothing(n)
}
