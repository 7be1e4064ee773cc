package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tsugiki/tsugiki/internal/setup"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// testUninstalled takes all away: first while a grafted pod runs, which goes on.
func (c *cluster) testUninstalled(before string) {
	containerd, deploy := c.containerd(), filepath.Join(kubetest.Root(c.t), "deploy")
	l := c.lasting()
	c.kubectl("delete", "-f", filepath.Join(deploy, "manifests", "workloads.yaml"), "--wait", "--timeout", testkit.Patience.String())
	c.kubectl("apply", "-f", filepath.Join(deploy, "uninstall.yaml"))
	testkit.Eventually(c.t, func() error {
		out, err := c.Kubectl("logs", "-n", "tsugiki", "daemonset/tsugiki-uninstall", "-c", "uninstall")
		if want := "of the RuntimeClass tsugiki still run on this node"; err != nil || !strings.Contains(out, want) {
			return errors.Join(fmt.Errorf("nothing says that containers are left: %s\n%s", out, c.describe("tsugiki")), err)
		}
		return nil
	})
	l.goOn()
	c.kubectl("delete", "namespace", "shop", "--wait", "--timeout", testkit.Patience.String())
	testkit.Eventually(c.t, func() error {
		var d appsv1.DaemonSet
		if err := c.Admin.Get(context.Background(), types.NamespacedName{Namespace: "tsugiki", Name: "tsugiki-uninstall"}, &d); err != nil {
			return err
		}
		if d.Status.NumberAvailable != 1 {
			out, err := c.Kubectl("logs", "-n", "tsugiki", "daemonset/tsugiki-uninstall", "-c", "uninstall")
			return errors.Join(fmt.Errorf("it is not taken away: %s\n%s", out, c.describe("tsugiki")), err)
		}
		return nil
	})
	for _, file := range []string{containerdConfig, otherConfig} {
		if now := c.readNode(file); now != before {
			c.t.Errorf("containerd's configuration %s was\n%s\nand is\n%s", file, before, now)
		}
	}
	for _, path := range []string{"/opt/tsugiki", "/etc/tsugiki", "/run/tsugiki", "/var/lib/tsugiki", setup.NetworkFile, pluginDir + "/tsugiki-cni"} {
		if _, err := os.Stat(c.Rig.Outside(path)); !errors.Is(err, fs.ErrNotExist) {
			c.t.Errorf("%s is left: %v", path, err)
		}
	}
	// containerd goes on, and the folder that it watches stays.
	if now := c.containerd(); now != containerd {
		c.t.Errorf("containerd was process %d and is %d", containerd, now)
	}
	if st, err := os.Stat(c.Rig.Outside(filepath.Dir(setup.NetworkFile))); err != nil || !st.IsDir() {
		c.t.Errorf("the folder of the network: %v", err)
	}
	if left := slices.Sorted(maps.Values(c.processes())); len(left) > 0 {
		c.t.Errorf("processes are left: %v", left)
	}
	if left := c.agentGroups(); len(left) > 0 {
		c.t.Errorf("groups are left: %v", left)
	}
	c.forgotten()
}

// forgotten deletes the rest, as deploy/uninstall.yaml says, and looks for objects of the cluster that are left. That of
// the chart alone is helm's to delete.
func (c *cluster) forgotten() {
	c.t.Helper()
	deploy := filepath.Join(kubetest.Root(c.t), "deploy")
	c.kubectl("delete", "-f", filepath.Join(deploy, "manifests"), "--ignore-not-found", "--timeout", testkit.Patience.String())
	c.kubectl("delete", "-f", filepath.Join(deploy, "crds"), "--timeout", testkit.Patience.String())
	kinds := "namespaces,clusterroles,clusterrolebindings,runtimeclasses,validatingadmissionpolicies,validatingadmissionpolicybindings,flowschemas,customresourcedefinitions"
	for _, name := range strings.Fields(c.kubectl("get", kinds, "-o", "name")) {
		if strings.Contains(name, "tsugiki") && name != "runtimeclass.node.k8s.io/tsugiki-translate" {
			c.t.Errorf("%s is left", name)
		}
	}
}

// agentGroups are the cgroups of the rig that an agent makes: its own, and those around containers.
func (c *cluster) agentGroups() (list []string) {
	c.t.Helper()
	tops, err := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(c.Rig.Group()))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, top := range append(tops, c.Rig.Group()) {
		err := filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // pods end
			}
			if err == nil && e.IsDir() && path != top && strings.HasPrefix(e.Name(), "tsugiki") {
				list = append(list, path)
			}
			return err
		})
		if err != nil {
			c.t.Fatal(err)
		}
	}
	return list
}
