package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
	"github.com/tsugiki/tsugiki/kube/install"
)

// TestContainerdIsStartedAnew has a machine with systemd, and the record of an installation: the container
// "agent" has systemd start containerd anew, once for each content of its configuration that containerd has
// not read.
func TestContainerdIsStartedAnew(t *testing.T) {
	bin := testkit.BuildTsugiki(t)
	kube := filepath.Join(bin, "kube", "tsugiki-kube")
	if _, err := os.Stat(kube); err != nil {
		t.Skip("skip: needs tsugiki-kube, which make kube builds")
	}
	m := restarted{t, engines.NewMachine(t, testkit.Build(t, testkit.Options{}).Host), kube}
	m.must("sh", "-c", `mkdir -p /run/tsugiki /var/node/opt/tsugiki && ln -s /etc /var/node/etc && echo "$0" > /var/node/opt/tsugiki/installed.json`,
		`{"files": ["bin/tsugiki"], "containerd": ["/etc/containerd/config.toml"], "runtimes": ["tsugiki"]}`)
	m.must("systemctl", "start", "containerd")
	m.agent("the runtime is not in the file", false, "does not have the runtimes that were added to it (tsugiki)")

	tell := func() {
		t.Helper()
		m.must(filepath.Join(bin, "tsugiki"), "setup", "--yes", "--runtime", install.Runtime, "containerd")
	}
	tell()
	m.agent("the unit is not there", false, "systemctl restart nowhere: exit status 5", "--containerd-unit", "nowhere")
	m.ready("the unit is not there", "of the runtimes tsugiki in /etc/containerd/config.toml: restart containerd")
	m.agent("the runtime is new", true, "containerd is started anew")
	m.ready("containerd knows it", "")
	m.agent("containerd knows it", false, "")
	m.must("sh", "-c", `printf '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]\n  SystemdCgroup = true\n' >> /etc/containerd/config.toml`)
	tell()
	m.ready("the runtime has another option", "has not read the present tables of the runtimes tsugiki in /etc/containerd/config.toml: restart containerd")
	m.agent("the runtime has another option", true, "containerd is started anew")
	m.agent("containerd knows the option", false, "")

	// containerd reads another file, which no restart changes.
	m.must("sh", "-c", `cp /etc/containerd/config.toml /etc/other.toml && mkdir -p /etc/systemd/system/containerd.service.d && echo "$0" > /etc/systemd/system/containerd.service.d/other.conf &&
		sed -i 's/SystemdCgroup = true/SystemdCgroup = false/' /etc/containerd/config.toml && systemctl daemon-reload && systemctl restart containerd`,
		"[Service]\nExecStart=\nExecStart=/usr/bin/containerd --config /etc/other.toml")
	m.agent("containerd reads another file", true, "containerd is started anew")
	for range 2 {
		m.agent("containerd was restarted in vain", false, "A restart by systemd was begun once for these tables, and is not begun again")
	}
	m.ready("containerd was restarted in vain", "containerd config dump shows that it reads another file")
	m.must("sh", "-c", "echo '# changed' >> /etc/containerd/config.toml")
	m.agent("the file has changed", true, "containerd is started anew")
	m.agent("containerd was restarted in vain again", false, "A restart by systemd was begun once")

	// Nobody can say whether it knows the runtime.
	m.agent("containerd gives no answer", false, "containerd is not started anew", "--containerd", "/run/nowhere.sock")
}

// restarted is a machine whose containerd is started anew.
type restarted struct {
	t *testing.T
	*engines.Machine
	kube string
}

func (m restarted) must(name string, args ...string) string {
	m.t.Helper()
	out, err := m.Try(name, args...)
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// containerd is the id of containerd's process.
func (m restarted) containerd() string {
	m.t.Helper()
	return m.must("systemctl", "show", "--property", "MainPID", "--value", "containerd")
}

// agent starts the container "agent", and checks whether containerd is another process afterwards. The shell
// is the parent, as containerd's shim is a container's. It is in no pod, so the agent is not started.
func (m restarted) agent(what string, anew bool, says string, args ...string) {
	m.t.Helper()
	before := m.containerd()
	out := m.must("sh", append([]string{"-c", `"$0" agent --root /var/node --containerd-unit containerd "$@" 2>&1; echo`, m.kube}, args...)...)
	if want := "no cgroup of this process is a pod's"; !strings.Contains(out, want) || !strings.Contains(out, says) || says == "" && strings.Contains(out, "level=") {
		m.t.Errorf("%s: it does not say %q and %q:\n%s", what, want, says, out)
	}
	after := m.containerd()
	if (after != before) != anew || after == "0" {
		m.t.Errorf("%s: containerd was process %s and is %s", what, before, after)
	}
}

// ready asks the readiness probe, which has no agent. It says something of containerd, or nothing.
func (m restarted) ready(what, says string) {
	m.t.Helper()
	out := m.must("sh", "-c", `"$0" ready --root /var/node 2>&1; echo`, m.kube)
	if !strings.Contains(out, "agent.sock") || !strings.Contains(out, says) || says == "" && strings.Contains(out, "containerd") {
		m.t.Errorf("%s: the probe does not say %q:\n%s", what, says, out)
	}
}
