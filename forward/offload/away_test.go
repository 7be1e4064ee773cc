package offload

import (
	"bufio"
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/flows"
	"github.com/tsugiki/tsugiki/forward/offload/ports"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A policy that is read while nobody answers at the DPU's endpoint, or while the switch has a fault,
// holds for direct packets. What it allows waits for the switch. A table that fails is tried again.
func TestPolicyWhileAway(t *testing.T) {
	testkit.Program(t, "ovs-ofctl")
	for name, c := range map[string]struct{ faulty, broken bool }{
		"nobody": {}, "fault": {faulty: true}, "broken table": {broken: true},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.CheckLeaks(t)
			endpoint, err := dpu.ParseEndpoint("unix:" + t.TempDir() + "/dpu")
			if err != nil {
				t.Fatal(err)
			}
			reached := make(chan struct{})
			if c.faulty {
				faulty(t, endpoint, reached)
			} else {
				close(reached)
			}
			controller, tab, _, _ := rig(t, true)
			if controller.host, err = dpu.NewHost(endpoint.String(), ""); err != nil {
				t.Fatal(err)
			}
			controller.reloads = make(chan *Config, 1)
			steps(t, controller, &flows.Policy{Allow: true}, port(1), port(2))
			controller.config = &Config{policy: flows.Policy{Allow: true}}
			tab.wrote = make(chan pair, 1)
			if c.broken {
				tab.breaks = 3
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- controller.Run(ctx) }()
			wait(t, reached)
			controller.Reload(&Config{})
			wait(t, tab.wrote)
			controller.Reload(&Config{policy: flows.Policy{Allow: true}})
			controller.Reload(&Config{})
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(map[pair]forward.Verdict{{1, 2}: forward.Slow}, tab.pairs, cmp.AllowUnexported(pair{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func wait[T any](t *testing.T, c <-chan T) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(testkit.Patience):
		t.Fatal("nothing came")
	}
}

// faulty is a DPU that says that its switch does not work. reached is closed when it was asked.
func faulty(t *testing.T, e dpu.Endpoint, reached chan struct{}) {
	t.Helper()
	listeners, _, err := dpu.Listen(e, "", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range listeners {
		t.Cleanup(func() { l.Close() })
	}
	go func() {
		c, err := listeners[dpu.HealthOf].Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Write([]byte("{\"fault\":\"it is off\"}\n"))
		close(reached)
		_, _ = bufio.NewReader(c).ReadByte() // until the controller ends
	}()
}

// A policy holds for a pod whose packets go directly, also when its port is refused, has no number
// any more or is gone. It is not about another pod that has the link afterwards.
func TestPolicyWithoutFlows(t *testing.T) {
	tunnel := netip.MustParseAddr("192.0.2.1")
	health := &dpu.Health{Generation: "1", Tunnel: tunnel}
	node := flows.Node{Tunnel: tunnel, Subnets: []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}}
	slow := map[pair]forward.Verdict{{1, 2}: forward.Slow}
	for name, c := range map[string]struct {
		change func(*ports.Table, *table)
		want   map[pair]forward.Verdict
	}{
		"no number": {func(p *ports.Table, _ *table) { p.Ports[1].Number = 0 }, slow},
		"refused": {func(p *ports.Table, _ *table) {
			p.Ports[1].Addrs, p.Ports[1].Refused = []netip.Addr{netip.MustParseAddr("10.99.0.1")}, "told"
		}, slow},
		"gone": {func(p *ports.Table, _ *table) { p.Ports = p.Ports[:1] }, slow},
		"another pod": {func(p *ports.Table, tab *table) {
			p.Ports = p.Ports[:1]
			tab.pods[2] = forward.Pod{Device: 2, MAC: [6]byte{2, 9}, AllPairs: true}
		}, map[pair]forward.Verdict{}},
	} {
		t.Run(name, func(t *testing.T) {
			controller, tab, _, _ := rig(t, true)
			sync := func(allow bool, list *ports.Table) {
				t.Helper()
				controller.config = &Config{policy: flows.Policy{Allow: allow}, nodes: []flows.Node{node}}
				// Nothing is to be written into the database: there is none.
				if err := controller.sync(t.Context(), nil, list, health); err != nil {
					t.Fatal(err)
				}
			}
			list := &ports.Table{Ports: []*ports.Port{port(1), port(2)}}
			for _, p := range list.Ports {
				p.Installed = true
			}
			sync(true, list)
			c.change(list, tab)
			sync(false, list)
			if diff := cmp.Diff(c.want, tab.pairs, cmp.AllowUnexported(pair{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}
