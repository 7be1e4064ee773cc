package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/node"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// translated has an endpoint by which pods reach one port of the remote by IPv6, and the remote's
// resolver knows names. Its ports are at the node's address of IPv6.
const translated = `
apiVersion: tsugiki.dev/v1alpha1
kind: GraftEndpoint
metadata: {name: six}
spec:
  type: IPv6
  address: "2001:db8:1::1"
  ports: 32000-32767
  destinations: [{cidr: "2001:db8:1::2/128", ports: "6379"}]
  resolvers: ["[2001:db8:1::2]:53"]
  allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}}]
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: four, namespace: shop}
spec:
  podSelector: {matchLabels: {ip: four}}
  translate: {endpoint: six}
  ingress: [{endpoint: six, port: 80}]
`

// six is the name of the remote, which has an address of IPv6 alone.
const six = "six.example"

// openFour has a pod whose programs use IPv4, until the subtest ends: nginx, which listens at 0.0.0.0, and
// redis-cli, which asks for IPv4 addresses first. The servers of the remote listen at its address of IPv6 alone.
func (c *cluster) openFour() *corev1.Pod {
	c.t.Helper()
	c.serveNames()
	for _, port := range []string{"6379", "6380"} {
		kubetest.Run(c.t, c.Remote, "redis-server", "--port", port, "--bind", testkit.RemoteAddr6.String(), "--save", "", "--protected-mode", "no")
		testkit.Eventually(c.t, func() error {
			out, err := c.Host.Command(context.Background(), "redis-cli", "-h", testkit.RemoteAddr6.String(), "-p", port, "ping").CombinedOutput()
			if err == nil && string(out) != "PONG\n" {
				err = fmt.Errorf("the remote's server at port %s says %q", port, out)
			}
			return err
		})
	}
	c.lend(translated)
	c.lend(c.four("four", "tsugiki-translate", `, readinessProbe: {exec: {command: [sh, -c, "redis-cli -h `+six+` ping | grep PONG"]}, periodSeconds: 1, timeoutSeconds: 20}`))
	testkit.Eventually(c.t, func() error {
		if p := c.pods("four")[0]; !slices.ContainsFunc(p.Status.Conditions, func(d corev1.PodCondition) bool {
			return d.Type == corev1.PodReady && d.Status == corev1.ConditionTrue
		}) {
			return fmt.Errorf("the pod is not ready: %+v\n%s", p.Status, c.describe("shop"))
		}
		return nil
	})
	p := c.pods("four")[0]
	c.grafted(&p)
	c.hasNoNetwork(&p)
	return &p
}

// testTranslated has such a pod, and changes what it is given.
func (c *cluster) testTranslated() {
	p := c.openFour()

	// The virtual address is one of IPv4. The server sees the node's address of IPv6.
	virtual := c.virtualAddress()
	c.says("PONG\n", "four", "redis-cli", "-h", virtual.String(), "ping")
	list, err := c.exec("four", "redis-cli", "-h", six, "client", "list")
	if want := " addr=[" + testkit.HostAddr6.String() + "]:"; err != nil || !strings.Contains(list, want) {
		c.t.Errorf("clients of the remote's server, want one%s…: %v\n%s", want, err, list)
	}
	c.walled(virtual)

	// The pod's server listens at 0.0.0.0, and at the node's address of IPv6 for others.
	body, err := get(c.Remote, "http://"+c.hostPort(p)+"/?translated")
	if err != nil || body != "hello\n" || !strings.HasPrefix(c.hostPort(p), "["+testkit.HostAddr6.String()+"]:") {
		c.t.Errorf("the pod's server at %s answers %q, %v", c.hostPort(p), body, err)
	}
	testkit.Eventually(c.t, func() error {
		log, err := c.Kubectl("logs", "-n", "shop", "four")
		if err == nil && !strings.Contains(log, virtual.String()+" 200 /?translated\n") {
			err = fmt.Errorf("the log does not name the client %s:\n%s", virtual, log)
		}
		return err
	})
	c.notTranslated()

	// What the endpoint does not let it reach any more, the running pod does not reach.
	c.changeEndpoint(`{"spec": {"destinations": [{"cidr": "2001:db8:1::2/128", "ports": "6381"}]}}`)
	testkit.Eventually(c.t, func() error {
		if out, err := c.exec("four", "redis-cli", "-h", virtual.String(), "ping"); err == nil && out == "PONG\n" {
			return errors.New("the pod reaches what the endpoint no longer has")
		}
		return nil
	})
	c.changeEndpoint(`{"spec": {"destinations": [{"cidr": "2001:db8:1::2/128", "ports": "6379"}]}}`)
	c.says("PONG\n", "four", "redis-cli", "-h", virtual.String(), "ping")

	// The running pod's names are asked for at other resolvers. Nobody listens at this one.
	c.changeEndpoint(`{"spec": {"resolvers": ["[2001:db8:1::2]:5353"]}}`)
	testkit.Eventually(c.t, func() error {
		if addr, err := c.lookUp(); err == nil {
			return fmt.Errorf("the pod finds %s by a resolver that the endpoint no longer has", addr)
		}
		return nil
	})
	c.changeEndpoint(`{"spec": {"resolvers": ["[2001:db8:1::2]:53"]}}`)
	testkit.Eventually(c.t, func() error {
		_, err := c.lookUp()
		return err
	})
}

// four is a pod of nginx with a RuntimeClass, whose policy has its IPv4 translated.
func (c *cluster) four(name, class, more string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, namespace: shop, labels: {app: %[1]s, ip: four}}, spec: {%[2]s containers: [%[3]s]}}",
		name, strings.Replace(podSpec, "runtimeClassName: tsugiki,", "runtimeClassName: "+class+",", 1), container("main", engines.Nginx, more))
}

