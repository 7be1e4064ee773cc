package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// cluster is a cluster whose node has an agent and tsugiki-kube.
type cluster struct {
	*kubetest.Cluster
	t     *testing.T
	dir   string // of the agent's files
	agent *kubetest.Process
	kube  *kubetest.Process
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("TSUGIKI_KUBE") == "" {
		t.Skip("skip: needs a cluster, which make test-kube has")
	}
	bin := testkit.BuildTsugiki(t)
	kube := filepath.Join(bin, "kube", "tsugiki-kube")
	if _, err := os.Stat(kube); err != nil {
		t.Skipf("skip: needs tsugiki-kube, which make kube builds")
	}
	image, err := engines.BuildImage(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// Paths of unix sockets are short: so is this one.
	dir, err := os.MkdirTemp("/tmp", "agent-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &cluster{t: t, dir: dir}
	run := filepath.Join(dir, "run")
	c.Cluster = kubetest.StartCluster(t, engines.Options{
		Image:    image,
		Runtimes: map[string]string{"tsugiki": filepath.Join(bin, "tsugiki-runtime")},
		Env:      []string{"TSUGIKI_AGENT=" + api.SocketIn(run)},
		Files:    map[string]string{"/etc/tsugiki/agent.toml": fmt.Sprintf("run_dir = %q\n", run)},
	})
	file := filepath.Join(dir, "agent.toml")
	if err := os.WriteFile(file, []byte("[kubernetes]\ngrants = true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.agent = kubetest.Run(t, c.Host, filepath.Join(bin, "tsugiki"), "agent", "--config", file, "--run-dir", run, "--state-dir", filepath.Join(dir, "state"))
	kubetest.CreateFiles(t, c.Admin, []string{"DaemonSet", "Deployment"}, "crds/*.yaml", "manifests/*.yaml")
	c.kube = kubetest.Run(t, c.Host, kube, "node", "--kubeconfig", c.Kubeconfig("admin"), "--node", kubetest.NodeName,
		"--node-ips", testkit.HostAddr4.String()+","+testkit.HostAddr6.String(), "--agent", api.SocketIn(run), "--log-level", "debug")
	kubetest.Run(t, c.Host, kube, "cluster", "--kubeconfig", c.Kubeconfig("admin"))
	return c
}

// apply makes objects.
func (c *cluster) apply(text string) {
	c.t.Helper()
	kubetest.Create(c.t, c.Admin, text)
}

// rolledOut waits until all pods of a Deployment are available, and returns them.
func (c *cluster) rolledOut(name string) []corev1.Pod {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		var d appsv1.Deployment
		if err := c.Admin.Get(c.t.Context(), types.NamespacedName{Namespace: "shop", Name: name}, &d); err != nil {
			return err
		}
		if d.Status.AvailableReplicas != *d.Spec.Replicas || d.Status.ObservedGeneration != d.Generation {
			return fmt.Errorf("Deployment %s has %d of %d replicas\n%s", name, d.Status.AvailableReplicas, *d.Spec.Replicas, c.describe(name))
		}
		return nil
	})
	return c.pods(name)
}

// pods returns the pods of an app.
func (c *cluster) pods(app string) []corev1.Pod {
	c.t.Helper()
	var list corev1.PodList
	if err := c.Admin.List(c.t.Context(), &list, client.InNamespace("shop"), client.MatchingLabels{"app": app}); err != nil {
		c.t.Fatal(err)
	}
	return list.Items
}

// describe says why pods of an app do not run.
func (c *cluster) describe(app string) string {
	var b strings.Builder
	for _, p := range c.pods(app) {
		fmt.Fprintf(&b, "pod %s: %s %+v\n", p.Name, p.Status.Phase, p.Status.ContainerStatuses)
	}
	var list eventsv1.EventList
	if err := c.Admin.List(c.t.Context(), &list, client.InNamespace("shop")); err != nil {
		fmt.Fprintln(&b, err)
	}
	for _, e := range list.Items {
		fmt.Fprintf(&b, "event of %s: %s %s\n", e.Regarding.Name, e.Reason, e.Note)
	}
	return b.String()
}

// event waits for an event on a pod of an app.
func (c *cluster) event(app, reason, note string) {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		var list eventsv1.EventList
		if err := c.Admin.List(c.t.Context(), &list, client.InNamespace("shop")); err != nil {
			return err
		}
		for _, e := range list.Items {
			if strings.HasPrefix(e.Regarding.Name, app) && e.Reason == reason && strings.Contains(e.Note, note) {
				return nil
			}
		}
		return fmt.Errorf("no event %s %q of %s:\n%s", reason, note, app, c.describe(app))
	})
}

// exec runs a program in a pod, by kubectl.
func (c *cluster) exec(pod string, args ...string) (string, error) {
	return c.Kubectl(append([]string{"exec", "-n", "shop", pod, "--"}, args...)...)
}
