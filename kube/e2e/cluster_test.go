package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
	"github.com/tsugiki/tsugiki/kube/node"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// shop are two web servers behind a Service, redis, and a neighbour that may use nothing of them.
const shop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: shop}}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftEndpoint
metadata: {name: web}
spec: {type: IPv4, ports: 31000-31999, allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}}]}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftEndpoint
metadata: {name: redis}
spec: {type: IPv4, ports: "6379", allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}, podSelector: {matchLabels: {app: redis}}}]}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftEndpoint
metadata: {name: node}
spec: {type: IPv4, destinations: [{cidr: 198.51.100.1/32}, {cidr: 10.96.0.0/16}], allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}}]}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{endpoint: web, port: 80, service: {name: web, port: http}}]
  egress: [{endpoint: node, to: [198.51.100.1/32], ports: "6379", protocol: TCP}]
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: redis, namespace: shop}
spec:
  podSelector: {matchLabels: {app: redis}}
  ingress: [{endpoint: redis, port: 6379, from: [{podSelector: {matchLabels: {app: web}}}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
`

// deployment is one of an app, with more of its container.
func deployment(app string, replicas int, args []string, more string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: shop}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      runtimeClassName: tsugiki
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: %[3]q, imagePullPolicy: Never, command: [%[4]s]%[5]s}
`, app, replicas, engines.ImageName, quoted(args), more)
}

func quoted(args []string) string {
	var list []string
	for _, a := range args {
		list = append(list, fmt.Sprintf("%q", a))
	}
	return strings.Join(list, ", ")
}

// get asks a server from a namespace of the topology.
func get(ns *testkit.Namespace, url string) (string, error) {
	c := http.Client{Timeout: testkit.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = ns.Do(func() (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}}
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return string(body), err
}

// TestCluster is one test, because a cluster takes a while to start.
func TestCluster(t *testing.T) {
	c := newCluster(t)
	c.apply(shop)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"a Service reaches grafted pods", testService},
		{"a policy lets one client reach a server, and not its neighbour", testNeighbour},
		{"pods are refused with events", testRefused},
		{"the API server is down", testServerDown},
		{"the agent is restarted", testAgentRestarted},
		{"resources are deleted while pods run", testDeleted},
	} {
		if !t.Run(test.name, func(t *testing.T) {
			outer := c.t
			c.t = t
			defer func() { c.t = outer }()
			test.run(t, c)
		}) {
			break // the others build on it
		}
	}
}

const readiness = `, ports: [{containerPort: 80, name: http}], readinessProbe: {httpGet: {port: http, path: /}, periodSeconds: 1}`

func testService(t *testing.T, c *cluster) {
	c.apply(deployment("web", 2, engines.Nginx, readiness))
	pods := c.rolledOut("web")
	var s corev1.Service
	if err := c.Admin.Get(t.Context(), types.NamespacedName{Namespace: "shop", Name: "web"}, &s); err != nil {
		t.Fatal(err)
	}
	url := "http://" + s.Spec.ClusterIP + "/?from-remote"
	c.routeServices()
	testkit.Eventually(t, func() error {
		body, err := get(c.Remote, url)
		if err == nil && body != "hello\n" {
			err = fmt.Errorf("the Service answers %q", body)
		}
		return err
	})
	for range 20 { // both pods are asked
		if _, err := get(c.Remote, url); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range pods {
		if p.Annotations[node.AnnotationPorts] == "" || !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == node.ConditionGrafted && c.Status == corev1.ConditionTrue
		}) {
			t.Errorf("pod %s: annotations %v, conditions %+v", p.Name, p.Annotations, p.Status.Conditions)
		}
		log, err := c.Kubectl("logs", "-n", "shop", p.Name)
		if want := testkit.RemoteAddr4.String() + " "; err != nil || !strings.Contains(log, want) {
			t.Errorf("the log of pod %s has no client %s: %v\n%s", p.Name, want, err, log)
		}
	}
}

// routeServices has the remote send packets for Services to the node, as a router would.
func (c *cluster) routeServices() {
	c.t.Helper()
	out, err := c.Remote.Command(c.t.Context(), "ip", "route", "replace", "10.96.0.0/16", "via", testkit.HostAddr4.String()).CombinedOutput()
	if err == nil {
		err = c.Host.SetSysctl("net.ipv4.ip_forward", "1")
	}
	if err != nil {
		c.t.Fatalf("route to the node: %v\n%s", err, out)
	}
}

// testNeighbour has a neighbour on the node that reaches the same address by the same endpoint. The
// policy of the server tells them apart, by labels.
func testNeighbour(t *testing.T, c *cluster) {
	c.apply(deployment("redis", 1, engines.Redis, ""))
	c.rolledOut("redis")
	web := c.pods("web")[0].Name
	c.pings(web)
	c.apply(`{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: neighbour, namespace: shop},
		spec: {podSelector: {matchLabels: {app: neighbour}}, egress: [{endpoint: node, to: [198.51.100.1/32], ports: "6379", protocol: TCP}]}}`)
	c.apply(deployment("neighbour", 1, nil, ""))
	neighbour := c.rolledOut("neighbour")[0].Name
	blocked := func(when string) {
		t.Helper()
		// Its packets are dropped, so it would wait for long.
		if out, err := c.exec(neighbour, append([]string{"timeout", "3"}, ping...)...); err == nil || strings.Contains(out, "PONG") {
			t.Errorf("%s, the neighbour reaches redis: %q, %v", when, out, err)
		}
		c.pings(web)
	}
	blocked("at first")
	const policy = `{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: redis, namespace: shop}, spec: {
		podSelector: {matchLabels: {app: redis}}, ingress: [{endpoint: redis, port: 6379, from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [%s]}]}}]}]}}`
	c.apply(fmt.Sprintf(policy, "web, neighbour"))
	c.pings(neighbour)
	c.apply(fmt.Sprintf(policy, "web"))
	testkit.Eventually(t, func() error {
		if out, err := c.exec(neighbour, append([]string{"timeout", "3"}, ping...)...); err == nil {
			return fmt.Errorf("the neighbour reaches redis: %q", out)
		}
		return nil
	})
	blocked("after a change")
}

