package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Rules that change while a program runs.

// ruledBy returns the client for a container.
func (o *obedient) ruledBy() *api.ContainerClient {
	o.t.Helper()
	c, err := api.Connect(api.Where{RunDir: o.runDir}, o.name)
	if err != nil {
		o.t.Fatal(err)
	}
	return c
}

func (o *obedient) setRules(want api.RulesChanged, r api.Rules) {
	o.t.Helper()
	changed, err := o.ruledBy().SetRules(r)
	if err != nil {
		o.t.Fatal(err)
	}
	if !reflect.DeepEqual(changed, want) {
		o.t.Errorf("changed: %+v, want %+v", changed, want)
	}
}

// TestRulesOfRunning gives a program that runs new rules, of servers and of clients, moves the endpoint of
// a server that listens, and takes all away; with an agent, which is killed after each change, and
// without one.
func TestRulesOfRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	for _, v := range []variant{{name: "new"}, {name: "bridge", bridge: true}} {
		for _, agent := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s agent %v", v.name, agent), func(t *testing.T) { testRulesOfRunning(t, w, v, agent) })
		}
	}
}

func testRulesOfRunning(t *testing.T, w *world, v variant, agent bool) {
	runDir, again := t.TempDir(), func() {}
	if agent {
		d := startDaemon(t, w.h)
		runDir, again = d.run, func() {
			d.kill()
			d.start()
		}
	}
	own := map[bool]string{false: "ENETUNREACH", true: hostAddr4}[v.bridge]
	in, moved := "in type ipv4 addr "+hostAddr4+" port 80", "in type ipv4 addr "+sourceAddr4+" port 81"
	more, out := "more type ipv4 addr "+hostAddr4+" port 82", "out type ipv4 addr "+sourceAddr4+" port dynamic"
	first, second := "http://"+hostAddr4+":80/", "http://"+sourceAddr4+":81/"
	served := func(url string) {
		t.Helper()
		reached(t, w.srv, []string{url}, remoteAddr4)
	}
	netns := "new"
	if v.bridge {
		netns = w.c1.Path()
	}
	o := w.obey(t, runDir, "--netns", netns, "--endpoint", in, "-i", "0.0.0.0:8080=in")
	o.want("listens", "listen one 0.0.0.0:8080")
	served(first)
	o.want(own, "dial before tcp %s", remoteObserver())

	egress := "198.51.100.0/24/tcp=out"
	all := api.Rules{Endpoints: []string{in, more, out}, Ingress: []string{"0.0.0.0:8080=in", "0.0.0.0:8082=more"}, Egress: []string{egress}}
	o.setRules(api.RulesChanged{Added: []string{"-e " + egress, "-i 0.0.0.0:8082=more"}}, all)
	again()
	o.want(sourceAddr4, "dial client tcp %s", remoteObserver())
	o.want("listens", "listen two 0.0.0.0:8082")
	served("http://" + hostAddr4 + ":82/")
	served(first)

	// What the filter or the gate cannot do is refused as a whole.
	for _, r := range []api.Rules{
		{Endpoints: []string{in}, Ingress: []string{"0.0.0.0:8080=in"}, Egress: []string{"198.51.100.0/24=/run/nobody"}},
		{Endpoints: []string{in}, Ingress: []string{"0.0.0.0:8080=in"}, Egress: []string{"::/0=in"}},
		{Mode: "preload"},
	} {
		if _, err := o.ruledBy().SetRules(r); err == nil {
			t.Errorf("%+v is not refused", r)
		}
	}
	served(first)

	// The endpoint of a server that listens moves. Whoever comes to the former address waits.
	all.Endpoints[0] = moved
	o.setRules(api.RulesChanged{Moved: []string{"-i 0.0.0.0:8080=in"}}, all)
	for range 2 {
		b := beginFrom(t, w.srv, remoteAddr4, netip.MustParseAddrPort(hostAddr4+":80"))
		served("http://" + hostAddr4 + ":82/") // and so the SYN before has been judged
		b.waits(t)
		again()
	}
	o.want("closed", "close one")
	o.want("listens", "listen one 0.0.0.0:8080")
	served(second)

	// It moves back while it listens, and another time there: it is heard again where it was.
	all.Endpoints[0] = in
	o.setRules(api.RulesChanged{Moved: []string{"-i 0.0.0.0:8080=in"}}, all)
	again()
	b := beginFrom(t, w.srv, remoteAddr4, netip.MustParseAddrPort(sourceAddr4+":81"))
	served("http://" + hostAddr4 + ":82/")
	b.waits(t)
	all.Endpoints[0] = moved
	o.setRules(api.RulesChanged{Moved: []string{"-i 0.0.0.0:8080=in"}}, all)
	served(second)

	// All is taken away but one rule, and connections go on.
	o.setRules(api.RulesChanged{Withdrawn: []string{"-e " + egress, "-i 0.0.0.0:8080=in"}},
		api.Rules{Endpoints: []string{more}, Ingress: []string{"0.0.0.0:8082=more"}})
	again()
	o.want(own, "dial after tcp %s", remoteObserver())
	b = beginFrom(t, w.srv, remoteAddr4, netip.MustParseAddrPort(sourceAddr4+":81"))
	served("http://" + hostAddr4 + ":82/")
	b.waits(t)
	o.want(sourceAddr4, "ask client")

	if out, want := o.graft("set -e 198.51.100.0/24/tcp="+sourceAddr4), "withdrawn -i 0.0.0.0:8082=more\nadded -e 198.51.100.0/24/tcp=e-1\n"; out != want {
		t.Errorf("tsugiki graft set prints %q, want %q", out, want)
	}
	o.want(sourceAddr4, "dial last tcp %s", remoteObserver())
	o.release()
}

