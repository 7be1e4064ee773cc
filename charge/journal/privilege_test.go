package journal

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// An undo helper has only the privileges that SECURITY.md names. It still undoes after its filter
// has refused a call that it does not need.
func TestUndoHelperPrivileges(t *testing.T) {
	quota := group(t, "cpu")
	write(t, ms80, quota, quotaFile)
	j := open(t, filepath.Join(t.TempDir(), "undo"))
	if err := j.Guard(testLog(t)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(testkit.PromisedPrivileges(t, Program), testkit.ProcessPrivileges(t, j.PID())); diff != "" {
		t.Errorf("(-promised +kept):\n%s", diff)
	}
	testkit.Refuses(t, j.PID(), map[string]uintptr{
		"socket": unix.SYS_SOCKET, "clone": unix.SYS_CLONE, "sendmsg": unix.SYS_SENDMSG, "ioctl": unix.SYS_IOCTL,
		"pidfd_getfd": unix.SYS_PIDFD_GETFD, "process_vm_readv": unix.SYS_PROCESS_VM_READV, "capset": unix.SYS_CAPSET,
		"linkat": unix.SYS_LINKAT, "renameat2": unix.SYS_RENAMEAT2, "fchown": unix.SYS_FCHOWN,
	})
	if _, err := j.Write(Quota, filepath.Join(quota, quotaFile), ms80, ms20); err != nil {
		t.Fatal(err)
	}
	write(t, ms20, quota, quotaFile)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, quota, quotaFile); got != ms80 {
		t.Errorf("quota %s, want %s", got, ms80)
	}
}

// needs runs an undo with the undo helper as it is, and without one capability.
func needs(t *testing.T, capability string, lay func(t *testing.T, j *Journal)) {
	t.Helper()
	for _, without := range []bool{false, true} {
		j := open(t, filepath.Join(t.TempDir(), "undo"))
		if without {
			j.UndoHelper = testkit.WithoutCapability(t, j.UndoHelper, capability)
		}
		lay(t, j)
		n, err := j.Restore(testLog(t))
		if without && (n != 0 || err == nil) {
			t.Errorf("without %s: %d undone (%v), want none", capability, n, err)
		} else if !without && (n != 1 || err != nil) {
			t.Errorf("%d undone (%v), want 1", n, err)
		}
		// What is left is undone by one that may.
		j.UndoHelper = undoHelperPath(t)
		if _, err := j.Restore(testLog(t)); err != nil {
			t.Error(err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A group that was delegated to a user has files that are closed to others.
func TestUndoHelperNeedsDacOverride(t *testing.T) {
	needs(t, "dac_override", func(t *testing.T, j *Journal) {
		quota := group(t, "cpu")
		file := filepath.Join(quota, quotaFile)
		if _, err := j.Write(Quota, file, noQuota, ms20); err != nil {
			t.Fatal(err)
		}
		write(t, ms20, file)
		if err := os.Chown(file, 12345, 12345); err != nil {
			t.Fatal(err)
		}
	})
}

// A process has capabilities that the undo helper has not, and is in a cpuset.
func TestUndoHelperNeedsSysNice(t *testing.T) {
	if v2 {
		t.Skip("skip: needs cgroup v1: in v2 who may move a process may choose its cpuset")
	}
	root, err := testkit.CgroupRoot("cpuset")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("skip: needs cpuset of cgroup v1, which Linux 6.12 has with CONFIG_CPUSETS_V1 alone")
	}
	if err != nil {
		t.Fatal(err)
	}
	fill := func(g string) string {
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			write(t, read(t, root, name), g, name)
		}
		return g
	}
	from := fill(testkit.NewGroups(t, "cpuset").Dir("cpuset"))
	to := fill(testkit.NewGroups(t, "cpuset").Dir("cpuset"))
	needs(t, "sys_nice", func(t *testing.T, j *Journal) {
		g := filepath.Join(from, "helpers")
		if err := os.Mkdir(g, 0o755); err != nil {
			t.Fatal(err)
		}
		fill(g)
		if _, err := j.Move(g, to); err != nil {
			t.Fatal(err)
		}
		sleeper(t, g)
	})
}
