package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/node"
)

const (
	withPlugin    = `{agent: {install: false}, nri: {enabled: true}}`
	withoutPlugin = `{agent: {install: false}}`
)

// nriConfig has containerd refuse pods that ask for a plugin which is not there. A plugin has more time for
// an answer than it has by default, as the machine does much besides.
const nriConfig = `[plugins."io.containerd.nri.v1.nri"]
plugin_request_timeout = "20s"
[plugins."io.containerd.nri.v1.nri".default_validator]
enable = true
`

// TestNRI has a node whose containerd knows NRI, and pods that ask by the annotation. It is one test, as
// TestCluster is.
func TestNRI(t *testing.T) {
	c := newClusterOf(t, withPlugin, func(o *engines.Options) {
		o.Programs, o.Containerd = kubetest.Containerd(t), nriConfig
		o.Written = []string{"/etc", "/opt", "/var/lib"}
	})
	if version := c.Must("containerd", "--version"); !strings.Contains(version, " v2.") {
		t.Fatalf("the node has %s", version)
	}
	c.apply(asking)
	for _, app := range []string{"redis", "asks", "steady"} {
		args, more := map[string][]string{"redis": engines.Redis, "asks": engines.Nginx, "steady": steadyProgram}[app], ""
		if port := map[string]string{"redis": "6379", "asks": "80"}[app]; port != "" {
			more = fmt.Sprintf(", readinessProbe: {tcpSocket: {port: %s}, periodSeconds: 1}", port)
		}
		c.apply(annotated(app, args, more))
		c.rolledOut("shop", app)
	}
	for _, test := range []subtest{
		{"pods are grafted by the annotation", (*cluster).testAsked},
		{"what cannot be grafted is refused", (*cluster).testAskedRefused},
		{"the plugin is away", (*cluster).testPluginAway},
		{"containerd is restarted", (*cluster).testContainerdRestarted},
		{"containerd starts the plugin", (*cluster).testPreinstalled},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(c.with(t)) })
	}
}

// asking are the resources of all subtests.
const asking = kubetest.Shop + endpointNode + `
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftEndpoint
metadata: {name: redis}
spec: {type: IPv4, ports: "6379", allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}, podSelector: {matchLabels: {app: redis}}}]}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: redis, namespace: shop}
spec: {podSelector: {matchLabels: {app: redis}}, ingress: [{endpoint: redis, port: 6379, container: main}]}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: asks, namespace: shop}
spec:
  podSelector: {matchExpressions: [{key: app, operator: In, values: [asks, needs, raw, class]}]}
  ingress: [{endpoint: web, port: 80, container: main, service: {name: asks, port: http}}]
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: clients, namespace: shop}
spec:
  podSelector: {matchExpressions: [{key: app, operator: In, values: [asks, steady]}]}
  egress: [{endpoint: node, to: [198.51.100.1/32], ports: "6379", protocol: TCP}]
---
apiVersion: v1
kind: Service
metadata: {name: asks, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: plain}
handler: runc
`

var steadyProgram = []string{"sh", "-c", fmt.Sprintf(`until redis-cli -h %[1]s ping; do sleep 0.1; done
	while echo PING; do sleep 0.1; done | nc %[1]s 6379 >/tmp/out`, testkit.HostAddr4)}

const dropRaw = `, securityContext: {capabilities: {drop: [NET_RAW]}}`

// annotated is the Deployment of an app whose pods ask by the annotation.
func annotated(app string, args []string, more string) string {
	text := strings.Replace(deployment(app, 1, args, more+dropRaw), "runtimeClassName: tsugiki, ", "", 1)
	return strings.Replace(text, "    metadata: {labels:", `    metadata: {annotations: {kube.tsugiki.dev/graft: "true"}, labels:`, 1)
}

