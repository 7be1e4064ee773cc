package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// TestInstall has a node without Tsugiki, and does what a user does: kubectl apply of deploy/, and what
// docs/KUBERNETES.md says next. Then the image is replaced by another one while pods run, and at last all is taken away.
func TestInstall(t *testing.T) {
	c := bareCluster(t, func(*engines.Options) {})
	before := c.readNode(containerdConfig)
	c.install()
	t.Run("the commands and examples of the documents", func(t *testing.T) { c.with(t).testDocumented() })
	c.openShop()
	c.served(c.service("web"))
	for _, p := range c.pods("web") {
		c.grafted(&p)
	}
	t.Run("the image is replaced", func(t *testing.T) { c.with(t).testUpgraded() })
	t.Run("pods may be translated", func(t *testing.T) { c.with(t).testTranslateInstalled(c.t, before) })
	t.Run("all is taken away", func(t *testing.T) { c.with(t).testUninstalled(before) })
}

// TestInstallOnContainerd2 has a node whose containerd has a configuration of the newest version.
func TestInstallOnContainerd2(t *testing.T) {
	c := bareCluster(t, func(o *engines.Options) { o.Programs, o.Migrated = kubetest.Containerd(t), true })
	if text := c.readNode(containerdConfig); !strings.HasPrefix(text, "version = 4\n") {
		t.Fatalf("the node has the configuration\n%s", text)
	}
	c.install()
	c.testDocumented()
}

// install applies deploy/ and waits until the node has Tsugiki. The rig has no systemd that would restart
// containerd: the pod says what is to be done.
func (c *cluster) install() {
	c.t.Helper()
	c.kubectl("apply", "-f", filepath.Join(kubetest.Root(c.t), "deploy", "crds"), "-f", c.manifests())
	c.saysRestart(containerdConfig, "tsugiki")
	c.restartContainerd()
	c.daemonsReady()
}

const (
	containerdConfig = "/etc/containerd/config.toml"
	// otherConfig is where containerd's configuration is later.
	otherConfig = "/etc/node/containerd.toml"
	// pluginDir is containerd's folder of network plugins.
	pluginDir = "/usr/lib/cni"
)

// bareCluster is a cluster whose node has nothing of ours but two images, with other options of the rig.
func bareCluster(t *testing.T, change func(*engines.Options)) *cluster {
	t.Helper()
	bin := testkit.BuildTsugiki(t)
	if _, err := os.Stat(filepath.Join(bin, "kube", "tsugiki-kube")); err != nil {
		t.Skip("skip: needs tsugiki-kube, which make kube builds")
	}
	image, err := engines.BuildImage(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, whole: t}
	o := engines.Options{Image: image, Written: []string{"/etc", "/opt", pluginDir, "/var/lib"}}
	change(&o)
	c.Cluster = kubetest.StartCluster(t, o)
	c.run = c.Rig.Outside(api.RunDir)
	for name, from := range map[string]string{"tsugiki-kube:0.1": bin, "tsugiki-kube:0.2": changed(t, bin)} {
		c.Must("ctr", "-n", "k8s.io", "image", "import", buildImage(t, from, name))
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, container := range []string{"install", "agent", "tsugiki-kube"} {
			out, err := c.Kubectl("logs", "-n", "tsugiki", "daemonset/tsugiki-kube-node", "-c", container)
			t.Logf("%s said (%v):\n%s", container, err, out)
		}
	})
	return c
}

// buildImage makes the image as make image does, and returns its archive.
func buildImage(t *testing.T, bin, name string) string {
	t.Helper()
	script := filepath.Join(kubetest.Root(t), "packaging", "image.sh")
	cmd := exec.Command(script, bin, t.TempDir(), name)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(string(out))
}

