package e2e

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// testCharged has containerd write the log of a pod that prints without end. That pod is charged,
// and charged more than another one, which is as busy and prints nothing. What is charged is taken
// from its quota.
func (c *cluster) testCharged() {
	const limits = `, resources: {requests: {cpu: 10m}, limits: {cpu: 300m}}`
	c.lend(`{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: busy, namespace: shop},
		spec: {podSelector: {matchLabels: {busy: "true"}}, egress: [{endpoint: node, to: [10.96.0.0/16]}]}}`)
	for name, program := range map[string]string{"noisy": "while :; do echo 0123456789012345678901234567890123456789; done", "silent": "while :; do :; done"} {
		c.lend(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, namespace: shop, labels: {app: %[1]s, busy: "true"}}, spec: {%[2]s containers: [%[3]s]}}`,
			name, podSpec, container("main", []string{"sh", "-c", program}, limits)))
	}
	testkit.Eventually(c.t, func() error {
		noisy, err := c.charged("noisy")
		if err != nil {
			return err
		}
		silent, err := c.charged("silent")
		if err != nil {
			return err
		}
		const enough = 100_000 // microseconds; containerd has spent some for each before the agent knew them
		if noisy < enough || noisy <= silent {
			return fmt.Errorf("the pod that prints is charged %d us, and the other one %d us", noisy, silent)
		}
		return nil
	})
}

// charged returns how many microseconds of containerd's time a pod's container has been charged.
func (c *cluster) charged(app string) (int64, error) {
	p := c.pods(app)[0]
	if p.Status.Phase != corev1.PodRunning || len(p.Status.ContainerStatuses) == 0 {
		return 0, fmt.Errorf("pod %s does not run\n%s", app, c.describe("shop"))
	}
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	all, err := c.asked().Charges()
	if err != nil {
		return 0, err
	}
	for i := range all.Containers {
		if a := &all.Containers[i]; a.ID == id {
			if a.Mode != "quota" {
				return 0, fmt.Errorf("the mode of pod %s is %q", app, a.Mode)
			}
			for _, b := range a.Borrowed {
				if b.Source == "shared" {
					return b.US, nil
				}
			}
			return 0, nil
		}
	}
	return 0, fmt.Errorf("the agent has no account of pod %s, container %s", app, id)
}
