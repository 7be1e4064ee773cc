package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// TestGrantsOfPods has containerd's CRI start pods, as a kubelet does, of which the agent follows
// grants alone. The pods have annotations that an [[allow]] would allow.
func TestGrantsOfPods(t *testing.T) {
	t.Parallel()
	n := newNode(t, engineCase{engine: "cri"}, append([]string{"[kubernetes]", "grants = true"}, allowed...)...)
	observe(t, n.srv)
	client := api.Dial(n.socket())
	events := followPods(t, client)
	t.Run("a pod waits for its grant", func(t *testing.T) { testGrantComes(t, n, client, events) })
	t.Run("refused", func(t *testing.T) { testGrantRefuses(t, n, client, events) })
	t.Run("withdrawn and given back", func(t *testing.T) { testGrantChanges(t, n, client) })
	t.Run("a server's rule withdrawn", func(t *testing.T) { testGrantServers(t, n, client) })
	t.Run("a new agent", func(t *testing.T) { testGrantsAreGone(t, n, client) })
	t.Run("a neighbour of the node", func(t *testing.T) { testGrantSources(t, n, client) })
	n.remove(t, "web")
}

// followPods returns the events of pods from now on.
func followPods(t *testing.T, client *api.Client) <-chan api.PodEvent {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events, ended := make(chan api.PodEvent, 100), make(chan struct{})
	go func() {
		defer close(ended)
		_ = client.PodEvents(ctx, func(e api.PodEvent) { events <- e }) // it ends with ctx, or with the agent
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	if e := <-events; e.Type != api.PodReady {
		t.Fatalf("the first event is %+v", e)
	}
	return events
}

// grantOf is for a pod of the rig, whose UID is its name.
func grantOf(name string) api.Grant {
	return api.Grant{Namespace: "default", Name: name, Containers: map[string]api.Rules{"main": {
		Endpoints: []string{fmt.Sprintf("in type ipv4 addr %s port %d", hostAddr4, servedPort), fmt.Sprintf("out type ipv4 addr %s port dynamic", sourceAddr4)},
		Ingress:   []string{"0.0.0.0:80/tcp=in"}, Egress: []string{"198.51.100.0/24=out"},
	}}}
}

func putGrant(t *testing.T, client *api.Client, uid string, g api.Grant) api.Granted {
	t.Helper()
	answer, err := client.PutGrant(uid, g)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// pod is a container that asks by annotations for a port that no grant gives.
func (n *node) pod(name string) engines.Container {
	return n.container(name, "0.0.0.0/0", servedPort+1)
}

func testGrantComes(t *testing.T, n *node, client *api.Client, events <-chan api.PodEvent) {
	started := make(chan error, 1)
	go func() { started <- n.Run(n.pod("web")) }()
	web := api.Pod{Namespace: "default", Name: "web", UID: "web", Container: "main"}
	e := <-events
	web.Sandbox = e.Pod.Sandbox // the engine chooses it
	if e.Type != api.PodWaiting || e.Pod != web || web.Sandbox == "" {
		t.Fatalf("event %+v, want that %+v waits", e, web)
	}
	putGrant(t, client, "web", grantOf("web"))
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Type != api.PodRegistered || e.Pod != web {
		t.Errorf("event %+v, want that %+v is registered", e, web)
	}
	n.checkServed(t, "web", servedPort)
	seenFrom(t, n, sourceAddr4)
}

// seenFrom checks from where the remote sees a connection of the container.
func seenFrom(t *testing.T, n *node, want string) {
	t.Helper()
	if body := n.exec(t, "web", "wget", "-q", "-O", "-", fmt.Sprintf("http://%s:%d/", remoteAddr4, observerPort)); body != want+"\n" {
		t.Errorf("the remote sees %q, want %s", body, want)
	}
}

func testGrantRefuses(t *testing.T, n *node, client *api.Client, events <-chan api.PodEvent) {
	g := grantOf("bad")
	g.Containers, g.Refused = nil, "GraftEndpoint web is not for this pod"
	putGrant(t, client, "bad", g)
	if why := n.refused(t, n.pod("bad")); !strings.Contains(why, g.Refused) {
		t.Errorf("refused, but not for its grant: %s", why)
	}
	if e := <-events; e.Type != api.PodRefused || e.Pod.Name != "bad" || e.Reason != "not allowed: "+g.Refused {
		t.Errorf("event %+v", e)
	}
	if why := n.refused(t, n.pod("late")); !strings.Contains(why, "no grant for pod default/late has come within 8s") {
		t.Errorf("refused, but not for want of a grant: %s", why)
	}
	g = grantOf("web") // of another pod
	putGrant(t, client, "thief", g)
	if why := n.refused(t, n.pod("thief")); !strings.Contains(why, "is that of pod default/web") {
		t.Errorf("refused, but not because the grant is another's: %s", why)
	}
}

func testGrantChanges(t *testing.T, n *node, client *api.Client) {
	g, none := grantOf("web"), grantOf("web")
	none.Containers["main"] = api.Rules{Endpoints: g.Containers["main"].Endpoints[:1], Ingress: g.Containers["main"].Ingress}
	const rule = "-e 198.51.100.0/24=out"
	if a := putGrant(t, client, "web", none); len(a.Withdrawn["main"]) != 1 || a.Withdrawn["main"][0] != rule {
		t.Errorf("changed: %+v, want that %s is withdrawn", a, rule)
	}
	seenFrom(t, n, hostAddr4) // by the network of pods, which the host translates
	n.checkServed(t, "web", servedPort)
	if a := putGrant(t, client, "web", g); len(a.Restored["main"]) != 1 || a.Restored["main"][0] != rule {
		t.Errorf("changed: %+v, want that %s is restored", a, rule)
	}
	seenFrom(t, n, sourceAddr4)
	testGrantAdds(t, n, client)
}

// testGrantAdds adds rules to the grant of a pod that runs. One of them needs a new container.
func testGrantAdds(t *testing.T, n *node, client *api.Client) {
	more := grantOf("web")
	r := more.Containers["main"]
	rule := remoteAddr4 + "/32=new"
	r.Endpoints, r.Egress = append(r.Endpoints, "new type ipv4 addr "+hostAddr4+" port dynamic"), append(r.Egress, rule)
	more.Containers["main"] = r
	if a := putGrant(t, client, "web", more); len(a.Added["main"]) != 1 || a.Added["main"][0] != "-e "+rule || len(a.Restart) > 0 {
		t.Errorf("changed: %+v, want that a rule is added", a)
	}
	seenFrom(t, n, hostAddr4)
	n.checkServed(t, "web", servedPort)
	r.Ingress = []string{"0.0.0.0:80/tcp+own=in"}
	more.Containers["main"] = r
	if a := putGrant(t, client, "web", more); len(a.Restart["main"]) != 1 || a.Restart["main"][0] != "-i 0.0.0.0:80/tcp+own=in" ||
		!strings.Contains(a.Because["main"], "needs accept(2) to be trapped") {
		t.Errorf("changed: %+v, want that a rule needs a new container", a)
	}
	seenFrom(t, n, hostAddr4)
	if a := putGrant(t, client, "web", grantOf("web")); len(a.Withdrawn["main"]) != 1 || len(a.Restored["main"]) != 1 {
		t.Errorf("changed: %+v, want that one rule goes, and one comes back", a)
	}
	seenFrom(t, n, sourceAddr4)
	n.checkServed(t, "web", servedPort)
}

// testGrantServers withdraws the rule of a server that listens. The server takes nobody until the rule
// is back, also when the agent is another one by then.
func testGrantServers(t *testing.T, n *node, client *api.Client) {
	g, none := grantOf("web"), grantOf("web")
	r := none.Containers["main"]
	none.Containers["main"] = api.Rules{Endpoints: r.Endpoints[1:], Egress: r.Egress}
	unheard := func() {
		t.Helper()
		host := netip.MustParseAddr(hostAddr4)
		b := beginFrom(t, n.srv, remoteAddr4, netip.AddrPortFrom(host, servedPort))
		// What comes behind on the same link has been answered.
		if err := n.srv.Do(func() error {
			conn, err := net.Dial("tcp4", netip.AddrPortFrom(host, servedPort+1).String())
			if err == nil {
				conn.Close()
			}
			return err
		}); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a port of nobody: %v, want ECONNREFUSED", err)
		}
		b.waits(t)
	}
	const rule = "-i 0.0.0.0:80/tcp=in"
	for _, restarts := range []bool{false, true} {
		n.checkServed(t, "web", servedPort)
		if a := putGrant(t, client, "web", none); len(a.Withdrawn["main"]) != 1 || a.Withdrawn["main"][0] != rule {
			t.Errorf("changed: %+v, want that %s is withdrawn", a, rule)
		}
		unheard()
		if restarts {
			n.agent.kill()
			n.agent.start()
			unheard()
		}
		if a := putGrant(t, client, "web", g); len(a.Restored["main"]) != 1 || a.Restored["main"][0] != rule {
			t.Errorf("changed: %+v, want that %s is restored", a, rule)
		}
	}
	n.checkServed(t, "web", servedPort)
}

// testGrantsAreGone restarts the agent, which knows of its containers and of no grant then.
func testGrantsAreGone(t *testing.T, n *node, client *api.Client) {
	n.agent.kill()
	n.agent.start()
	pods, err := client.Pods()
	if err != nil || len(pods) != 1 || pods[0].UID != "web" || pods[0].Name != "web" || pods[0].Grant != nil || len(pods[0].Running["main"].Egress) != 1 {
		t.Fatalf("pods of the new agent: %+v, %v", pods, err)
	}
	seenFrom(t, n, sourceAddr4)
	if err := client.DeleteGrant("web"); err != nil {
		t.Fatal(err)
	}
	seenFrom(t, n, hostAddr4)
	putGrant(t, client, "web", grantOf("web"))
	seenFrom(t, n, sourceAddr4)
	testkit.Eventually(t, func() error { return n.Stop("web") })
	if err := n.Start("web"); err != nil {
		t.Fatal(err)
	}
	n.checkServed(t, "web", servedPort)
}

// testGrantSources has two neighbours connect to the server of a pod from the same address of the node, of
// which its rule names one; then the other one, and after a restart of the agent still that one.
func testGrantSources(t *testing.T, n *node, client *api.Client) {
	neighbours := []string{"friend", "stranger"}
	for _, name := range neighbours {
		g := grantOf(name)
		g.Containers["main"] = api.Rules{
			Endpoints: []string{fmt.Sprintf("out type ipv4 addr %s port dynamic", sourceAddr4)}, Egress: []string{hostAddr4 + "/32=out"},
		}
		putGrant(t, client, name, g)
		if err := n.Run(n.pod(name)); err != nil {
			t.Fatal(err)
		}
		defer n.remove(t, name)
	}
	reaches := func(name string) error {
		_, err := n.Exec(name, "timeout", "3", "wget", "-q", "-O", "-", fmt.Sprintf("http://%s:%d/", hostAddr4, servedPort))
		return err
	}
	only := func(when, name string) {
		t.Helper()
		// A pod is let in once the agent has heard that its programs have begun.
		testkit.Eventually(t, func() error { return reaches(name) })
		for _, other := range neighbours {
			if other != name && reaches(other) == nil {
				t.Errorf("%s, %s reaches the server, too", when, other)
			}
		}
		testkit.Eventually(t, func() error { return reaches(name) })
	}
	admit := func(name string) {
		t.Helper()
		g := grantOf("web")
		r := g.Containers["main"]
		r.Ingress = []string{"0.0.0.0:80/tcp+from:pod:" + name + "=in"}
		g.Containers["main"] = r
		if a := putGrant(t, client, "web", g); len(a.Changed["main"]) != 1 || len(a.Withdrawn)+len(a.Restart) > 0 {
			t.Errorf("changed: %+v, want that a rule has other sources", a)
		}
	}
	admit("friend")
	only("at first", "friend")
	admit("stranger")
	only("changed", "stranger")
	n.agent.kill()
	n.agent.start()
	only("after a restart", "stranger")
	putGrant(t, client, "web", grantOf("web"))
	n.checkServed(t, "web", servedPort)
}
