package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/node"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// lasting are two connections that have to outlast a fault: one of the remote to the pod of redis,
// and one of a pod to redis.
type lasting struct {
	c      *cluster
	remote net.Conn
	lines  *bufio.Reader
	pid    int // of the pod's program, which ends with its connection
}

func (c *cluster) lasting() *lasting {
	c.t.Helper()
	p := c.pods("steady")[0]
	m, err := c.container(p.UID, "main")
	if err != nil {
		c.t.Fatal(err)
	}
	l := &lasting{c: c, pid: m.PID}
	err = c.Remote.Do(func() (err error) {
		l.remote, err = net.Dial("tcp4", testkit.HostAddr4.String()+":6379")
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { l.remote.Close() })
	l.lines = bufio.NewReader(l.remote)
	l.goOn()
	return l
}

// goOn fails the test unless redis answers by both connections.
func (l *lasting) goOn() {
	l.c.t.Helper()
	if _, err := l.remote.Write([]byte("PING\r\n")); err != nil {
		l.c.t.Fatalf("the remote's connection: %v", err)
	}
	if line, err := l.lines.ReadString('\n'); err != nil || line != "+PONG\r\n" {
		l.c.t.Fatalf("by the remote's connection, redis answers %q, %v", line, err)
	}
	// The program writes down redis's answers.
	answers := func() int64 {
		s, err := os.Stat(fmt.Sprintf("/proc/%d/root/tmp/out", l.pid))
		if errors.Is(err, fs.ErrNotExist) {
			return 0 // it has just begun, or ended
		}
		if err != nil {
			l.c.t.Fatalf("the program with the pod's connection: %v", err)
		}
		return s.Size()
	}
	before := answers()
	testkit.Eventually(l.c.t, func() error {
		if now := answers(); now == before {
			return fmt.Errorf("redis has answered the pod with %d bytes, and not since", now)
		}
		return nil
	})
}

// testServerDown kills the API server, and then a container: the kubelet starts it again, and the
// agent has the pod's grant.
func (c *cluster) testServerDown() {
	l, p := c.lasting(), c.pods("web")[0]
	c.Server.Kill()
	c.kill(&p, "main")
	c.served(c.hostPort(&p))
	l.goOn()
	c.Server.Start()
	c.Await()
	c.rolledOut("shop", "web")
	c.settled()
	l.goOn()
}

// testCutOff cuts the node off from the API server, and then ends its connections. What is deleted
// meanwhile is found afterwards.
func (c *cluster) testCutOff() {
	l, web := c.lasting(), c.pods("web")[0].Name
	c.Must("nft", `add table inet cut
		add chain inet cut in { type filter hook input priority -10; }
		add chain inet cut out { type filter hook output priority 10; }
		add rule inet cut in iifname != "srv" tcp dport 6443 drop
		add rule inet cut out oifname != "srv" tcp sport 6443 drop`)
	c.deleteNode()
	killed := c.Must("ss", "-K", "-Htn", "dport = :443 or dport = :6443")
	if !strings.Contains(killed, "10.96.0.1:443") {
		c.t.Errorf("no client of the API server's Service was there:\n%s", killed)
	}
	c.Must("nft", "delete table inet cut")
	c.condition("web", corev1.ConditionFalse, "there is no GraftEndpoint node")
	l.goOn()
	if out, err := c.ping(web); err == nil {
		c.t.Errorf("without the endpoint, redis answers %q", out)
	}
	c.apply(endpointNode)
	c.condition("web", corev1.ConditionTrue, "")
	c.says("PONG\n", web, pingRedis...)
	c.settled()
	l.goOn()
}

var pingRedis = []string{"redis-cli", "-h", testkit.HostAddr4.String(), "ping"}

func (c *cluster) ping(pod string) (string, error) { return c.exec(pod, pingRedis...) }

func (c *cluster) deleteNode() {
	c.t.Helper()
	for _, o := range kubetest.Parse(c.t, []byte(endpointNode)) {
		if err := c.Admin.Delete(context.Background(), o); err != nil {
			c.t.Fatal(err)
		}
	}
}

// condition waits until all pods of an app have the condition that they are grafted or not, with a
// message.
func (c *cluster) condition(app string, status corev1.ConditionStatus, message string) {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		for _, p := range c.pods(app) {
			if !slices.ContainsFunc(p.Status.Conditions, func(d corev1.PodCondition) bool {
				return d.Type == node.ConditionGrafted && d.Status == status && strings.Contains(d.Message, message)
			}) {
				return fmt.Errorf("pod %s has no condition %s=%s, %q: %+v", p.Name, node.ConditionGrafted, status, message, p.Status.Conditions)
			}
		}
		return nil
	})
}

// unserved waits until the Service of the web servers has nobody behind it: kube-proxy refuses
// connections then. One that was led to a server before waits there, as the server does not hear.
func (c *cluster) unserved() {
	c.t.Helper()
	web := net.JoinHostPort(c.service("web"), "80")
	testkit.Eventually(c.t, func() error {
		err := c.Remote.Do(func() error {
			conn, err := net.DialTimeout("tcp4", web, time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		})
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return errors.Join(errors.New("without a rule, the Service does not refuse"), err)
		}
		return nil
	})
}

