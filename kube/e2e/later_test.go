package e2e

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
	"github.com/tsugiki/tsugiki/kube/node"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// testLater has a pod run that may do next to nothing. Policies that come then let its program reach redis,
// and serve. The server's endpoint moves, and at last a rule comes that only a new container can have. No
// container is started again.
func (c *cluster) testLater() {
	c.lend(`{apiVersion: tsugiki.dev/v1alpha1, kind: GraftEndpoint, metadata: {name: later},
		spec: {type: IPv4, ports: "32100", allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}}]}}` + "\n---\n" +
		policyLater("first", `egress: [{endpoint: node, to: [10.96.0.0/16], ports: "6379", protocol: TCP}]`) + "\n---\n" +
		deployment("later", 1, []string{"sh", "-c", fmt.Sprintf("until redis-cli -h %s ping >/tmp/said; do sleep 0.2; done; tail -f /dev/null", testkit.HostAddr4)}, ""))
	c.rolledOut("shop", "later")
	l, p := c.lasting(), c.pods("later")[0]
	if out, err := c.ping(p.Name); err == nil {
		c.t.Errorf("without a rule, redis answers %q", out)
	}

	c.lend(policyLater("reaches", `egress: [{endpoint: node, to: [198.51.100.1/32], ports: "6379", protocol: TCP}]`))
	c.says("PONG\n", p.Name, "cat", "/tmp/said") // to the pod's program, which has asked all the time
	c.lend(policyLater("serves", `ingress: [{endpoint: later, port: 80}]`))
	at := c.portOfLater("32100")
	const asks = "wget -q -O /dev/null http://127.0.0.1/ 2>/dev/null" // a pod's own containers reach its servers in any case
	serve := func() {
		c.t.Helper()
		c.says("", p.Name, "sh", "-c", strings.Join(engines.Nginx, " ")+" </dev/null >/tmp/log 2>&1 & until "+asks+"; do sleep 0.1; done")
	}
	serve()
	c.served(at)
	c.condition("later", corev1.ConditionTrue, "")

	c.patch(&v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, `{"spec": {"ports": "32101"}}`)
	c.event("later", node.ReasonMoved, "0.0.0.0:80/tcp=")
	moved := c.portOfLater("32101")
	c.unheard(l, []string{at})
	stop := func() {
		c.t.Helper()
		c.says("", p.Name, "sh", "-c", "kill $(pidof nginx); while "+asks+"; do sleep 0.1; done")
	}
	stop()
	serve()
	c.served(moved)

	c.patch(&v1alpha1.GraftPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "serves"}}, `{"spec": {"ingress": [{"endpoint": "later", "port": 80, "own": true}]}}`)
	const why = "needs accept(2) to be trapped"
	c.event("later", node.ReasonRestart, why)
	c.condition("later", corev1.ConditionFalse, why)
	c.unheard(l, []string{moved})
	l.goOn()
	stop()
	for _, s := range c.pods("later")[0].Status.ContainerStatuses {
		if s.RestartCount != 0 || s.ContainerID != p.Status.ContainerStatuses[0].ContainerID {
			c.t.Errorf("the container was started again: %+v", s)
		}
	}
}

// policyLater is a policy for the pod of testLater.
func policyLater(name, rules string) string {
	return fmt.Sprintf("{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: %s, namespace: shop}, spec: {podSelector: {matchLabels: {app: later}}, %s}}", name, rules)
}

// portOfLater waits until the pod of testLater has a port of the node, and returns its address.
func (c *cluster) portOfLater(port string) string {
	c.t.Helper()
	at := testkit.HostAddr4.String() + ":" + port
	testkit.Eventually(c.t, func() error {
		if ports := c.pods("later")[0].Annotations[node.AnnotationPorts]; !strings.Contains(ports, `"`+at+`"`) {
			return fmt.Errorf("the pod has the ports %s, and not yet %s", ports, at)
		}
		return nil
	})
	return at
}

// patch changes a resource.
func (c *cluster) patch(o client.Object, patch string) {
	c.t.Helper()
	if err := c.Admin.Patch(context.Background(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		c.t.Fatal(err)
	}
}
