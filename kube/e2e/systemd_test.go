package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// TestContainerdIsStartedAnew has a machine with systemd, whose containerd does not know the runtime: the
// container "agent" has systemd start containerd anew. When containerd knows the runtime, it does not.
func TestContainerdIsStartedAnew(t *testing.T) {
	bin := testkit.BuildTsugiki(t)
	kube := filepath.Join(bin, "kube", "tsugiki-kube")
	if _, err := os.Stat(kube); err != nil {
		t.Skip("skip: needs tsugiki-kube, which make kube builds")
	}
	m := engines.NewMachine(t, testkit.Build(t, testkit.Options{}).Host)
	must := func(name string, args ...string) string {
		t.Helper()
		out, err := m.Try(name, args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	containerd := func() string { return must("systemctl", "show", "--property", "MainPID", "--value", "containerd") }
	// The shell is the parent, as containerd's shim is a container's. It is in no pod, so the agent is not
	// started.
	agent := func() {
		t.Helper()
		out := must("sh", "-c", `"$0" agent --containerd-unit containerd 2>&1; echo`, kube)
		if want := "no cgroup of this process is a pod's"; !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	must("mkdir", "-p", "/run/tsugiki")
	must("systemctl", "start", "containerd")
	first := containerd()
	agent()
	second := containerd()
	if second == first || second == "0" {
		t.Errorf("containerd was process %s and is %s", first, second)
	}
	must(filepath.Join(bin, "tsugiki"), "setup", "--yes", "--runtime", filepath.Join(bin, "tsugiki-runtime"), "containerd")
	agent()
	third := containerd()
	if third == second || third == "0" {
		t.Errorf("with the runtime in its configuration, containerd was process %s and is %s", second, third)
	}
	agent()
	if now := containerd(); now != third {
		t.Errorf("containerd knows the runtime, was process %s and is %s", third, now)
	}
	// Nobody can say whether it knows the runtime.
	out := must("sh", "-c", `"$0" agent --containerd-unit containerd --containerd /run/nowhere.sock 2>&1; echo`, kube)
	if now := containerd(); now != third || !strings.Contains(out, "containerd is not started anew") {
		t.Errorf("containerd gives no answer, was process %s and is %s:\n%s", third, now, out)
	}
}