// unheard fails the test if a server of the node answers the remote. Nothing comes back from one
// that does not hear; by then a connection of the same link has carried something there and back.
func (c *cluster) unheard(l *lasting, servers []string) {
	c.t.Helper()
	begun := map[string]int{}
	if err := c.Remote.Do(func() error {
		for _, at := range servers {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			c.t.Cleanup(func() { unix.Close(s) })
			if err := unix.Connect(s, sockaddr.Of(netip.MustParseAddrPort(at))); !errors.Is(err, unix.EINPROGRESS) {
				return fmt.Errorf("connect to %s: %w, want EINPROGRESS", at, err)
			}
			begun[at] = s
		}
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	l.goOn()
	for at, s := range begun {
		_, err := unix.Getpeername(s)
		failed, _ := unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_ERROR)
		if !errors.Is(err, unix.ENOTCONN) || failed != 0 {
			c.t.Errorf("without a rule, %s has answered: %v, %v", at, err, unix.Errno(failed))
		}
	}
}

// testDeleted deletes resources that pods use. Their connections go on, and they make no new ones;
// their servers take none, by a Service or at the node's address, until the resources are back.
func (c *cluster) testDeleted() {
	l, web := c.lasting(), c.pods("web")
	ports := []string{c.hostPort(&web[0]), c.hostPort(&web[1])}
	c.deleteNode()
	c.condition("web", corev1.ConditionFalse, "there is no GraftEndpoint node")
	c.event("web", node.ReasonWithdrawn, "198.51.100.1/32:6379")
	if out, err := c.ping(web[0].Name); err == nil {
		c.t.Errorf("without the endpoint, redis answers %q", out)
	}
	c.unserved()
	c.unheard(l, ports)
	c.apply(endpointNode)
	c.condition("web", corev1.ConditionTrue, "")
	c.says("PONG\n", web[0].Name, pingRedis...)
	for _, at := range ports {
		c.served(at)
	}
	if err := c.Admin.DeleteAllOf(context.Background(), &v1alpha1.GraftPolicy{}, client.InNamespace("shop")); err != nil {
		c.t.Fatal(err)
	}
	c.condition("web", corev1.ConditionFalse, "no GraftPolicy of namespace shop selects the pod")
	c.event("web", node.ReasonWithdrawn, "0.0.0.0:80")
	c.unserved()
	c.unheard(l, ports)
	c.apply(policies)
	c.condition("web", corev1.ConditionTrue, "")
	for _, at := range ports {
		c.served(at)
	}
	c.settled()
	l.goOn()
}

// testReplaced replaces tsugiki-kube, as an upgrade does.
func (c *cluster) testReplaced() {
	l := c.lasting()
	for _, workload := range []string{"daemonset/tsugiki-kube-node", "deployment/tsugiki-kube-cluster"} {
		c.restart("tsugiki", workload)
	}
	c.daemonsReady()
	c.rolledOut("tsugiki", "tsugiki-kube-cluster")
	c.settled()
	c.restart("shop", "deployment/web")
	c.rolledOut("shop", "web")
	c.served(c.service("web"))
	c.settled()
	l.goOn()
}

func (c *cluster) restart(namespace, workload string) {
	c.t.Helper()
	if out, err := c.Kubectl("rollout", "restart", workload, "-n", namespace); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
}

// testAgentRestarted kills the agent, and starts another one. It is given all grants again.
func (c *cluster) testAgentRestarted() {
	l, p := c.lasting(), c.pods("web")[0]
	c.agent.Kill()
	l.goOn()
	c.agent.Start()
	c.awaitAgent()
	c.settled()
	l.goOn()
	c.served(c.hostPort(&p))
	c.restart("shop", "deployment/web")
	c.rolledOut("shop", "web")
	c.served(c.service("web"))
	c.settled()
	l.goOn()
}

// scale has so many processes of the cluster.
func (c *cluster) scale(replicas int) {
	c.t.Helper()
	if out, err := c.Kubectl("scale", "-n", "tsugiki", "deployment/tsugiki-kube-cluster", "--replicas", strconv.Itoa(replicas)); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	c.rolledOut("tsugiki", "tsugiki-kube-cluster")
}

// testDrained drains the node, so that all pods but those of DaemonSets end, and has them come back.
func (c *cluster) testDrained() {
	// The PodDisruptionBudget lets one of two be evicted, until the other is ready elsewhere.
	c.scale(1)
	defer c.scale(2)
	drain := []string{"drain", kubetest.NodeName, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout", testkit.Patience.String()}
	if out, err := c.Kubectl(drain...); err != nil {
		c.t.Fatalf("%v: %s\n%s", err, out, c.describe("shop"))
	}
	c.settled()
	if pods, err := c.asked().Pods(); err != nil || len(pods) > 0 {
		c.t.Errorf("the agent of a node without pods: %+v, %v", pods, err)
	}
	if list, err := c.asked().Containers(); err != nil || len(list) > 0 {
		c.t.Errorf("containers of a node without pods: %+v, %v", list, err)
	}
	c.unserved()
	if out, err := c.Kubectl("uncordon", kubetest.NodeName); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	for _, app := range []string{"web", "redis"} {
		c.rolledOut("shop", app)
	}
	c.served(c.service("web"))
	c.rolledOut("shop", "steady")
	c.settled()
}
