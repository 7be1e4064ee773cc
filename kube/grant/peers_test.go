package grant

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// wide is a policy of many rules whose lists have many large selectors: peers match all requirements but the last.
func wide(rules, peers, requirements int) string {
	expressions := strings.Repeat(`{key: team, operator: NotIn, values: [other]}, `, requirements-1) + `{key: team, operator: In, values: [bank]}`
	from := strings.TrimSuffix(strings.Repeat(`{namespaceSelector: {matchExpressions: [`+expressions+`]}}, `, peers), ", ")
	var list []string
	for i := range rules {
		list = append(list, fmt.Sprintf(`{endpoint: web, port: %d, from: [%s, {ipBlock: {cidr: 10.0.0.0/8}}]}`, 80+i, from))
	}
	return `{podSelector: {}, ingress: [` + strings.Join(list, ", ") + `]}`
}

// manyPeers are as many pods as a node has.
func manyPeers() *Peers {
	var list []Peer
	for i := range 110 {
		list = append(list, Peer{
			UID: fmt.Sprint("u", i), Namespace: "shop", NamespaceLabels: map[string]string{"team": "shop"}, Labels: map[string]string{"app": "web"},
			Grafted: true, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 0, byte(i)})},
		})
	}
	return NewPeers(list)
}

// The pods of a node are asked for once for a decision, and a list is read once for all pods, until its policy changes.
func TestPeersOnce(t *testing.T) {
	q := question(t, web, wide(3, 2, 2), `{podSelector: {}, ingress: [{endpoint: web, port: 90, from: [{ipBlock: {cidr: 10.0.0.0/8}}]}]}`)
	q.Policies[0].UID, q.Policies[1].UID = "p", "q"
	peers, asked := peersOf(), 0
	q.Peers = func() *Peers {
		asked++
		return peers
	}
	first := Decide(q)
	if asked != 1 || len(peers.lists) != 3 || first.Grant.Refused != "" {
		t.Errorf("asked %d times, %d lists, refused: %q", asked, len(peers.lists), first.Grant.Refused)
	}
	for pod, want := range map[types.UID]string{"u1": "+from:pod:u1+from:10.0.0.0/8+from:10.244.0.4/32=", "u4": "+from:pod:u4+from:10.0.0.0/8+from:10.244.0.4/32="} {
		q.Pod.UID = pod
		if got := Decide(q).Grant.Containers["nginx"].Ingress[0]; !strings.Contains(got, want) {
			t.Errorf("pod %s: %s, want %s", pod, got, want)
		}
	}
	if len(peers.lists) != 3 {
		t.Errorf("%d lists after another pod", len(peers.lists))
	}
	for range 10 {
		q.Policies[0].Generation++
		if d := Decide(q); d.Grant.Refused != "" {
			t.Error(d.Grant.Refused)
		}
	}
	if len(peers.lists) != 3 {
		t.Errorf("%d lists after ten generations", len(peers.lists))
	}
	s := peers.of(q.Policies[0], "shop", 0)
	q.Policies[0].Generation += 10
	q.Policies[0].Spec.Ingress[0].From = append(q.Policies[0].Spec.Ingress[0].From, q.Policies[0].Spec.Ingress[0].From...)
	if more := peers.of(q.Policies[0], "shop", 0); len(more.text) > 64 || more.text != s.text || more == s {
		t.Errorf("a list that is written twice: %q and %q", s.text, more.text)
	}
	q.Policies[0].Generation++
	q.Policies[0].Spec.Ingress[0].From = q.Policies[1].Spec.Ingress[0].From
	q.Policies[0].Spec.Ingress[1].From[0].NamespaceSelector = nil
	if d := Decide(q); !strings.Contains(d.Grant.Refused, "from 0: it has neither") {
		t.Errorf("a policy that has changed: %+v", d.Grant)
	}
	q.Policies = q.Policies[1:]
	if asked = 0; Decide(q).Grant.Refused != "" || asked != 0 {
		t.Errorf("asked %d times for a list without a selector", asked)
	}
}

// More lists than are kept are read all the same. Those of policies that are gone are dropped then.
func TestPeersAreBounded(t *testing.T) {
	peers, gone := peersOf(), 0
	for peers.size <= listsMax {
		peers.kept(listKey{policy: "gone", rule: gone}, 1, func() *sources { return &sources{words: []string{strings.Repeat("x", 1<<16)}} })()
		gone++
	}
	if len(peers.lists) != gone || gone<<16 > listsMax {
		t.Errorf("%d lists after %d", len(peers.lists), gone)
	}
	q := question(t, web, wide(2, 1, 1))
	q.Policies[0].UID, q.Peers = "p", func() *Peers { return peers }
	if d := Decide(q); d.Grant.Refused != "" || len(peers.lists) != 2 || peers.size > 2048 {
		t.Errorf("%d lists of %d bytes, refused: %q", len(peers.lists), peers.size, d.Grant.Refused)
	}
}

// BenchmarkWide decides about all pods of a node after one of them has changed, with one policy of the largest selectors
// that the API server takes.
func BenchmarkWide(b *testing.B) {
	t := &testing.T{}
	q := question(t, web, wide(32, 31, 16))
	q.Policies[0].UID = "p"
	for b.Loop() {
		peers := manyPeers()
		q.Peers = func() *Peers { return peers }
		for i := range 110 {
			q.Pod.UID = types.UID(fmt.Sprint("u", i))
			if d := Decide(q); d.Grant.Refused != "" {
				b.Fatal(d.Grant.Refused)
			}
		}
	}
}