// changed are the binaries with what containers use of them changed: a byte after the end of an ELF
// file means nothing.
func changed(t *testing.T, bin string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "bin")
	// The links of preload lead to the library beside them.
	const script = `cp -as "$0" "$1" && rm -r "$1/preload" && cp -a "$0/preload" "$1/"`
	if out, err := exec.Command("sh", "-c", script, bin, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range used {
		text, err := os.ReadFile(filepath.Join(bin, name))
		if err == nil {
			err = os.Remove(filepath.Join(dir, name))
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), append(text, 0), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// used are the programs that serve running containers, and the library that they have.
var used = []string{"tsugiki-gate", "tsugiki-keeper", "libtsugiki.so"}

// The agent charges what it does by default.
const shared = "    shared = [\"containerd\"]\n"

// within has an agent's configuration, indented, charge the containers of the cluster alone, as the machine
// has others.
func (c *cluster) within(text string) string {
	return strings.ReplaceAll(text, shared, shared+fmt.Sprintf("    within = %q\n", "/"+filepath.Base(c.Rig.Group())))
}

// manifests are deploy/manifests, but for the agent's charging.
func (c *cluster) manifests() string {
	c.t.Helper()
	files, err := filepath.Glob(filepath.Join(kubetest.Root(c.t), "deploy", "manifests", "*.yaml"))
	if err != nil {
		c.t.Fatal(err)
	}
	dir, changes := c.t.TempDir(), 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			c.t.Fatal(err)
		}
		changes += strings.Count(string(text), shared)
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(f)), []byte(c.within(string(text))), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	if changes != 1 {
		c.t.Fatalf("%d configurations of the agent are in deploy/manifests, want 1", changes)
	}
	return dir
}

// upgrade applies what the chart makes of values, as helm upgrade does.
func (c *cluster) upgrade(values string) {
	c.t.Helper()
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": kubetest.Chart(c.t, "tsugiki", values)}
	text, err := json.Marshal(list)
	file := filepath.Join(c.t.TempDir(), "chart.json")
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("apply", "-f", file)
}

func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.Kubectl(args...)
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) readNode(path string) string {
	c.t.Helper()
	text, err := os.ReadFile(c.Rig.Outside(path))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

// saysRestart waits until an event says that containerd has to be restarted for runtimes in a file.
func (c *cluster) saysRestart(file, runtimes string) {
	c.t.Helper()
	want := fmt.Sprintf("containerd has not read the present tables of the runtimes %s in %s: restart containerd on this node", runtimes, file)
	testkit.Eventually(c.t, func() error {
		if all := c.describe("tsugiki"); !strings.Contains(all, want) {
			return fmt.Errorf("no event says %q:\n%s", want, all)
		}
		return nil
	})
	if text := c.readNode(file); !strings.Contains(text, "/opt/tsugiki/bin/tsugiki-runtime") {
		c.t.Errorf("containerd's configuration does not name the runtime:\n%s", text)
	}
}

// containerd returns the process id of containerd.
func (c *cluster) containerd() int {
	c.t.Helper()
	var pid int
	testkit.Eventually(c.t, func() error {
		return api.Nearby(c.Rig.Outside("/run/containerd/containerd.sock"), func(short string) error {
			conn, err := net.Dial("unix", short)
			if err != nil {
				return err
			}
			defer conn.Close()
			raw, err := conn.(*net.UnixConn).SyscallConn()
			if err != nil {
				return err
			}
			var cred *unix.Ucred
			if wrong := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); wrong != nil {
				return wrong
			}
			if err == nil {
				pid = int(cred.Pid)
			}
			return err
		})
	})
	return pid
}

// restartContainerd does what systemctl restart containerd does. The new one runs until the whole test ends.
func (c *cluster) restartContainerd(args ...string) {
	c.t.Helper()
	pid := c.containerd()
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		c.t.Fatal(err)
	}
	testkit.Eventually(c.t, func() error {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("containerd, process %d, is still there: %w", pid, err)
		}
		return nil
	})
	kubetest.Run(c.whole, c.Rig, "containerd", args...)
	c.containerd()
}

// processes are those of the cluster that run a program of an installation, by their ids, with the path
// of the program.
func (c *cluster) processes() map[int]string {
	c.t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		c.t.Fatal(err)
	}
	found := map[int]string{}
	for _, exe := range list {
		path, err := os.Readlink(exe)
		groups, groupsErr := os.ReadFile(filepath.Join(filepath.Dir(exe), "cgroup"))
		if err != nil || groupsErr != nil || !strings.Contains(string(groups), filepath.Base(c.Rig.Group())) || !strings.HasPrefix(path, "/opt/tsugiki/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(exe))); err == nil {
			found[pid] = path
		}
	}
	return found
}

// pool are the processes that make those that serve containers: the agent's children, as they were before
// the agent has ended. A gate itself ends when it has nothing to do, and is made anew by these.
func (c *cluster) pool() (list []int) {
	all := c.processes()
	for pid, path := range all {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || !strings.Contains(path, "/tsugiki-gate") {
			continue
		}
		_, rest, _ := strings.Cut(string(status), "\nPPid:\t")
		if parent, err := strconv.Atoi(strings.SplitN(rest, "\n", 2)[0]); err == nil && all[parent] == "/opt/tsugiki/bin/tsugiki" {
			list = append(list, pid)
		}
	}
	return list
}