// hasNoNetwork checks that a pod has a loopback alone, and an address that is nobody's.
func (c *cluster) hasNoNetwork(p *corev1.Pod) {
	c.t.Helper()
	out, err := c.exec(p.Name, "cat", "/proc/net/dev")
	if err != nil || strings.Count(out, ":") != 1 || !strings.Contains(out, " lo:") {
		c.t.Errorf("the pod's links, %v:\n%s", err, out)
	}
	addr, err := netip.ParseAddr(p.Status.PodIP)
	if err != nil || !netip.MustParsePrefix("100::/64").Contains(addr) {
		c.t.Errorf("the pod's address is %q, want one of the discard prefix", p.Status.PodIP)
	}
}

// virtualAddress is the IPv4 address that a program in the pod finds for the remote.
func (c *cluster) virtualAddress() netip.Addr {
	c.t.Helper()
	addr, err := c.lookUp()
	if err != nil {
		c.t.Fatal(err)
	}
	return addr
}

// lookUp has a program in the pod look for the remote's address.
func (c *cluster) lookUp() (netip.Addr, error) {
	out, err := c.exec("four", "nslookup", "-type=a", six)
	for line := range strings.Lines(out) {
		if words := strings.Fields(line); len(words) > 1 && strings.HasPrefix(words[0], "Address") {
			addr, err := netip.ParseAddr(words[len(words)-1])
			if err == nil && netip.MustParsePrefix("198.18.0.0/15").Contains(addr) {
				return addr, nil
			}
		}
	}
	return netip.Addr{}, errors.Join(fmt.Errorf("the program finds no virtual address of %s:\n%s", six, out), err)
}

// walled checks that the pod reaches nothing but what the endpoint has.
func (c *cluster) walled(virtual netip.Addr) {
	c.t.Helper()
	for _, args := range [][]string{
		{"-h", six, "-p", "6380"},
		{"-h", virtual.String(), "-p", "6380"},
		{"-h", testkit.RemoteAddr6.String(), "-p", "6380"},
		{"-h", testkit.HostAddr6.String(), "-p", "6379"},
		{"-h", testkit.HostAddr4.String(), "-p", "6379"}, // the shop's redis
	} {
		if out, err := c.exec("four", append(append([]string{"redis-cli"}, args...), "ping")...); err == nil || !strings.Contains(out, "unreachable") {
			c.t.Errorf("redis-cli %s: %v, want that the network is unreachable\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// notTranslated has pods that cannot be translated. No container of them starts, and events say what to
// do.
func (c *cluster) notTranslated() {
	c.t.Helper()
	two := c.four("two", "tsugiki-translate", "")
	two = strings.Replace(two, "containers: [", "containers: ["+container("other", nil, "")+", ", 1)
	for app, tt := range map[string]struct{ pod, why string }{
		"two":       {two, "IPv4 is translated for the only container of a pod, and this one has 2: other, main; put each into a pod of its own"},
		"networked": {c.four("networked", "tsugiki", ""), "give the pod the RuntimeClass of such pods (runtimeClassName: tsugiki-translate)"},
		"probed-46": {c.four("probed-46", "tsugiki-translate", ", livenessProbe: {httpGet: {port: 80}}"), "the livenessProbe of container main asks at the pod's address, and the pod has no network; write an exec probe"},
		"unnamed":   {strings.Replace(c.four("unnamed", "tsugiki-translate", ""), "ip: four", "ip: six", 1), "no GraftPolicy of namespace shop selects the pod"},
	} {
		c.lend(tt.pod)
		c.event(app, node.ReasonRefused, tt.why)
		p := c.pods(app)[0]
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Running != nil {
				c.t.Errorf("pod %s runs: %+v", app, s)
			}
			if m, err := c.container(p.UID, s.Name); err == nil {
				c.t.Errorf("the agent has taken a container of pod %s: %+v", app, m)
			}
		}
	}
}

func (c *cluster) changeEndpoint(patch string) {
	c.t.Helper()
	e := &v1alpha1.GraftEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "six"}}
	if err := c.Admin.Patch(context.Background(), e, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		c.t.Fatal(err)
	}
}

// serveNames answers questions for names at the remote until the subtest ends.
func (c *cluster) serveNames() {
	c.t.Helper()
	var s net.PacketConn
	err := c.Remote.Do(func() (err error) {
		s, err = net.ListenPacket("udp6", netip.AddrPortFrom(testkit.RemoteAddr6, 53).String())
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for buf := make([]byte, 4096); ; {
			n, from, err := s.ReadFrom(buf)
			if err != nil {
				return // it is closed
			}
			if answer, err := answerName(buf[:n]); err == nil {
				_, _ = s.WriteTo(answer, from) // who does not hear it asks again
			}
		}
	}()
	c.t.Cleanup(func() {
		s.Close()
		<-ended
	})
}

// answerName is the remote's answer to a question: the remote has an address of IPv6, and other names
// do not exist.
func answerName(question []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil {
		return nil, err
	}
	if len(m.Questions) != 1 {
		return nil, errors.New("not one question")
	}
	q := m.Questions[0]
	m.Header = dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionAvailable: true, RecursionDesired: m.RecursionDesired}
	m.Answers, m.Authorities, m.Additionals = nil, nil, nil
	switch {
	case !strings.EqualFold(q.Name.String(), six+"."):
		m.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeAAAA:
		h := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 60}
		m.Answers = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.AAAAResource{AAAA: testkit.RemoteAddr6.As16()}}}
	}
	return m.Pack()
}
