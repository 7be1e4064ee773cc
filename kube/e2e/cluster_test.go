package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
	"github.com/tsugiki/tsugiki/kube/node"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

type subtest struct {
	name string
	run  func(*cluster)
}

// TestCluster is one test, because a cluster takes a while to start. Each subtest leaves the shop as
// it has found it.
func TestCluster(t *testing.T) {
	c := newCluster(t, "")
	c.openShop()
	tests := []subtest{
		{"a Service reaches grafted pods", (*cluster).testService},
		{"probes", (*cluster).testProbes},
		{"a policy lets one client reach a server, and not its neighbour", (*cluster).testNeighbour},
		{"a pod that runs is granted more", (*cluster).testLater},
		{"a pod of several containers", (*cluster).testContainers},
		{"pods are refused with events", (*cluster).testRefused},
		{"a pod that logs much is charged", (*cluster).testCharged},
		{"pods whose IPv4 is translated", (*cluster).testTranslated},
		{"the API server is down", (*cluster).testServerDown},
		{"the node is cut off", (*cluster).testCutOff},
		{"resources are deleted while pods run", (*cluster).testDeleted},
		{"tsugiki-kube is replaced", (*cluster).testReplaced},
		{"the agent is restarted", (*cluster).testAgentRestarted},
		{"the node is drained", (*cluster).testDrained},
	}
	if testkit.Soaking() {
		tests = append(tests, subtest{"what containers of a pod pay", (*cluster).testCost})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.run(c.with(t)) })
	}
}

// get asks a server from a namespace of the topology.
func get(ns *testkit.Namespace, url string) (string, error) {
	c := http.Client{Timeout: testkit.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			return conn, errors.Join(ns.Do(func() error {
				conn, err = new(net.Dialer).DialContext(ctx, network, addr)
				return err
			}))
		},
	}}
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(r.Status)
	}
	return string(body), err
}

// served waits until a server that the remote asks says hello.
func (c *cluster) served(address string) {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		body, err := get(c.Remote, "http://"+address+"/")
		if err == nil && body != "hello\n" {
			err = fmt.Errorf("%s answers %q", address, body)
		}
		return err
	})
}

// service returns the address of a Service.
func (c *cluster) service(name string) string {
	c.t.Helper()
	var s corev1.Service
	if err := c.Admin.Get(context.Background(), types.NamespacedName{Namespace: "shop", Name: name}, &s); err != nil {
		c.t.Fatal(err)
	}
	return s.Spec.ClusterIP
}

// testService asks both web servers by their Service, and redis by its Service from a grafted pod.
// The servers log the client's own address.
func (c *cluster) testService() {
	pods, web := c.pods("web"), c.service("web")
	c.served(web)
	for _, p := range pods {
		c.grafted(&p)
		testkit.Eventually(c.t, func() error {
			if _, err := get(c.Remote, "http://"+web+"/"); err != nil {
				return err
			}
			log, err := c.Kubectl("logs", "-n", "shop", p.Name)
			if want := testkit.RemoteAddr4.String() + " 200 /\n"; err == nil && !strings.Contains(log, want) {
				err = fmt.Errorf("the log of pod %s has no %q:\n%s", p.Name, want, log)
			}
			return err
		})
	}
	c.says("PONG\n", pods[0].Name, "redis-cli", "-h", c.service("redis"), "ping")
	list, err := c.exec(pods[0].Name, "redis-cli", "-h", c.service("redis"), "client", "list")
	if want := " addr=" + testkit.HostAddr4.String() + ":"; err != nil || !strings.Contains(list, want) {
		c.t.Errorf("clients of redis, want one%s…: %v\n%s", want, err, list)
	}
}

// grafted checks that a pod says what it has been given.
func (c *cluster) grafted(p *corev1.Pod) {
	c.t.Helper()
	c.hostPort(p)
	if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == node.ConditionGrafted && c.Status == corev1.ConditionTrue
	}) {
		c.t.Errorf("pod %s has no condition that it is grafted: %+v", p.Name, p.Status.Conditions)
	}
}

const probed = `
apiVersion: v1
kind: Service
metadata: {name: probed, namespace: shop}
spec: {ports: [{name: http, port: 80}, {name: redis, port: 6379}]}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftEndpoint
metadata: {name: probed}
spec: {type: IPv4, ports: 32000-32767, allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}}]}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: probed, namespace: shop}
spec:
  podSelector: {matchLabels: {app: probed}}
  ingress:
  - {endpoint: probed, port: 80, container: http, service: {name: probed, port: http}}
  - {endpoint: probed, port: 6379, container: tcp, service: {name: probed, port: redis}}
---
apiVersion: v1
kind: Pod
metadata: {name: probed, namespace: shop, labels: {app: probed}}
spec: {%s containers: [%s, %s, %s]}
`

// testProbes has a pod with a probe of each kind, whose Service has endpoints while all succeed.
func (c *cluster) testProbes() {
	const often = `, readinessProbe: {%s, periodSeconds: 1}`
	c.lend(fmt.Sprintf(probed, podSpec,
		container("http", engines.Nginx, fmt.Sprintf(often, "httpGet: {port: 80, path: /}")),
		container("tcp", engines.Redis, fmt.Sprintf(often, "tcpSocket: {port: 6379}")),
		container("exec", nil, fmt.Sprintf(often, "exec: {command: [test, -e, /tmp/ready]}"))))
	ready := func(what string, want map[string]bool, all bool) {
		c.t.Helper()
		c.awaitReady(what, want, all)
	}
	ready("nobody has made the file", map[string]bool{"http": true, "tcp": true, "exec": false}, false)
	c.in("probed", "exec", "touch", "/tmp/ready")
	ready("all succeed", map[string]bool{"http": true, "tcp": true, "exec": true}, true)
	c.served(c.service("probed"))
	c.in("probed", "http", "mv", "/srv/index.html", "/srv/away")
	ready("the server answers 403", map[string]bool{"http": false, "tcp": true, "exec": true}, false)
	c.in("probed", "http", "mv", "/srv/away", "/srv/index.html")
	c.in("probed", "exec", "rm", "/tmp/ready")
	ready("the file is gone", map[string]bool{"http": true, "tcp": true, "exec": false}, false)
}