// askingPod is a pod that asks by the annotation. More is of its metadata, and spec of its specification.
func askingPod(name, more, spec string, c string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: shop, labels: {app: %[1]s}, annotations: {kube.tsugiki.dev/graft: "true"%s}},
		spec: {%s %s containers: [%s]}}`, name, more, strings.Replace(podSpec, "runtimeClassName: tsugiki, ", "", 1), spec, c)
}

// asks waits until the pod of the app asks is the only one, and grafted, and returns it.
func (c *cluster) asks() *corev1.Pod {
	c.t.Helper()
	var p *corev1.Pod
	testkit.Eventually(c.t, func() error {
		pods := c.pods("asks")
		if len(pods) != 1 || pods[0].Annotations[node.AnnotationPorts] == "" {
			return fmt.Errorf("there are %d pods\n%s", len(pods), c.describe("shop"))
		}
		p = &pods[0]
		return nil
	})
	c.grafted(p)
	c.served(c.hostPort(p))
	return p
}

// testAsked asks a web server at the node's port and by its Service, and has its programs, also those of
// kubectl exec, leave from the node's address.
func (c *cluster) testAsked() {
	p := c.asks()
	c.served(c.service("asks"))
	log, err := c.Kubectl("logs", "-n", "shop", p.Name)
	if want := testkit.RemoteAddr4.String() + " 200 /\n"; err != nil || !strings.Contains(log, want) {
		c.t.Errorf("the log has no %q, the remote's own address: %v\n%s", want, err, log)
	}
	list, err := c.exec(p.Name, "redis-cli", "-h", testkit.HostAddr4.String(), "client", "list")
	if want := " addr=" + testkit.HostAddr4.String() + ":"; err != nil || strings.Count(list, want) < 2 {
		c.t.Errorf("clients of redis, want this one of kubectl exec and that of a pod, both%s…: %v\n%s", want, err, list)
	}
	if env, err := c.exec(p.Name, "env"); err != nil || !strings.Contains(env, "LD_PRELOAD=/dev/tsugiki/preload/$LIB/libtsugiki.so") {
		c.t.Errorf("kubectl exec has no library: %v\n%s", err, env)
	}
	if caps, err := c.exec(p.Name, "grep", "CapBnd", "/proc/self/status"); err != nil || hasNetRaw(caps) {
		c.t.Errorf("its programs have CAP_NET_RAW, or %v: %s", err, caps)
	}
	// A container that is killed is grafted again, under another id.
	c.kill(p, "main")
	testkit.Eventually(c.t, func() error {
		pods := c.pods("asks")
		if len(pods) != 1 || !isReady(&pods[0]) {
			return fmt.Errorf("it is not ready again\n%s", c.describe("shop"))
		}
		return nil
	})
	c.asks()
}

func hasNetRaw(status string) bool {
	var bits uint64
	_, err := fmt.Sscanf(status, "CapBnd:\t%x", &bits)
	return err != nil || bits&(1<<13) != 0
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(d corev1.PodCondition) bool {
		return d.Type == corev1.PodReady && d.Status == corev1.ConditionTrue
	})
}

// testAskedRefused has pods that cannot be given what they ask for. The events say what to do.
func (c *cluster) testAskedRefused() {
	for name, tt := range map[string]struct{ pod, reason, note string }{
		"raw":     {askingPod("raw", "", "", container("main", engines.Nginx, "")), node.ReasonRefused, "drop: [ALL]"},
		"unknown": {askingPod("unknown", "", "", container("main", engines.Nginx, dropRaw)), node.ReasonRefused, "no GraftPolicy of namespace shop selects the pod"},
		"users":   {askingPod("users", "", "hostUsers: false,", container("main", engines.Nginx, dropRaw)), "", "hostUsers"},
		"class":   {askingPod("class", "", "runtimeClassName: plain,", container("main", engines.Nginx, dropRaw)), node.ReasonRefused, "take the RuntimeClass away"},
	} {
		c.lend(tt.pod)
		if tt.reason != "" {
			c.event(name, tt.reason, tt.note)
		}
		testkit.Eventually(c.t, func() error {
			pods := c.pods(name)
			if len(pods) != 1 || !slices.ContainsFunc(pods[0].Status.Conditions, func(d corev1.PodCondition) bool {
				return d.Type == node.ConditionGrafted && d.Status == corev1.ConditionFalse && strings.Contains(d.Message, tt.note)
			}) {
				return fmt.Errorf("pod %s has no condition with %q: %+v", name, tt.note, pods)
			}
			return nil
		})
		// One of another RuntimeClass is not the plugin's to keep from running; all others do not run.
		if p := c.pods(name)[0]; name != "class" && p.Status.Phase == corev1.PodRunning {
			c.t.Errorf("pod %s runs", name)
		}
	}
}

// testPluginAway takes the plugin away, as an upgrade does for a while. Connections go on. containerd makes
// containers without the plugin, and their owners hear of it; no Service leads to them. Pods that ask
// containerd for the plugin are not made.
func (c *cluster) testPluginAway() {
	l, p := c.lasting(), c.asks()
	c.setDaemons(withoutPlugin)
	m, err := c.container(p.UID, "main")
	if err == nil {
		err = syscall.Kill(m.PID, syscall.SIGKILL)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.event("asks", node.ReasonMissing, "delete the pod")
	c.unservedAsks()
	c.lend(askingPod("needs", `, required-plugins.noderesource.dev: "[tsugiki]"`, "", container("main", engines.Nginx, dropRaw)))
	c.eventNote("needs", `required plugin "tsugiki" not present`)
	l.goOn()

	c.setDaemons(withPlugin)
	c.deletePod(p)
	if now := c.asks(); now.UID == p.UID {
		c.t.Error("the pod is the one of before")
	}
	testkit.Eventually(c.t, func() error {
		pods := c.pods("needs")
		if len(pods) != 1 || pods[0].Annotations[node.AnnotationPorts] == "" {
			return fmt.Errorf("the pod that needs the plugin is not grafted\n%s", c.describe("shop"))
		}
		return nil
	})
	needs := c.pods("needs")[0]
	c.served(c.hostPort(&needs))
	l.goOn()
}

// testContainerdRestarted restarts containerd: the plugin connects again.
func (c *cluster) testContainerdRestarted() {
	l, p := c.lasting(), c.asks()
	c.restartContainerd()
	l.goOn()
	c.pluginConnected()
	c.deletePod(p)
	if now := c.asks(); now.UID == p.UID {
		c.t.Error("the pod is the one of before")
	}
	l.goOn()
}

// testPreinstalled has containerd start the plugin itself. Then it is there before the first pod. One of the
// DaemonSet beside it changes nothing.
func (c *cluster) testPreinstalled() {
	l := c.lasting()
	c.setDaemons(withoutPlugin)
	c.Must("install", "-D", filepath.Join(testkit.BuildTsugiki(c.t), "kube", "tsugiki-nri"), "/opt/nri/plugins/90-tsugiki")
	c.restartContainerd()
	for _, values := range []string{withoutPlugin, withPlugin} {
		c.setDaemons(values)
		p := c.pods("asks")[0]
		c.deletePod(&p)
		if now := c.asks(); now.UID == p.UID {
			c.t.Error("the pod is the one of before")
		}
	}
	l.goOn()
}

// pluginConnected waits until a pod that needs the plugin is made.
func (c *cluster) pluginConnected() {
	c.t.Helper()
	c.lend(askingPod("needs", `, required-plugins.noderesource.dev: "[tsugiki]"`, "", container("main", engines.Nginx, dropRaw)))
	testkit.Eventually(c.t, func() error {
		if pods := c.pods("needs"); len(pods) != 1 || !isReady(&pods[0]) {
			return fmt.Errorf("the pod that needs the plugin does not run\n%s", c.describe("shop"))
		}
		return nil
	})
}

// unservedAsks waits until no Service leads to the pod.
func (c *cluster) unservedAsks() {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		var list discoveryv1.EndpointSliceList
		err := c.Admin.List(context.Background(), &list, client.InNamespace("shop"), client.MatchingLabels{discoveryv1.LabelServiceName: "asks", discoveryv1.LabelManagedBy: "tsugiki.dev"})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("the Service leads to %+v", list.Items)
		}
		return err
	})
}

// eventNote waits for an event of anybody on a pod.
func (c *cluster) eventNote(pod, note string) {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		var list eventsv1.EventList
		if err := c.Admin.List(context.Background(), &list, client.InNamespace("shop")); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.Name == pod && strings.Contains(e.Note, note) {
				return nil
			}
		}
		return fmt.Errorf("no event of pod %s says %q\n%s", pod, note, c.describe("shop"))
	})
}

// deletePod deletes a pod and waits until it is gone.
func (c *cluster) deletePod(p *corev1.Pod) {
	c.t.Helper()
	if err := c.Admin.Delete(context.Background(), p.DeepCopy()); err != nil {
		c.t.Fatal(err)
	}
	testkit.Eventually(c.t, func() error {
		var now corev1.Pod
		err := c.Admin.Get(context.Background(), client.ObjectKeyFromObject(p), &now)
		if err == nil && now.UID == p.UID {
			return errors.New("the pod is still there")
		}
		return client.IgnoreNotFound(err)
	})
}

// setDaemons has the DaemonSet be that of the chart with values, and waits until the node has its pod.
func (c *cluster) setDaemons(values string) {
	c.t.Helper()
	for _, o := range kubetest.Chart(c.t, "tsugiki", values) {
		if o.GetKind() != "DaemonSet" {
			continue
		}
		testkit.Eventually(c.t, func() error {
			now := &unstructured.Unstructured{}
			now.SetGroupVersionKind(o.GroupVersionKind())
			if err := c.Admin.Get(context.Background(), client.ObjectKeyFromObject(o), now); err != nil {
				return err
			}
			now.Object["spec"] = o.Object["spec"]
			return c.Admin.Update(context.Background(), now)
		})
	}
	c.daemonsReady()
}
