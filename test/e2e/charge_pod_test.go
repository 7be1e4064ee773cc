package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit/engines"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// TestChargePod has containerd write the log of a pod's container: a line at a time, to a path
// without the container's id. The container is charged for what containerd spends, and charged more
// than a container in another pod, which is as busy and prints nothing. In the soak the shares are
// measured too: the container is charged nine tenths at least, for containerd has nothing else to do,
// and the other one next to nothing.
func TestChargePod(t *testing.T) {
	t.Parallel()
	n := newNode(t, engineCase{engine: "cri"}, "[charge]", `within = "%s"`, `shared = ["containerd"]`)
	const noisy, silent = 0.5, 0.25 // quotas, by which they are told apart here
	n.run(t, engines.Container{Name: "noisy", CPUs: noisy, Args: []string{"sh", "-c", "while :; do echo 0123456789012345678901234567890123456789; done"}})
	n.run(t, engines.Container{Name: "silent", CPUs: silent, Args: []string{"sh", "-c", "while :; do :; done"}})
	// Until then it has made the pods, and the agent did not know them.
	began := n.awaitPods(t, podCharges{}, noisy, silent, func(since podCharges) error {
		if since.noisy < 100*time.Millisecond {
			return fmt.Errorf("the container that prints is charged %v", since.noisy)
		}
		return nil
	})
	n.awaitPods(t, began, noisy, silent, func(since podCharges) error {
		if since.noisy <= since.silent {
			return fmt.Errorf("the container that prints is charged %v, and the other one %v", since.noisy, since.silent)
		}
		return nil
	})
	if testkit.Soaking() {
		n.checkPodShares(t, began, noisy, silent)
	}
	for _, name := range []string{"noisy", "silent"} {
		if err := n.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

// checkPodShares measures which part of a second of containerd's time two containers are charged.
// It is for the soak: the parts depend on how busy the machine is.
func (n *node) checkPodShares(t *testing.T, began podCharges, noisy, silent float64) {
	t.Helper()
	since := n.awaitPods(t, began, noisy, silent, func(since podCharges) error {
		if since.spent < time.Second {
			return fmt.Errorf("containerd has spent %v", since.spent)
		}
		return nil
	})
	t.Logf("of %v that containerd has spent, %v are for the container that prints, %v for the other one", since.spent, since.noisy, since.silent)
	if since.noisy < since.spent*9/10 {
		t.Errorf("of %v that containerd has spent, the container that prints is charged %v", since.spent, since.noisy)
	}
	if since.silent > since.spent/50 {
		t.Errorf("of %v that containerd has spent, the container that prints nothing is charged %v", since.spent, since.silent)
	}
}

// podCharges are what containerd has spent, and what of it two containers are charged.
type podCharges struct{ spent, noisy, silent time.Duration }

// awaitPods waits until something is so of what was charged since a moment. It returns that, or
// if that moment is the beginning, what is charged by now.
func (n *node) awaitPods(t *testing.T, from podCharges, noisy, silent float64, so func(since podCharges) error) (since podCharges) {
	t.Helper()
	us := func(d int64) time.Duration { return time.Duration(d) * time.Microsecond }
	testkit.Eventually(t, func() error {
		var now podCharges
		all := n.asked().charges(t)
		for _, d := range all.Shared {
			now.spent += us(d.US)
		}
		for i := range all.Containers {
			switch c := &all.Containers[i]; c.Before.QuotaUS {
			case int64(noisy * 100_000):
				now.noisy = borrowedFrom(c, "shared")
			case int64(silent * 100_000):
				now.silent = borrowedFrom(c, "shared")
			}
		}
		since = podCharges{now.spent - from.spent, now.noisy - from.noisy, now.silent - from.silent}
		return so(since)
	})
	return since
}