// TestRulesKilled kills the agent while rules change, again and again. The next agent has the rules before
// or after, and the kernel enforces those and no others.
func TestRulesKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	observe(t, w.h)
	d := startDaemon(t, w.h)
	out, else4 := "out type ipv4 addr "+sourceAddr4+" port dynamic", "else type ipv4 addr "+sourceAddr4+" port dynamic"
	prefix := map[bool]string{false: remoteAddr4 + "/32", true: hostAddr4 + "/32"}
	rules := func(other bool) api.Rules {
		if other {
			return api.Rules{Endpoints: []string{else4}, Egress: []string{prefix[true] + "=else"}}
		}
		return api.Rules{Endpoints: []string{out}, Egress: []string{prefix[false] + "=out"}}
	}
	o := w.obey(t, d.run, "--netns", "new", "--endpoint", out, "-e", prefix[false]+"=out")
	for i := range testkit.Times(6, 60) {
		done, ended := make(chan struct{}), make(chan struct{})
		c := o.ruledBy()
		go func() {
			defer close(ended)
			for n := i; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				if _, err := c.SetRules(rules(n%2 == 0)); err != nil {
					return // the agent has gone
				}
			}
		}()
		time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
		d.kill()
		close(done)
		<-ended
		d.start()
		has, err := o.ruledBy().Rules()
		if err != nil {
			t.Fatal(err)
		}
		other := strings.HasPrefix(strings.Join(has.Egress, " "), prefix[true])
		if want := rules(other); !reflect.DeepEqual(has.Egress, want.Egress) || !reflect.DeepEqual(has.Endpoints, want.Endpoints) {
			t.Errorf("round %d: the rules are %+v, want those before or after", i, has)
		}
		reach := map[bool]string{true: sourceAddr4, false: "ENETUNREACH"}
		o.want(reach[!other], "dial a tcp %s:%d", remoteAddr4, observerPort)
		o.want(reach[other], "dial b tcp %s:%d", hostAddr4, observerPort)
	}
	o.release()
}
