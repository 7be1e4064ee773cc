package e2e

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

const many = `
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: many, namespace: shop}
spec:
  podSelector: {matchLabels: {app: many}}
  ingress: [{endpoint: web, port: 80, container: web, own: true}]
---
apiVersion: v1
kind: Pod
metadata: {name: many, namespace: shop, labels: {app: many}}
spec: {%s volumes: [{name: srv, emptyDir: {}}], initContainers: [%s, %s], containers: [%s, %s]}
`

// testContainers has a pod whose containers speak to each other by the loopback: a sidecar, an init
// container that is grafted as well, a web server, and a client. kubectl is used in all its ways.
func (c *cluster) testContainers() {
	const shared = `, volumeMounts: [{name: srv, mountPath: /srv}]`
	c.lend(fmt.Sprintf(many, podSpec,
		container("sidecar", engines.Redis, `, restartPolicy: Always, startupProbe: {tcpSocket: {port: 6379}, periodSeconds: 1, failureThreshold: 1000}`),
		container("first", []string{"sh", "-c", fmt.Sprintf("redis-cli -h %s ping >/srv/index.html && redis-cli set first done", testkit.HostAddr4)}, shared),
		container("web", engines.Nginx, shared),
		container("client", nil, "")))
	testkit.Eventually(c.t, func() error {
		if p := c.pods("many")[0]; !slices.ContainsFunc(p.Status.Conditions, func(d corev1.PodCondition) bool {
			return d.Type == corev1.PodReady && d.Status == corev1.ConditionTrue
		}) {
			return fmt.Errorf("the pod is not ready\n%s", c.describe("shop"))
		}
		return nil
	})
	// The init container reached the node's redis, and the sidecar's by the loopback.
	if out := c.in("many", "client", "redis-cli", "get", "first"); out != "done\n" {
		c.t.Errorf("the sidecar's redis has %q of the init container", out)
	}
	for _, from := range []string{"client", "sidecar"} {
		if out := c.in("many", from, "wget", "-q", "-O", "-", "http://127.0.0.1/?from-"+from); out != "PONG\n" {
			c.t.Errorf("the web server of the pod answers container %s %q", from, out)
		}
	}
	p := c.pods("many")[0]
	if body, err := get(c.Remote, "http://"+c.hostPort(&p)+"/?from-remote"); err != nil || body != "PONG\n" {
		c.t.Errorf("the remote gets %q, %v", body, err)
	}
	if out, err := c.forwarded("80"); err != nil || out != "PONG\n" {
		c.t.Errorf("by kubectl port-forward: %q, %v", out, err)
	}
	log, err := c.Kubectl("logs", "-n", "shop", "many", "-c", "web")
	for _, want := range []string{"127.0.0.1 200 /?from-client\n", "127.0.0.1 200 /?from-sidecar\n", testkit.RemoteAddr4.String() + " 200 /?from-remote\n"} {
		if err != nil || !strings.Contains(log, want) {
			c.t.Errorf("the log of the web server has no %q: %v\n%s", want, err, log)
		}
	}
	// A container that is killed starts again, while the others go on.
	c.kill(&p, "web")
	testkit.Eventually(c.t, func() error {
		out, err := c.Kubectl("exec", "-n", "shop", "many", "-c", "client", "--", "wget", "-q", "-O", "-", "http://127.0.0.1/")
		if err == nil && out != "PONG\n" {
			err = fmt.Errorf("it prints %q", out)
		}
		return err
	})
	if out := c.in("many", "client", "redis-cli", "get", "first"); out != "done\n" {
		c.t.Errorf("after another container was killed, the sidecar's redis has %q", out)
	}
}

// forwarded asks a server in the pod by kubectl port-forward.
func (c *cluster) forwarded(port string) (string, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	forward := c.KubectlCommand(ctx, "port-forward", "-n", "shop", "pod/many", ":"+port)
	out, err := forward.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := forward.Start(); err != nil {
		return "", err
	}
	defer func() {
		cancel()
		_ = forward.Wait() // killed
	}()
	line, err := bufio.NewReader(out).ReadString('\n') // Forwarding from 127.0.0.1:PORT -> 80
	if err != nil {
		return line, err
	}
	words := strings.Fields(line)
	return get(c.Host, "http://"+words[min(2, len(words)-1)]+"/?forwarded")
}

