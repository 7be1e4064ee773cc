package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/node"
)

// TestCRIO has a node with CRI-O, to which tsugiki setup has added the runtime. See TestCluster.
func TestCRIO(t *testing.T) {
	crio := filepath.Dir(kubetest.Program(t, "crio"))
	kubetest.Program(t, "pinns")
	c := newCluster(t, crio)
	c.setUpCRIO("--yes", "crio")
	c.openShop()
	for _, test := range []subtest{
		{"a Service reaches grafted pods", (*cluster).testService},
		{"probes", (*cluster).testProbes},
		{"a policy lets one client reach a server, and not its neighbour", (*cluster).testNeighbour},
		{"a pod of several containers", (*cluster).testContainers},
		{"pods are refused with events", (*cluster).testRefused},
		{"pods that say they are others", (*cluster).testForged},
		{"CRI-O is restarted", (*cluster).testCRIORestarted},
		{"resources are deleted while pods run", (*cluster).testDeleted},
		{"the agent is restarted", (*cluster).testAgentRestarted},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(c.with(t)) })
	}
}

// setUpCRIO calls tsugiki setup, and starts CRI-O anew.
func (c *cluster) setUpCRIO(args ...string) {
	c.t.Helper()
	bin := testkit.BuildTsugiki(c.t)
	c.Must(filepath.Join(bin, "tsugiki"), append([]string{"setup", "--runtime", filepath.Join(bin, "tsugiki-runtime")}, args...)...)
	c.Rig.Restart(c.t)
}

// forged are annotations of a pod that wants to be one of web, or of no kind that is grafted. CRI-O gives
// all of them to the containers of the pod.
const forged = `annotations: {io.kubernetes.cri-o.ContainerType: sandbox, io.kubernetes.cri.container-type: sandbox, io.kubernetes.cri-o.SandboxID: %[2]q,
	io.kubernetes.pod.uid: %[1]q, io.kubernetes.pod.name: %[3]q, io.kubernetes.cri-o.KubeName: %[3]q, io.kubernetes.cri.sandbox-uid: %[1]q,
	io.kubernetes.cri.sandbox-name: %[3]q, io.kubernetes.cri.sandbox-namespace: shop, io.kubernetes.cri.container-name: main,
	io.kubernetes.cri-o.Labels: "{\"io.kubernetes.pod.uid\": \"%[1]s\"}", io.container.manager: libpod, tsugiki.dev/egress: "0.0.0.0/0=198.51.100.1"}`

const forgers = `{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: forger, namespace: shop},
	spec: {podSelector: {matchLabels: {app: forger}}, egress: [{endpoint: node, to: [198.51.100.1/32], ports: "6379", protocol: TCP}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: forger, namespace: shop, labels: {app: forger}, %[1]s}, spec: {%[2]s containers: [%[3]s]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: stranger, namespace: shop, labels: {app: stranger}, %[1]s}, spec: {%[2]s containers: [%[3]s]}}`

// testForged has pods whose annotations say that they are one of the web servers. The one that has a
// policy is given what its own policy says, and the one that has none is refused.
func (c *cluster) testForged() {
	web := c.pods("web")[0]
	m, err := c.container(web.UID, "main")
	if err != nil {
		c.t.Fatal(err)
	}
	c.lend(fmt.Sprintf(forgers, fmt.Sprintf(forged, web.UID, m.Pod.Sandbox, web.Name), podSpec, container("main", nil, "")))
	c.event("stranger", node.ReasonRefused, "no GraftPolicy of namespace shop selects the pod")
	testkit.Eventually(c.t, func() error {
		if p := c.pods("forger")[0]; p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("the pod is %s\n%s", p.Status.Phase, c.describe("shop"))
		}
		return nil
	})
	p := c.pods("forger")[0]
	got, err := c.container(p.UID, "main")
	if err != nil {
		c.t.Fatal(err)
	}
	if got.Pod.Name != "forger" || got.Pod.Namespace != "shop" || got.Name != "shop.forger.main" || got.Pod.Sandbox == m.Pod.Sandbox {
		c.t.Errorf("the agent takes the container for %+v, %s", got.Pod, got.Name)
	}
	c.says("PONG\n", "forger", "redis-cli", "-h", testkit.HostAddr4.String(), "ping")
	if out, err := c.exec("forger", "timeout", "3", "redis-cli", "-h", c.service("redis"), "ping"); err == nil {
		c.t.Errorf("by an annotation, redis answers %q at the address of its Service", out)
	}
	if now, err := c.container(web.UID, "main"); err != nil || now.ID != m.ID {
		c.t.Errorf("the container of the web server was %+v, and is %+v, %v", m, now, err)
	}
}

// testCRIORestarted starts CRI-O anew: pods run on, and it knows them. Without the entry of tsugiki
// setup, pods of the RuntimeClass do not start.
func (c *cluster) testCRIORestarted() {
	l, p := c.lasting(), c.pods("web")[0]
	c.Rig.Restart(c.t)
	l.goOn()
	c.served(c.hostPort(&p))
	c.says("hello\n", p.Name, "wget", "-q", "-O", "-", "http://127.0.0.1/")
	c.kill(&p, "main")
	c.served(c.hostPort(&p))
	if log, err := c.Kubectl("logs", "-n", "shop", p.Name); err != nil || !strings.Contains(log, " 200 /\n") {
		c.t.Errorf("the log of the web server, %v:\n%s", err, log)
	}
	c.setUpCRIO("--yes", "--undo", "crio")
	c.lend(fmt.Sprintf(`{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: without, namespace: shop},
		spec: {podSelector: {matchLabels: {app: without}}, ingress: [{endpoint: web, port: 80}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: without, namespace: shop, labels: {app: without}}, spec: {%s containers: [%s]}}`, podSpec, container("main", engines.Nginx, "")))
	c.event("without", "FailedCreatePodSandBox", "tsugiki")
	l.goOn()
	c.setUpCRIO("--yes", "crio")
	testkit.Eventually(c.t, func() error {
		if p := c.pods("without")[0]; p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("the pod is %s\n%s", p.Status.Phase, c.describe("shop"))
		}
		return nil
	})
	p = c.pods("without")[0]
	c.served(c.hostPort(&p))
	l.goOn()
}
