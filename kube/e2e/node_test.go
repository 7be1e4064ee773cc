package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// imageOfKube is what deploy/manifests name, as engines call it.
const imageOfKube = "docker.io/library/tsugiki-kube:0.1"

// cluster is a cluster with all of deploy/manifests, whose node has an agent.
type cluster struct {
	*kubetest.Cluster
	t     *testing.T
	whole *testing.T // the test that a subtest is of
	run   string     // the agent's folder
	agent *kubetest.Process
}

// with is the cluster for a subtest.
func (c *cluster) with(t *testing.T) *cluster {
	of := *c
	of.Cluster, of.t = c.With(t), t
	return &of
}

// newCluster starts a cluster whose node has containerd, or CRI-O if it gets the folder of that.
func newCluster(t *testing.T, crio string) *cluster {
	t.Helper()
	return newClusterOf(t, `{agent: {install: false}}`, func(o *engines.Options) { o.CRIO = crio })
}

// newClusterOf is newCluster with values of the chart, and with other options of the rig.
func newClusterOf(t *testing.T, values string, change func(*engines.Options)) *cluster {
	t.Helper()
	bin := testkit.BuildTsugiki(t)
	kube := filepath.Join(bin, "kube", "tsugiki-kube")
	for _, name := range []string{"tsugiki-kube", "tsugiki-nri"} {
		if _, err := os.Stat(filepath.Join(bin, "kube", name)); err != nil {
			t.Skip("skip: needs tsugiki-kube and tsugiki-nri, which make kube builds")
		}
	}
	image, err := engines.BuildImage(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	alone, err := os.ReadFile(filepath.Join(kubetest.Root(t), "examples", "cni-loopback.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	ours, err := engines.ProgramImage(t.TempDir(), imageOfKube, kube, filepath.Join(bin, "kube", "tsugiki-nri"))
	if err != nil {
		t.Fatal(err)
	}
	// Paths of unix sockets are short: so is this one.
	dir, err := os.MkdirTemp("/tmp", "agent-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &cluster{t: t, whole: t, run: filepath.Join(dir, "run")}
	o := engines.Options{
		Image:    image,
		Runtimes: map[string]string{"tsugiki": filepath.Join(bin, "tsugiki-runtime"), "tsugiki-translate": filepath.Join(bin, "tsugiki-runtime")},
		Networks: map[string]string{"tsugiki-translate": string(alone)},
		Plugins:  []string{filepath.Join(bin, "tsugiki-cni")},
		Env:      []string{"TSUGIKI_AGENT=" + api.SocketIn(c.run)},
		Files:    map[string]string{"/etc/tsugiki/agent.toml": fmt.Sprintf("run_dir = %q\n", c.run)},
	}
	shared := "containerd"
	change(&o)
	if o.CRIO != "" { // it has our runtime by tsugiki setup, and one network for all
		o.Runtimes, o.Networks, shared = nil, nil, "crio"
		o.Files["/etc/tsugiki/agent.toml"] += fmt.Sprintf("[runtime]\npath = %q\n", engines.CRIORunc)
	}
	c.Cluster = kubetest.StartCluster(t, o, ours)
	c.startAgent(filepath.Join(bin, "tsugiki"), dir, shared)
	c.deploy(values) // the test has the agent, which it kills and starts
	c.rolledOut("tsugiki", "tsugiki-kube-cluster")
	c.daemonsReady()
	t.Cleanup(func() {
		if out, err := c.Kubectl("logs", "-n", "tsugiki", "daemonset/tsugiki-kube-node", "--all-containers", "--prefix"); t.Failed() {
			t.Logf("tsugiki-kube said (%v):\n%s", err, out)
		}
	})
	return c
}

// deploy makes the objects of the chart, with values.
func (c *cluster) deploy(values string) {
	c.t.Helper()
	kubetest.CreateFiles(c.t, c.Admin, []string{"RuntimeClass"}, "manifests/namespace.yaml") // the chart has that
	for _, o := range kubetest.Chart(c.t, "tsugiki", values) {
		// A kind that was just defined, or a namespace, may not be known yet.
		testkit.Eventually(c.t, func() error { return c.Admin.Create(context.Background(), o.DeepCopy()) })
	}
}

// startAgent starts the agent of the node. It charges the containers of the cluster alone, and its
// folder is /run/tsugiki for pods.
func (c *cluster) startAgent(tsugiki, dir, shared string) {
	c.t.Helper()
	config := fmt.Sprintf("[kubernetes]\ngrants = true\n[charge]\nwithin = %q\nshared = [%q]\n", "/"+filepath.Base(c.Rig.Group()), shared)
	file := filepath.Join(dir, "agent.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.agent = kubetest.Run(c.t, c.Host, tsugiki, "agent", "--config", file, "--run-dir", c.run, "--state-dir", filepath.Join(dir, "state"))
	c.awaitAgent()
	c.Must("mkdir", "/run/tsugiki")
	c.Must("mount", "--bind", c.run, "/run/tsugiki")
}

// awaitAgent waits until the agent answers.
func (c *cluster) awaitAgent() {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		if c.agent.Ended() {
			c.t.Fatal("the agent has ended")
		}
		_, err := c.asked().Pods()
		return err
	})
}

func (c *cluster) asked() *api.Client { return api.Dial(api.SocketIn(c.run)) }

// apply makes objects.
func (c *cluster) apply(text string) {
	c.t.Helper()
	kubetest.Create(c.t, c.Admin, text)
}

// lend makes objects until the subtest ends.
func (c *cluster) lend(text string) {
	c.t.Helper()
	c.apply(text)
	c.t.Cleanup(func() {
		for _, o := range kubetest.Parse(c.t, []byte(text)) {
			if err := client.IgnoreNotFound(c.Admin.Delete(context.Background(), o, client.PropagationPolicy("Background"))); err != nil {
				c.t.Error(err)
			}
		}
		c.settled()
	})
}

// rolledOut waits until all pods of a Deployment are the latest and available.
func (c *cluster) rolledOut(namespace, name string) {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		var d appsv1.Deployment
		if err := c.Admin.Get(context.Background(), types.NamespacedName{Namespace: namespace, Name: name}, &d); err != nil {
			return err
		}
		if s, n := d.Status, *d.Spec.Replicas; s.AvailableReplicas != n || s.UpdatedReplicas != n || s.Replicas != n || s.ObservedGeneration != d.Generation {
			return fmt.Errorf("Deployment %s has %d of %d replicas\n%s", name, s.AvailableReplicas, n, c.describe(namespace))
		}
		return nil
	})
}

// daemonsReady waits until tsugiki-kube runs on the node.
func (c *cluster) daemonsReady() {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		var d appsv1.DaemonSet
		if err := c.Admin.Get(context.Background(), types.NamespacedName{Namespace: "tsugiki", Name: "tsugiki-kube-node"}, &d); err != nil {
			return err
		}
		if s := d.Status; s.NumberAvailable != 1 || s.UpdatedNumberScheduled != 1 || s.ObservedGeneration != d.Generation {
			return fmt.Errorf("tsugiki-kube does not run on the node: %+v\n%s", s, c.describe("tsugiki"))
		}
		return nil
	})
}