// kill kills a container's first process, as the kernel does for want of memory, and waits until the
// agent has another container in its place.
func (c *cluster) kill(p *corev1.Pod, name string) {
	c.t.Helper()
	old, err := c.container(p.UID, name)
	if err == nil {
		err = syscall.Kill(old.PID, syscall.SIGKILL)
	}
	if err != nil {
		c.t.Fatalf("kill container %s of pod %s: %v", name, p.Name, err)
	}
	testkit.Eventually(c.t, func() error {
		now, err := c.container(p.UID, name)
		if err == nil && (now.ID == old.ID || now.PID == 0) {
			err = fmt.Errorf("container %s of pod %s is %+v, and was %+v before it was killed", name, p.Name, now, old)
		}
		return err
	})
}

// testCost measures what the containers of a pod pay for speaking to each other by the loopback. It
// is for the soak, and only tells: figures depend on the machine.
func (c *cluster) testCost() {
	pods := []string{"plain", "grafted", "own"}
	c.lend(`{apiVersion: tsugiki.dev/v1alpha1, kind: GraftEndpoint, metadata: {name: cost},
		spec: {type: IPv4, ports: 32000-32767, destinations: [{cidr: 198.51.100.1/32}], allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}}]}}
---
{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: cost, namespace: shop},
		spec: {podSelector: {matchLabels: {cost: "true"}}, egress: [{endpoint: cost, to: [198.51.100.1/32]}]}}
---
{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: own, namespace: shop},
		spec: {podSelector: {matchLabels: {app: own}}, ingress: [{endpoint: cost, port: 6379, container: server, own: true}]}}`)
	for _, name := range pods {
		spec := podSpec
		if name == "plain" {
			spec = strings.TrimPrefix(spec, "runtimeClassName: tsugiki,")
		}
		c.lend(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, namespace: shop, labels: {app: %[1]s, cost: "true"}}, spec: {%[2]s containers: [%[3]s, %[4]s]}}`,
			name, spec, container("server", engines.Redis, ""), container("client", nil, "")))
	}
	rates := map[string]map[string][]float64{"requests": {}, "connections": {}}
	for _, name := range pods {
		testkit.Eventually(c.t, func() error {
			_, err := c.Kubectl("exec", "-n", "shop", name, "-c", "client", "--", "redis-cli", "ping")
			return err
		})
	}
	for range 7 {
		for _, name := range pods {
			rates["requests"][name] = append(rates["requests"][name], c.rate(name, "50000", "1"))
			rates["connections"][name] = append(rates["connections"][name], c.rate(name, "10000", "0"))
		}
	}
	for what, of := range rates {
		for _, name := range pods[1:] {
			var ratios []float64
			for i, r := range of[name] {
				ratios = append(ratios, r/of["plain"][i])
			}
			slices.Sort(ratios)
			c.t.Logf("%s by the loopback between containers, %s to plain: median %.3f, from %.3f to %.3f; per second %.0f", what, name, ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1], of[name])
		}
		c.t.Logf("%s, plain: per second %.0f", what, of["plain"])
	}
}

// rate has a client ask the server of its pod some times, one after another, by one connection or by
// a new one each, and returns how often it did per second.
func (c *cluster) rate(pod, times, keep string) float64 {
	c.t.Helper()
	out := c.in(pod, "client", "redis-benchmark", "--csv", "-c", "1", "-n", times, "-k", keep, "-t", "ping_mbulk")
	for line := range strings.Lines(out) { // "PING_MBULK","RATE",…
		if words := strings.Split(line, `"`); len(words) > 3 && words[1] == "PING_MBULK" {
			if rate, err := strconv.ParseFloat(words[3], 64); err == nil {
				return rate
			}
		}
	}
	c.t.Fatalf("redis-benchmark prints no rate:\n%s", out)
	return 0
}