// outside fails the test if the agent, or what it has started, is in a cgroup of a pod.
func (c *cluster) outside() {
	c.t.Helper()
	agents := 0
	for pid, path := range c.processes() {
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			continue // it has ended
		}
		if strings.Contains(string(groups), "kubepods") {
			c.t.Errorf("process %d, %s, is in groups of a pod:\n%s", pid, path, groups)
		}
		if path == "/opt/tsugiki/bin/tsugiki" {
			agents++
		}
	}
	if agents != 1 {
		c.t.Errorf("%d agents run on the node", agents)
	}
}

// testUpgraded changes the image. Pods run on, with the processes that serve them; new ones have the new
// programs. Files that are the same were not written.
func (c *cluster) testUpgraded() {
	l, containerd, pool := c.lasting(), c.containerd(), c.pool()
	if len(pool) == 0 {
		c.t.Fatalf("no process serves the containers: %v", c.processes())
	}
	c.outside()
	inode := func(name string) uint64 {
		c.t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(c.Rig.Outside("/opt/tsugiki/"+name), &st); err != nil {
			c.t.Fatal(err)
		}
		return st.Ino
	}
	tsugiki, gate := inode("bin/tsugiki"), inode("lib/tsugiki/tsugiki-gate")
	const image = "tsugiki-kube:0.2"
	c.kubectl("set", "image", "-n", "tsugiki", "daemonset/tsugiki-kube-node", "install="+image, "agent="+image, "tsugiki-kube="+image)
	c.daemonsReady()
	l.goOn()
	for _, name := range used {
		text, node := c.readNode("/opt/tsugiki/lib/tsugiki/"+name), ""
		if old, err := os.ReadFile(filepath.Join(testkit.BuildTsugiki(c.t), name)); err == nil {
			node = string(old)
		}
		if text != node+"\x00" {
			c.t.Errorf("%s of the node is not that of the new image", name)
		}
	}
	if now := inode("lib/tsugiki/tsugiki-gate"); now == gate {
		c.t.Error("tsugiki-gate was written where programs run it")
	}
	if now := inode("bin/tsugiki"); now != tsugiki {
		c.t.Error("tsugiki is the same in both images, and was written")
	}
	if now := c.containerd(); now != containerd {
		c.t.Errorf("containerd was process %d and is %d", containerd, now)
	}
	now := c.processes()
	for _, pid := range pool {
		if now[pid] == "" {
			c.t.Errorf("process %d served containers before, and is gone: %v", pid, now)
		}
	}
	c.outside()
	// Probes of a slow machine fail while the agent is away.
	testkit.Eventually(c.t, func() error {
		for _, app := range []string{"web", "redis", "steady"} {
			for _, p := range c.pods(app) {
				for _, s := range p.Status.ContainerStatuses {
					if s.RestartCount > 0 || !s.Ready {
						return fmt.Errorf("container %s of pod %s: %+v", s.Name, p.Name, s)
					}
				}
			}
		}
		return nil
	})
	p := c.pods("web")[0]
	c.served(c.hostPort(&p))
	c.settled()
	c.restart("shop", "deployment/web")
	c.rolledOut("shop", "web")
	c.served(c.service("web"))
	c.settled()
	l.goOn()
}

// testTranslateInstalled has the chart give the node the runtime of pods whose IPv4 is translated, and its
// network, in a file of containerd's that is elsewhere. Pods run on. By the chart alone, such a pod is served.
func (c *cluster) testTranslateInstalled(all *testing.T, config string) {
	l := c.lasting()
	if err := os.Mkdir(filepath.Dir(c.Rig.Outside(otherConfig)), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(c.Rig.Outside(otherConfig), []byte(config), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.upgrade(fmt.Sprintf("{image: 'tsugiki-kube:0.2', containerd: {config: %s}, translate: {enabled: true, pluginDir: %s}, agent: {config: %q}, "+
		"metrics: {agent: '0.0.0.0:9469', node: '0.0.0.0:9471', cluster: '0.0.0.0:9472'}}",
		otherConfig, pluginDir, strings.ReplaceAll(c.within("    [kubernetes]\n    grants = true\n    [charge]\n"+shared), "    ", "")))
	c.saysRestart(otherConfig, "tsugiki-translate")
	c.restartContainerd("--config", otherConfig)
	c.daemonsReady()
	l.goOn()
	c.served(c.hostPort(c.openFour()))
	c.says("PONG\n", "four", "redis-cli", "-h", c.virtualAddress().String(), "ping")
	c.served(c.service("web"))
	l.goOn()
	c.measured()
}
