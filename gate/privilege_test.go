package gate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// unneeded are calls that neither a gate nor the pool has a use for.
var unneeded = map[string]uintptr{
	"openat": unix.SYS_OPENAT, "renameat2": unix.SYS_RENAMEAT2, "unlinkat": unix.SYS_UNLINKAT, "getdents64": unix.SYS_GETDENTS64,
	"setuid": unix.SYS_SETUID, "sendmmsg": unix.SYS_SENDMMSG, "perf_event_open": unix.SYS_PERF_EVENT_OPEN,
}

func checkPrivileges(t *testing.T, process string, pid int) {
	t.Helper()
	if diff := cmp.Diff(testkit.PromisedPrivileges(t, process), testkit.ProcessPrivileges(t, pid)); diff != "" {
		t.Errorf("%s (-promised +kept):\n%s", process, diff)
	}
}

// alone starts a gate that has no pool.
func (c *container) alone(edit func(*Config)) *Gate {
	c.t.Helper()
	return c.start(1, func(config *Config) {
		kill, err := c.group.Killer()
		c.must(err)
		c.t.Cleanup(func() { kill.Close() })
		config.Kill, config.AdoptSocket, config.Pool = kill, "", nil
		if edit != nil {
			edit(config)
		}
	})
}

// A gate has what SECURITY.md says, and serves after its filter has refused what a gate
// has no use for.
func TestGatePrivileges(t *testing.T) {
	for _, byPool := range []bool{false, true} {
		t.Run(fmt.Sprintf("by pool %v", byPool), func(t *testing.T) {
			c := newContainer(t)
			name := Program
			if byPool {
				name = Program + "`, forked by the pool"
				c.start(1, nil)
			} else {
				c.alone(nil)
			}
			pid := c.gatePID()
			c.moves("own", &c.progress.own, 10)
			checkPrivileges(t, name, pid)
			testkit.Refuses(t, pid, unneeded)
			testkit.Refuses(t, pid, map[string]uintptr{"seccomp": unix.SYS_SECCOMP, "prctl": unix.SYS_PRCTL, "capset": unix.SYS_CAPSET})
			// Its own threads are the only ones that it may signal.
			if errno := testkit.Inject(t, pid, unix.SYS_TGKILL, uint64(os.Getpid()), uint64(os.Getpid()), 0); errno != unix.EPERM {
				t.Errorf("tgkill of the test: %v, want %v", errno, unix.EPERM)
			}
			if errno := testkit.Inject(t, pid, unix.SYS_TGKILL, uint64(pid), uint64(pid), 0); errno != 0 {
				t.Errorf("tgkill of itself: %v", errno)
			}
			c.moves("own", &c.progress.own, 10)
			c.allRight()
		})
	}
}

// Without CAP_SYS_PTRACE a gate sees nothing of a program with capabilities.
func TestGateNeedsPtrace(t *testing.T) {
	for _, without := range []bool{false, true} {
		t.Run(fmt.Sprintf("taken %v", without), func(t *testing.T) {
			c := newContainer(t)
			checkSees(c, c.alone(func(config *Config) {
				if without {
					config.Binary = testkit.WithoutCapability(t, config.Binary, "sys_ptrace")
				}
			}), !without)
		})
	}
}

// checkSees checks whether the supervisor is asked about binds. A gate that cannot look
// at them lets them go on, in the container's own namespace, which is not the answer that
// the program waits for.
func checkSees(c *container, g *Gate, sees bool) {
	c.t.Helper()
	passed := func() bool { return c.stats(g).Calls[Bind].Passed > 0 }
	wrong := func() bool { return c.progress.wrong.Load() > 0 }
	if sees {
		c.eventually("asked about bind", passed)
	} else {
		c.eventually("bind goes on", wrong)
	}
	if passed() == wrong() {
		c.t.Errorf("asked about bind: %v; bind goes on: %v", passed(), wrong())
	}
}

func TestPoolPrivileges(t *testing.T) {
	c := newContainer(t)
	c.start(1, nil)
	for _, name := range []string{poolName, spareName} {
		pid := c.poolPID(name)
		checkPrivileges(t, Program+" --pool", pid)
		testkit.Refuses(t, pid, unneeded, "connect") // a gate that it forks may translate IPv4
	}
	c.moves("own", &c.progress.own, 10)
	c.allRight()
}

// TestPoolNeeds starts gates with a pool as it is, and without each capability.
func TestPoolNeeds(t *testing.T) {
	for _, capability := range []string{"sys_ptrace", "setuid", "setgid", "setpcap", "dac_override"} {
		for _, without := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s taken %v", capability, without), func(t *testing.T) {
				c := newContainer(t)
				binary := filepath.Join(testkit.BuildTsugiki(t), Program)
				if without {
					binary = testkit.WithoutCapability(t, binary, capability)
				}
				var err error
				c.pool, err = StartPool(binary, c.host, c.idleAfter, nil)
				c.must(err)
				t.Cleanup(func() { c.pool.Close() })
				checkNeed(t, c, capability, without)
			})
		}
	}
}

func checkNeed(t *testing.T, c *container, capability string, without bool) {
	t.Helper()
	if capability == "dac_override" {
		c.start(1, nil)
		c.must(os.Chown(filepath.Join(c.keepers.Path(), "cgroup.procs"), 12345, 12345))
		second, err := Start(c.config(c.listener, func(config *Config) { config.AdoptSocket += "-second" }))
		if err == nil {
			c.must(second.Close())
		}
		if without != (err != nil && strings.HasSuffix(strings.ToLower(err.Error()), unix.EACCES.Error())) {
			t.Errorf("a gate in a cgroup of somebody else's: %v", err)
		}
		return
	}
	g := c.start(1, func(config *Config) { config.UID, config.GID = 12345, 54321 })
	if capability == "sys_ptrace" {
		checkSees(c, g, !without)
		return
	}
	c.moves("own", &c.progress.own, 10)
	wantUser, wantGroup := "12345", "54321"
	if without && capability == "setuid" {
		wantUser = "0"
	}
	if without && capability == "setgid" {
		wantGroup = "0"
	}
	bounding := testkit.ProcessPrivileges(t, c.gatePID()).Bounding
	if emptied := bounding == "SYS_PTRACE"; emptied == (without && capability == "setpcap") {
		t.Errorf("bounding set of the gate: %q", bounding)
	}
	if user := makesFilesAs(t, c.gatePID(), "Uid:"); user != wantUser {
		t.Errorf("the gate makes files as user %s, want %s", user, wantUser)
	}
	if group := makesFilesAs(t, c.gatePID(), "Gid:"); group != wantGroup {
		t.Errorf("the gate makes files as group %s, want %s", group, wantGroup)
	}
}

// makesFilesAs is the fourth of a process's ids.
func makesFilesAs(t *testing.T, pid int, key string) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) == 5 && fields[0] == key {
			return fields[4]
		}
	}
	t.Fatalf("process %d has no %s", pid, key)
	return ""
}
