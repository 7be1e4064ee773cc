// Relied upon: writing 1 to cgroup.kill kills every process of the cgroup, also
// those that are being forked at that moment: nothing is left. The cgroup can
// be used again, but only by processes that move into it (cgroup.procs).
//
// Not relied upon: CLONE_INTO_CGROUP after a kill. Linux 6.18 compares, at fork,
// the kill counts of the parent's cgroup and of the child's, so that a child
// created in a cgroup that was killed once, or by a parent in such a cgroup into
// another one, is killed at birth, for ever. So a killed cgroup is removed and
// made anew, and a keeper that dies at birth is started again without
// CLONE_INTO_CGROUP, moving itself.
//
// Since: Linux 5.14.
// By: keeper (ends a container's leftovers), internal/cgroup.

package kernel

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

func init() {
	// A child that becomes a shell that forks as fast as it can, but not without
	// bound; the forked processes do not end by themselves within the test.
	roles["fork"] = func(c *child) {
		const script = `i=0; while [ $i -lt 400 ]; do sleep 60 & i=$((i+1)); done; wait`
		c.check("exec", unix.Exec("/bin/sh", []string{"sh", "-c", script}, os.Environ()))
	}
	roles["move"] = func(c *child) {
		c.check("move", os.WriteFile(c.hear()+"/cgroup.procs", []byte("0"), 0))
		c.say("moved")
		c.hear()
		c.say("alive")
	}
}

func (cg *cgroup) read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(cg.path + "/" + file)
	try(t, "read "+file, err)
	return string(content)
}

func (cg *cgroup) kill(t *testing.T) {
	t.Helper()
	err := os.WriteFile(cg.path+"/cgroup.kill", []byte("1"), 0)
	if os.IsNotExist(err) {
		t.Skip("skip: needs Linux 5.14: cgroup.kill")
	}
	try(t, "kill", err)
}

func TestCgroupKillLeavesNothing(t *testing.T) {
	for range 3 {
		cg := newCgroup(t)
		start(t, "fork", &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: cg.fd})
		members := 0
		testkit.Eventually(t, holds("fork some processes", func() bool {
			members = strings.Count(cg.read(t, "cgroup.procs"), "\n")
			return members > 10
		}))
		cg.kill(t)
		if members > 400 {
			t.Errorf("%d processes: nothing was being forked any more", members)
		}
		testkit.Eventually(t, holds("empty cgroup", func() bool {
			return strings.Contains(cg.read(t, "cgroup.events"), "populated 0")
		}))
		want(t, "processes left", cg.read(t, "cgroup.procs"), "")
	}
}

func TestKilledCgroupTakesProcessesThatMoveIn(t *testing.T) {
	cg := newCgroup(t)
	cg.kill(t)
	moved := start(t, "move", nil)
	moved.say(cg.path)
	want(t, "child", moved.hear(t), "moved")
	moved.say("still there?")
	want(t, "child", moved.hear(t), "alive")

	// Either answer is correct here; it is told for who reads the log.
	fresh := newCgroup(t)
	report := func(what string, into *cgroup) {
		child := start(t, "trap nothing", &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: into.fd})
		_, alive := <-child.heard
		t.Logf("%s: lives: %v", what, alive)
	}
	report("created in a killed cgroup", cg)
	cg.run(t, func() { report("created in a fresh cgroup, parent in a killed one", fresh) })
}