// awaitReady waits until containers of the pod are ready or not, and the endpoint of its Service.
func (c *cluster) awaitReady(what string, want map[string]bool, all bool) {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		for _, s := range c.pods("probed")[0].Status.ContainerStatuses {
			if s.Ready != want[s.Name] {
				return fmt.Errorf("%s: container %s is ready: %v\n%s", what, s.Name, s.Ready, c.describe("shop"))
			}
		}
		var list discoveryv1.EndpointSliceList
		of := client.MatchingLabels{discoveryv1.LabelServiceName: "probed"}
		if err := c.Admin.List(context.Background(), &list, client.InNamespace("shop"), of); err != nil {
			return err
		}
		if len(list.Items) != 1 || len(list.Items[0].Ports) != 2 || *list.Items[0].Endpoints[0].Conditions.Ready != all {
			return fmt.Errorf("%s: the Service has slices %+v", what, list.Items)
		}
		return nil
	})
}

// in runs a program in a container of a pod, and returns what it prints.
func (c *cluster) in(pod, container string, args ...string) string {
	c.t.Helper()
	out, err := c.Kubectl(append([]string{"exec", "-n", "shop", pod, "-c", container, "--"}, args...)...)
	if err != nil {
		c.t.Fatalf("%s in container %s of %s: %v\n%s", strings.Join(args, " "), container, pod, err, out)
	}
	return out
}

// testNeighbour has a pod that reaches the server's address by the same endpoint as others. The policy
// of the server tells them apart, by labels, also while all of them run.
func (c *cluster) testNeighbour() {
	c.lend(`{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: neighbour, namespace: shop},
		spec: {podSelector: {matchLabels: {app: neighbour}}, egress: [{endpoint: node, to: [198.51.100.1/32], ports: "6379", protocol: TCP}]}}` +
		"\n---\n" + deployment("neighbour", 1, nil, ""))
	c.rolledOut("shop", "neighbour")
	// Packets that a server may not hear are dropped.
	ping := []string{"timeout", "3", "redis-cli", "-h", testkit.HostAddr4.String(), "ping"}
	web, neighbour := c.pods("web")[0].Name, c.pods("neighbour")[0].Name
	c.says("PONG\n", neighbour, ping...)

	c.change("add", fmt.Sprintf(sources, `"web", "steady"`))
	defer c.change("remove", "")
	testkit.Eventually(c.t, func() error {
		if out, err := c.exec(neighbour, ping...); err == nil {
			return fmt.Errorf("the neighbour reaches redis: %q", out)
		}
		return nil
	})
	c.says("PONG\n", web, ping...)
	c.change("replace", fmt.Sprintf(sources, `"web", "steady", "neighbour"`))
	c.says("PONG\n", neighbour, ping...)
}

// sources are who reaches redis.
const sources = `[{"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": [%s]}]}}]`

// change changes who reaches redis, by its policy.
func (c *cluster) change(op, value string) {
	c.t.Helper()
	patch := map[string]any{"op": op, "path": "/spec/ingress/0/from"}
	if value != "" {
		patch["value"] = json.RawMessage(value)
	}
	text, err := json.Marshal([]any{patch})
	if err == nil {
		err = c.Admin.Patch(context.Background(), &v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Name: "redis", Namespace: "shop"}},
			client.RawPatch(types.JSONPatchType, text))
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// testRefused has pods that are not for what they ask for. The events say what to do.
func (c *cluster) testRefused() {
	c.lend(`{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: thief, namespace: shop},
		spec: {podSelector: {matchLabels: {app: thief}}, ingress: [{endpoint: redis, port: 6379}]}}`)
	for app, tt := range map[string]struct {
		pod, main string
		why       []string
	}{
		"thief":  {"", "", []string{"GraftEndpoint redis is not for this pod", "allowedPods"}},
		"nobody": {"", "", []string{"no GraftPolicy of namespace shop selects the pod", "make one, or leave the RuntimeClass out"}},
		"admin": {
			"", ", securityContext: {capabilities: {add: [NET_ADMIN]}}",
			[]string{"container main has CAP_NET_ADMIN", "take the capability (or privileged) away, or set hostUsers: false"},
		},
		"privileged": {
			"", ", securityContext: {privileged: true}",
			[]string{"container main has CAP_NET_ADMIN", "take the capability (or privileged) away"},
		},
		"host": {"hostNetwork: true,", "", []string{"the pod uses the host's network", "leave hostNetwork or the RuntimeClass out"}},
	} {
		c.lend(fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, namespace: shop, labels: {app: %[1]s}}, spec: {%[2]s %[3]s containers: [%[4]s]}}",
			app, podSpec, tt.pod, container("main", nil, tt.main)))
		note := c.event(app, node.ReasonRefused, tt.why[0])
		for _, why := range tt.why {
			if !strings.Contains(note, why) {
				c.t.Errorf("the event of pod %s does not say %q: %s", app, why, note)
			}
		}
		p := c.pods(app)[0]
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Running != nil {
				c.t.Errorf("pod %s runs: %+v", app, s)
			}
		}
		if m, err := c.container(p.UID, "main"); err == nil {
			c.t.Errorf("the agent has taken the container of pod %s: %+v", app, m)
		}
	}
}
