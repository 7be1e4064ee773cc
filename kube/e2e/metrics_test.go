package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// measured waits until the processes serve what docs/METRICS.md has of them.
func (c *cluster) measured() {
	c.t.Helper()
	doc, err := os.ReadFile(filepath.Join(kubetest.Root(c.t), "docs", "METRICS.md"))
	if err != nil {
		c.t.Fatal(err)
	}
	library := regexp.MustCompile("(?m)^\\| `((?:controller_runtime|workqueue|rest_client|leader_election)_[a-z_]+)`").FindAllStringSubmatch(string(doc), -1)
	if len(library) == 0 {
		c.t.Fatal("docs/METRICS.md has no metric of tsugiki-kube")
	}
	c.metric(testkit.HostAddr4.String()+":9469", `tsugiki_containers{state="running"}`)
	c.metric(testkit.HostAddr4.String()+":9471", `controller_runtime_reconcile_time_seconds_bucket{controller="pod",`)
	c.rolledOut("tsugiki", "tsugiki-kube-cluster")
	testkit.Eventually(c.t, func() error {
		all := ""
		var list corev1.PodList
		if err := c.Admin.List(context.Background(), &list, client.InNamespace("tsugiki"), client.MatchingLabels{"app": "tsugiki-kube-cluster"}); err != nil {
			return err
		}
		for i := range list.Items {
			if list.Items[i].DeletionTimestamp != nil {
				continue
			}
			text, err := c.scrape(list.Items[i].Status.PodIP + ":9472")
			if err != nil {
				return err
			}
			all += text
		}
		for _, m := range library {
			if !strings.Contains(all, "# TYPE "+m[1]+" ") {
				return fmt.Errorf("no process of the cluster has %s:\n%s", m[1], all)
			}
		}
		if want := `controller_runtime_reconcile_time_seconds_bucket{controller="graftpolicy",`; !strings.Contains(all, want) {
			return fmt.Errorf("nobody has %s", want)
		}
		return nil
	})
}

// metric waits until a process serves a metric.
func (c *cluster) metric(address, want string) {
	c.t.Helper()
	testkit.Eventually(c.t, func() error {
		text, err := c.scrape(address)
		if err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("%s does not serve %s:\n%s", address, want, text)
		}
		return err
	})
}

func (c *cluster) scrape(address string) (string, error) {
	out, err := c.Host.Command(context.Background(), "curl", "-fsS", "--connect-timeout", "5", "http://"+address+"/metrics").Output()
	return string(out), err
}
