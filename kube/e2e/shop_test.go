package e2e

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/node"
)

// shop has the resources of all subtests: web servers and redis behind Services, and clients of
// redis.
const shop = kubetest.Shop + `
apiVersion: tsugiki.dev/v1alpha1
kind: GraftEndpoint
metadata: {name: redis}
spec: {type: IPv4, ports: "6379", allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}, podSelector: {matchLabels: {app: redis}}}]}
---
` + endpointNode + `
---
` + policies + `
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: redis, namespace: shop}
spec: {ports: [{name: redis, port: 6379}]}
`

// endpointNode is where clients leave from.
const endpointNode = `
apiVersion: tsugiki.dev/v1alpha1
kind: GraftEndpoint
metadata: {name: node}
spec: {type: IPv4, destinations: [{cidr: 198.51.100.1/32}, {cidr: 10.96.0.0/16}], allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}}]}
`

const policies = `
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{endpoint: web, port: 80, service: {name: web, port: http}}]
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: redis, namespace: shop}
spec:
  podSelector: {matchLabels: {app: redis}}
  ingress: [{endpoint: redis, port: 6379, service: {name: redis, port: redis}}]
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: clients, namespace: shop}
spec:
  podSelector: {matchExpressions: [{key: app, operator: In, values: [web, steady, many]}]}
  egress: [{endpoint: node, to: [198.51.100.1/32, 10.96.0.0/16], ports: "6379", protocol: TCP}]
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
    spec: {%[3]s
      containers: [%[4]s]}
`, app, replicas, podSpec, container("main", args, more))
}

// podSpec begins the specification of a grafted pod.
const podSpec = `runtimeClassName: tsugiki, dnsPolicy: Default, automountServiceAccountToken: false, enableServiceLinks: false, terminationGracePeriodSeconds: 1,`

// container is one of a pod. Its program is the image's own, without arguments.
func container(name string, args []string, more string) string {
	var list []string
	for _, a := range args {
		list = append(list, fmt.Sprintf("%q", a))
	}
	command := ""
	if len(list) > 0 {
		command = ", command: [" + strings.Join(list, ", ") + "]"
	}
	return fmt.Sprintf("{name: %s, image: %q, imagePullPolicy: Never%s%s}", name, engines.ImageName, command, more)
}

// openShop makes all of the above, and what the subtests share: two web servers, redis, and a client
// that speaks to redis by one connection for as long as it is there.
func (c *cluster) openShop() {
	c.t.Helper()
	c.apply(shop)
	// The node's firewall keeps the network of pods from ports that grafted pods are given.
	c.Must("nft", `add table inet graft; add chain inet graft input { type filter hook input priority 0; };
		add rule inet graft input iifname cni0 tcp dport { 6379, 31000-32767 } reject with tcp reset`)
	c.apply(deployment("web", 2, engines.Nginx, `, ports: [{containerPort: 80, name: http}], readinessProbe: {httpGet: {port: http, path: /}, periodSeconds: 1}`))
	c.apply(deployment("redis", 1, engines.Redis, `, readinessProbe: {tcpSocket: {port: 6379}, periodSeconds: 1}`))
	for _, app := range []string{"web", "redis"} {
		c.rolledOut("shop", app)
	}
	c.apply(deployment("steady", 1, []string{"sh", "-c", fmt.Sprintf(`until redis-cli -h %[1]s ping; do sleep 0.1; done
		while echo PING; do sleep 0.1; done | nc %[1]s 6379 >/tmp/out`, testkit.HostAddr4)}, ""))
	c.rolledOut("shop", "steady")
	c.settled()
}

// hostPort returns the address of a pod's first server on the node.
func (c *cluster) hostPort(p *corev1.Pod) string {
	c.t.Helper()
	_, after, found := strings.Cut(p.Annotations[node.AnnotationPorts], `"host":"`)
	host, _, _ := strings.Cut(after, `"`)
	if !found {
		c.t.Fatalf("pod %s has no port of the node: %v", p.Name, p.Annotations)
	}
	return host
}