// pods returns the pods of an app.
func (c *cluster) pods(app string) []corev1.Pod {
	c.t.Helper()
	var list corev1.PodList
	if err := c.Admin.List(context.Background(), &list, client.InNamespace("shop"), client.MatchingLabels{"app": app}); err != nil {
		c.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// describe says why pods of a namespace do not run.
func (c *cluster) describe(namespace string) string {
	var b strings.Builder
	var pods corev1.PodList
	var list eventsv1.EventList
	for _, l := range []client.ObjectList{&pods, &list} {
		if err := c.Admin.List(context.Background(), l, client.InNamespace(namespace)); err != nil {
			fmt.Fprintln(&b, err)
		}
	}
	for _, p := range pods.Items {
		fmt.Fprintf(&b, "pod %s: %s, deleted %v\n", p.Name, p.Status.Phase, p.DeletionTimestamp)
		for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			fmt.Fprintf(&b, "\tcontainer %s: ready %v, %d restarts, %+v\n", s.Name, s.Ready, s.RestartCount, s.State)
		}
	}
	for _, e := range list.Items {
		fmt.Fprintf(&b, "event of %s: %s %s\n", e.Regarding.Name, e.Reason, e.Note)
	}
	return b.String()
}

// event waits for an event on a pod of an app, and returns its message.
func (c *cluster) event(app, reason, note string) (message string) {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		var list eventsv1.EventList
		if err := c.Admin.List(context.Background(), &list, client.InNamespace("shop")); err != nil {
			return err
		}
		for _, e := range list.Items {
			if strings.HasPrefix(e.Regarding.Name, app) && e.Reason == reason && strings.Contains(e.Note, note) {
				message = e.Note
				return nil
			}
		}
		return fmt.Errorf("no event %s %q of %s:\n%s", reason, note, app, c.describe("shop"))
	})
	return message
}