var ping = []string{"redis-cli", "-h", testkit.HostAddr4.String(), "ping"}

// pings waits until redis answers a pod.
func (c *cluster) pings(pod string) {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		out, err := c.exec(pod, append([]string{"timeout", "3"}, ping...)...)
		if err == nil && out != "PONG\n" {
			err = fmt.Errorf("redis answers %q", out)
		}
		return err
	})
}

func testRefused(t *testing.T, c *cluster) {
	c.apply(`{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: thief, namespace: shop},
		spec: {podSelector: {matchLabels: {app: thief}}, ingress: [{endpoint: redis, port: 6379}]}}`)
	for app, tt := range map[string]struct{ more, why string }{
		"thief":  {"", "GraftEndpoint redis is not for this pod"},
		"nobody": {"", "no GraftPolicy of namespace shop selects the pod"},
		"admin":  {", securityContext: {capabilities: {add: [NET_ADMIN]}}", "container main has CAP_NET_ADMIN"},
	} {
		c.apply(deployment(app, 1, nil, tt.more))
		c.event(app, node.ReasonRefused, tt.why)
		for _, p := range c.pods(app) {
			if p.Status.Phase == corev1.PodRunning {
				t.Errorf("pod %s runs", p.Name)
			}
		}
	}
	for _, app := range []string{"nobody", "admin", "thief"} {
		if out, err := c.Kubectl("delete", "deployment", "-n", "shop", app, "--wait"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// testServerDown kills the API server, and a container of a pod: the kubelet starts it again, and
// the agent has the pod's grant.
func testServerDown(t *testing.T, c *cluster) {
	p := c.pods("web")[0]
	port := hostPort(t, &p)
	c.Server.Kill()
	if out, err := c.crictlKill(&p); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	testkit.Eventually(t, func() error {
		_, err := get(c.Remote, "http://"+port+"/")
		return err
	})
	c.Server.Start()
	c.Await()
	testkit.Eventually(t, func() error { return c.Admin.List(t.Context(), &v1alpha1.GraftPolicyList{}) })
	c.rolledOut("web")
}

func testAgentRestarted(t *testing.T, c *cluster) {
	p := c.pods("web")[0]
	port := hostPort(t, &p)
	c.agent.Kill()
	c.agent.Start()
	testkit.Eventually(t, func() error {
		_, err := get(c.Remote, "http://"+port+"/")
		return err
	})
	if out, err := c.Kubectl("rollout", "restart", "deployment/web", "-n", "shop"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := c.Kubectl("rollout", "status", "deployment/web", "-n", "shop", "--timeout", testkit.Patience.String()); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, c.describe("web"))
	}
}

func testDeleted(t *testing.T, c *cluster) {
	web := c.pods("web")[0].Name
	ping := []string{"redis-cli", "-h", testkit.HostAddr4.String(), "ping"}
	var e v1alpha1.GraftEndpoint
	if err := c.Admin.Get(t.Context(), types.NamespacedName{Name: "node"}, &e); err != nil {
		t.Fatal(err)
	}
	if err := c.Admin.Delete(t.Context(), &v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "node"}}); err != nil {
		t.Fatal(err)
	}
	c.event("web", node.ReasonWithdrawn, "198.51.100.1/32:6379")
	if out, err := c.exec(web, ping...); err == nil {
		t.Errorf("without the endpoint, redis answers %q", out)
	}
	e.ResourceVersion, e.UID = "", ""
	if err := c.Admin.Create(t.Context(), &e); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error {
		out, err := c.exec(web, ping...)
		if err == nil && out != "PONG\n" {
			err = fmt.Errorf("redis answers %q", out)
		}
		return err
	})
	if err := c.Admin.DeleteAllOf(t.Context(), &v1alpha1.GraftPolicy{}, client.InNamespace("shop")); err != nil {
		t.Fatal(err)
	}
	c.event("web", node.ReasonWithdrawn, "0.0.0.0:80")
}

// hostPort returns the address of a pod's server on the node.
func hostPort(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	_, after, found := strings.Cut(p.Annotations[node.AnnotationPorts], `"host":"`)
	host, _, _ := strings.Cut(after, `"`)
	if !found {
		t.Fatalf("pod %s has no port of the node: %v", p.Name, p.Annotations)
	}
	return host
}

// crictlKill kills the first process of a pod's container, as the kernel does for want of memory.
func (c *cluster) crictlKill(p *corev1.Pod) (string, error) {
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	out, err := c.Rig.Command(ctx, "ctr", "-n", "k8s.io", "task", "kill", "-s", "SIGKILL", id).CombinedOutput()
	return string(out), err
}
