package kubetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// Cluster is a cluster of one node: the host of a topology. Its remote is a machine outside of the
// cluster, and the node's default router. Pods are reached from there by the node's addresses.
type Cluster struct {
	*APIServer
	*testkit.Topology
	Rig   *engines.Rig
	Admin client.Client // connects from the remote: it goes on when the node is cut off
	admin string        // kubectl's configuration
	t     testing.TB
}

// With is the cluster for a subtest.
func (c *Cluster) With(t testing.TB) *Cluster {
	of := *c
	of.t = t
	return &of
}

// sysctls are what a kubelet writes into the machine's, and so into that of everybody. In the rig,
// files take their place.
var sysctls = map[string]string{"vm/overcommit_memory": "1\n", "kernel/panic": "10\n", "kernel/panic_on_oops": "1\n"}

// kubeletConfig is for a machine that others use too. %[1]s is the node's address, %[2]s the cgroup,
// %[3]s the rig's folder, %[4]s the engine's socket.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /%[2]s
cgroupsPerQOS: true
containerRuntimeEndpoint: unix://%[4]s
enforceNodeAllocatable: [none]
evictionHard: {memory.available: 1Mi}
failCgroupV1: false
failSwapOn: false
imageGCHighThresholdPercent: 100
oomScoreAdj: 0
podLogsDir: %[3]s/pods
protectKernelDefaults: true
readOnlyPort: 0
resolvConf: ""
seccompDefault: true
volumePluginDir: %[3]s/volumes
`

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %[2]q}
conntrack: {maxPerCore: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s}
hostnameOverride: %[1]s
mode: nftables
`

// sockets are where the engines of nodes listen.
var sockets = map[string]string{"cri": "/run/containerd/containerd.sock", "crio": "/run/crio/crio.sock"}

// StartCluster starts a cluster whose pods may have the image and the runtimes of the options, and
// other images. Its node has CRI-O where the options name the folder of that, and else containerd. It
// skips the test where a program is missing.
func StartCluster(t testing.TB, o engines.Options, images ...*engines.Image) *Cluster {
	t.Helper()
	engine := "cri"
	if o.CRIO != "" {
		engine = "crio"
	}
	kubelet, proxy := Program(t, "kubelet"), Program(t, "kube-proxy")
	controllers, scheduler := Program(t, "kube-controller-manager"), Program(t, "kube-scheduler")
	need(t, "etcd", "runc", "nft", "conntrack")
	c := &Cluster{t: t, Topology: testkit.Build(t, testkit.Options{})}
	c.Rig = engines.NewRig(t, c.Host, o)
	started := c.Rig.Start(t, engine)
	for _, i := range images {
		if err := started.Load(i); err != nil {
			t.Fatal(err)
		}
	}
	c.APIServer = StartAPIServer(t, c.Host, c.Rig)
	c.Admin, c.admin = Client(t, c.ConfigFrom(c.Remote, "admin")), c.Kubeconfig("admin")
	c.prepareNode(sockets[engine])
	Run(t, c.Rig, controllers, "--kubeconfig", c.Kubeconfig("system:kube-controller-manager"), "--leader-elect=false",
		"--bind-address", "127.0.0.1", "--use-service-account-credentials", "--service-account-private-key-file", c.file("key"), "--root-ca-file", c.file("certs/apiserver.crt"))
	Run(t, c.Rig, scheduler, "--kubeconfig", c.Kubeconfig("system:kube-scheduler"), "--leader-elect=false", "--bind-address", "127.0.0.1")
	dir := c.Rig.Dir()
	Run(t, c.Rig, kubelet, "--config", filepath.Join(dir, "kubelet.yaml"), "--kubeconfig", c.Kubeconfig("system:node:"+NodeName),
		"--node-ip", testkit.HostAddr4.String(), "--hostname-override", NodeName, "--root-dir", filepath.Join(dir, "kubelet"))
	Run(t, c.Rig, proxy, "--config", filepath.Join(dir, "proxy.yaml"))
	c.awaitNode()
	return c
}

// serviceRange has the addresses of Services.
const serviceRange = "10.96.0.0/16"

// prepareNode connects the node with its default router, which sends packets for Services to it. It
// writes files of the kubelet and kube-proxy, and makes the kubelet's cgroups in all
// hierarchies: it makes groups below, and expects that cpuset's files are filled. The rig removes
// groups of its name.
func (c *Cluster) prepareNode(socket string) {
	c.t.Helper()
	group := filepath.Base(c.Rig.Group())
	c.Must("ip", "route", "add", "default", "via", testkit.RemoteAddr4.String())
	route := c.Remote.Command(context.Background(), "ip", "route", "add", serviceRange, "via", testkit.HostAddr4.String())
	if out, err := route.CombinedOutput(); err != nil {
		c.t.Fatalf("route to the node: %v\n%s", err, out)
	}
	// kube-proxy refuses connections to Services without endpoints by ICMP. The kernel limits these
	// messages together with redirects, which the remote would get: it is on the router's own link.
	for name, value := range map[string]string{"ipv4.conf.all.send_redirects": "0", "ipv4.conf.srv.send_redirects": "0", "ipv4.icmp_ratelimit": "0"} {
		if err := c.Host.SetSysctl("net."+name, value); err != nil {
			c.t.Fatal(err)
		}
	}
	err := errors.Join(
		c.Write("kubelet.yaml", fmt.Sprintf(kubeletConfig, testkit.HostAddr4, group, c.Rig.Dir(), socket)),
		c.Write("proxy.yaml", fmt.Sprintf(proxyConfig, NodeName, c.Kubeconfig("system:kube-proxy"))),
	)
	if err != nil {
		c.t.Fatal(err)
	}
	controllers, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, file := range controllers {
		hierarchy := filepath.Dir(file)
		dir := filepath.Join(hierarchy, group)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			c.t.Fatal(err)
		}
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			text, err := os.ReadFile(filepath.Join(hierarchy, name))
			if err != nil {
				continue // of another controller
			}
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	for name, text := range sysctls {
		file := filepath.Join(c.Rig.Dir(), strings.ReplaceAll(name, "/", "-"))
		if err := c.Write(filepath.Base(file), text); err != nil {
			c.t.Fatal(err)
		}
		c.Must("mount", "--bind", file, "/proc/sys/"+name)
	}
}

// Write writes a file into the rig's folder.
func (c *Cluster) Write(name, text string) error {
	return os.WriteFile(c.Rig.Outside(filepath.Join(c.Rig.Dir(), name)), []byte(text), 0o600)
}

// Must runs a program on the node, and returns what it prints.
func (c *Cluster) Must(name string, args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	out, err := c.Rig.Command(ctx, name, args...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// awaitNode waits until the node takes pods.
func (c *Cluster) awaitNode() {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		var n corev1.Node
		if err := c.Admin.Get(context.Background(), types.NamespacedName{Name: NodeName}, &n); err != nil {
			return err
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("the node is not ready: %+v", n.Status.Conditions)
	})
}

// Kubectl runs kubectl as the cluster's administrator, and returns what it prints.
func (c *Cluster) Kubectl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	out, err := c.KubectlCommand(ctx, args...).CombinedOutput()
	return string(out), err
}

// KubectlCommand prepares kubectl as the cluster's administrator, on the node.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) *testkit.Cmd {
	c.t.Helper()
	return c.Rig.Command(ctx, Program(c.t, "kubectl"), append([]string{"--kubeconfig", c.admin}, args...)...)
}