// settled waits until nobody is about to end, and the agent, the slices and the ports of the node
// are those of the grafted pods that are there: nothing is left of others.
func (c *cluster) settled() {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		var pods corev1.PodList
		if err := c.Admin.List(context.Background(), &pods, client.InNamespace("shop")); err != nil {
			return err
		}
		wait := map[string]bool{} // pods by UID, and whether they need a grant
		for _, p := range pods.Items {
			if p.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s is about to end\n%s", p.Name, c.describe("shop"))
			}
			if (p.Spec.RuntimeClassName != nil || grant.Asks(&p)) && p.Spec.NodeName != "" {
				wait[string(p.UID)] = p.Status.Phase == corev1.PodRunning
			}
		}
		states, err := c.asked().Pods()
		if err != nil {
			return err
		}
		for _, s := range states {
			if _, is := wait[s.UID]; !is {
				return fmt.Errorf("the agent knows pod %s, UID %s, which is gone: %+v", s.Name, s.UID, s)
			}
			if s.Grant != nil {
				wait[s.UID] = false
			}
		}
		for uid, waits := range wait {
			if waits {
				return fmt.Errorf("the agent has no grant for the pod with the UID %s", uid)
			}
		}
		return c.strayPorts(states)
	})
}

// strayPorts tells which slice, or which listening socket of the node in the ranges of endpoints, is
// of no pod that the agent knows.
func (c *cluster) strayPorts(states []api.PodState) error {
	ports := map[string]string{} // of the node: a pod's UID
	for _, s := range states {
		if s.Grant == nil {
			continue
		}
		for _, r := range s.Grant.Containers {
			for _, e := range r.Endpoints { // NAME type ipv4 addr ADDR port PORT
				ports[e[strings.LastIndexByte(e, ' ')+1:]] = s.UID
			}
		}
	}
	var list discoveryv1.EndpointSliceList
	managed := client.MatchingLabels{discoveryv1.LabelManagedBy: "tsugiki.dev"}
	if err := c.Admin.List(context.Background(), &list, client.InNamespace("shop"), managed); err != nil {
		return err
	}
	for _, s := range list.Items {
		for _, p := range s.Ports {
			if of := ports[fmt.Sprint(*p.Port)]; of == "" || of != string(s.Endpoints[0].TargetRef.UID) {
				return fmt.Errorf("EndpointSlice %s names port %d of pod %s, which the agent has for pod %q", s.Name, *p.Port, s.Endpoints[0].TargetRef.Name, of)
			}
		}
	}
	for line := range strings.Lines(c.Must("ss", "-Htln", "sport = :6379 or sport >= :31000 and sport <= :32767")) {
		at := strings.Fields(line)[3]
		if ports[at[strings.LastIndexByte(at, ':')+1:]] == "" {
			return fmt.Errorf("somebody listens at %s of the node, which no pod has been given", at)
		}
	}
	return nil
}

// exec runs a program in a pod, by kubectl.
func (c *cluster) exec(pod string, args ...string) (string, error) {
	return c.Kubectl(append([]string{"exec", "-n", "shop", pod, "--"}, args...)...)
}

// says waits until a program in a pod prints a text.
func (c *cluster) says(want, pod string, args ...string) {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		out, err := c.exec(pod, args...)
		if err == nil && out != want {
			err = fmt.Errorf("it prints %q, want %q", out, want)
		}
		if err != nil {
			return fmt.Errorf("%s in %s: %w\n%s", strings.Join(args, " "), pod, err, out)
		}
		return nil
	})
}

// container returns what the agent says of a container of a pod.
func (c *cluster) container(uid types.UID, name string) (api.Container, error) {
	list, err := c.asked().Containers()
	if err != nil {
		return api.Container{}, err
	}
	for _, m := range list {
		if m.Pod != nil && m.Pod.UID == string(uid) && m.Pod.Container == name {
			return m, nil
		}
	}
	return api.Container{}, fmt.Errorf("the agent has no container %s of the pod with the UID %s", name, uid)
}
