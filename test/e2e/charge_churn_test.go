package e2e

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/internal/bundle"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

var churn = flag.Int("charge-churn", testkit.Times(5, 100), "how many containers TestChargeChurn makes")

// bundles is where runc's containers of a test are.
type bundles struct {
	t      *testing.T
	dir    string
	prefix string // of their names, which are their cgroups' too
	rootfs string
}

func newBundles(t *testing.T) *bundles {
	t.Helper()
	busybox := testkit.Program(t, "busybox")
	testkit.Program(t, "runc")
	b := &bundles{t: t, dir: t.TempDir(), prefix: fmt.Sprintf("tsugiki-test-churn%d-", os.Getpid())}
	b.rootfs = filepath.Join(b.dir, "rootfs")
	for _, dir := range []string{"bin", "proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(b.rootfs, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.WriteExecutable(filepath.Join(b.rootfs, "bin", "sleep"), data, 0o755); err != nil {
		t.Fatal(err)
	}
	return b
}

// runc calls it, and returns what it has said.
func (b *bundles) runc(args ...string) (string, error) {
	c := exec.Command("runc", append([]string{"--root", filepath.Join(b.dir, "state")}, args...)...)
	// Nobody waits for the end of what the container inherits.
	said, err := os.CreateTemp(b.dir, "said")
	if err != nil {
		return "", err
	}
	defer os.Remove(said.Name())
	defer said.Close()
	c.Stdout, c.Stderr = said, said
	err = c.Run()
	text, _ := os.ReadFile(said.Name())
	if err != nil {
		err = fmt.Errorf("runc %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return string(text), err
}

// delete removes a container. To runc it is no error if a cgroup stays.
func (b *bundles) delete(name string) error {
	said, err := b.runc("delete", "--force", name)
	if err != nil {
		return err
	}
	for _, dir := range b.left() {
		if filepath.Base(dir) == name {
			procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			return errors.Join(err, fmt.Errorf("runc has left %s with the processes %q, and says %q", dir, procs, said))
		}
	}
	return nil
}

// start starts a container that sleeps, with a quota.
func (b *bundles) start(name string, quota time.Duration) error {
	dir := filepath.Join(b.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	spec, err := bundle.Spec(b.rootfs, "sleep", "1000")
	if err != nil {
		return err
	}
	microseconds, period := quota.Microseconds(), uint64(100000)
	spec.Root.Readonly = true
	spec.Mounts = spec.Mounts[:2] // /proc and /dev, which the rootfs has
	spec.Linux.CgroupsPath = "/" + name
	spec.Linux.Resources.CPU = &specs.LinuxCPU{Quota: &microseconds, Period: &period}
	if err := bundle.Write(dir, spec); err != nil {
		return err
	}
	_, err = b.runc("run", "-d", "-b", dir, name)
	return err
}

// live has a container made, charged in each way, and removed, whether the agent is
// there or not. It returns how often the agent has heard it.
func (b *bundles) live(agent *api.Client, name string) (heard int, err error) {
	if err := b.start(name, 20*time.Millisecond); err != nil {
		return 0, err
	}
	helper := exec.Command("sleep", "1000")
	if err := helper.Start(); err != nil {
		return 0, err
	}
	defer func() { _ = helper.Wait() }()
	defer func() { _ = helper.Process.Kill() }()
	by := []string{api.ByPlace, api.ByQuota, api.ByAuto}[rand.IntN(3)]
	_, err1 := agent.AttachHelper(api.ChargeHelper{Helper: api.HelperProcess{PID: helper.Process.Pid}, To: "/" + name, By: by})
	err2 := agent.Charge("/"+name, "test", time.Duration(1+rand.IntN(500))*time.Millisecond)
	for _, err := range []error{err1, err2} {
		switch {
		case err == nil:
			heard++
		case errors.Is(err, api.ErrNotFound):
			return heard, errors.Join(err, b.delete(name))
		}
	}
	time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
	if err := b.delete(name); err != nil {
		return heard, err
	}
	return heard, os.RemoveAll(filepath.Join(b.dir, name))
}

// left are cgroups of its containers, in all hierarchies.
func (b *bundles) left() []string {
	one, _ := filepath.Glob("/sys/fs/cgroup/" + b.prefix + "*")
	each, _ := filepath.Glob("/sys/fs/cgroup/*/" + b.prefix + "*")
	return append(one, each...)
}

// TestChargeChurn makes and removes many containers, while the agent is killed again
// and again. The runtime can remove each, and nothing of it is left, in the agent
// either. The last third has one agent, which hears all.
func TestChargeChurn(t *testing.T) {
	t.Parallel()
	n := startAgent(t, newWorld(t))
	b := newBundles(t)
	t.Cleanup(func() { b.removeLeft() })
	if _, err := b.live(n.client(), b.prefix+"first"); err != nil {
		t.Fatal(err)
	}
	killed := *churn * 2 / 3
	next := time.Now().Add(time.Second)
	b.churn(n, 0, killed, func() {
		if time.Now().After(next) {
			n.kill()
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
			n.start()
			next = time.Now().Add(time.Duration(300+rand.IntN(700)) * time.Millisecond)
		}
	})
	// What the agent opens for its first container stays open.
	if _, err := b.live(n.client(), b.prefix+"warm"); err != nil {
		t.Fatal(err)
	}
	before := n.checkForgotten(t)
	if heard, want := b.churn(n, killed, *churn, func() {}), 2*(*churn-killed); heard != want {
		t.Errorf("the agent has heard %d requests, want %d", heard, want)
	}
	if left := b.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	n.checkForgotten(t)
	n.checkLean(t, before)
}

// churn has the containers of some numbers live, three at once, and calls between after each
// beginning. It returns how many requests the agent has heard.
func (b *bundles) churn(n *asked, first, end int, between func()) int {
	var workers sync.WaitGroup
	var heard atomic.Int64
	names := make(chan string)
	for range 3 {
		workers.Go(func() {
			for name := range names {
				count, err := b.live(n.client(), name)
				if err != nil {
					b.t.Errorf("%s: %v", name, err)
				}
				heard.Add(int64(count))
			}
		})
	}
	for i := first; i < end; i++ {
		names <- fmt.Sprintf("%s%d", b.prefix, i)
		between()
	}
	close(names)
	workers.Wait()
	return int(heard.Load())
}

// removeLeft thaws, kills and removes what a failed test leaves.
func (b *bundles) removeLeft() {
	for _, dir := range b.left() {
		_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
		b.t.Logf("removing %s", dir)
	}
	states, _ := filepath.Glob(filepath.Join(b.dir, "state", "*"))
	for _, s := range states {
		_, _ = b.runc("delete", "--force", filepath.Base(s))
	}
	for _, dir := range b.left() {
		_ = unix.Rmdir(filepath.Join(dir, bandwidth.HelperGroup))
		_ = unix.Rmdir(dir)
	}
}

// checkForgotten checks that the agent holds nothing for containers that are gone. It returns the
// files that the agent has open then.
func (n *asked) checkForgotten(t *testing.T) (files map[string]string) {
	t.Helper()
	testkit.Eventually(t, func() (err error) {
		all := n.charges(t)
		if len(all.Containers)+len(all.Helpers) > 0 {
			return fmt.Errorf("the agent still has %+v", all)
		}
		files, err = testkit.OpenFiles(n.cmd.Process.Pid)
		for _, name := range files {
			if strings.HasPrefix(name, "/sys/fs/cgroup") && strings.Contains(name, "tsugiki-test") || strings.Contains(name, "(deleted)") {
				return fmt.Errorf("the agent has %s open", name)
			}
		}
		return err
	})
	return files
}

// checkLean checks that containers that are gone have left the agent no more files than it had
// before them. What memory it has is for the soak, whose containers are many.
func (n *asked) checkLean(t *testing.T, before map[string]string) {
	t.Helper()
	pid := n.cmd.Process.Pid
	testkit.Eventually(t, func() error {
		after, err := testkit.OpenFiles(pid)
		if err == nil && len(after) > len(before) {
			err = fmt.Errorf("the agent has the files %v open, and had %v", after, before)
		}
		return err
	})
	mib := rss(t, pid) >> 10
	t.Logf("the agent has %d files, %d MiB", len(before), mib)
	if testkit.Soaking() && mib > 128 {
		t.Errorf("the agent has %d MiB", mib)
	}
}
