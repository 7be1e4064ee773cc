package discover

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// actEnv is the environment variable that makes the test binary act as another program: "sleep", or
// "parent", which starts its arguments.
const actEnv = "TSUGIKI_TEST_ACT"

func TestMain(m *testing.M) {
	switch os.Getenv(actEnv) {
	case "":
		os.Exit(run(m))
	case "parent":
		cmd := exec.Command(os.Args[len(os.Args)-1], "-id", "inner")
		cmd.Env = []string{actEnv + "=sleep"}
		if err := cmd.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(cmd.Process.Pid)
	default:
		fmt.Println(os.Getpid())
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // its starter's end is its own
	time.Sleep(10 * time.Minute)         // longer than any test
}

// actor makes a program with a name, owner and mode.
func actor(t *testing.T, name string, mode os.FileMode, uid int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "discover-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, name)
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close(), os.Chmod(dir, 0o755), os.Chmod(path, mode), os.Chown(path, uid, uid)); err != nil {
		t.Fatal(err)
	}
	return path
}

// act starts a program with the name of a shim, and returns the pid that the program prints.
func act(t *testing.T, path string, prepare func(cmd *exec.Cmd)) int {
	t.Helper()
	cmd := exec.Command(path, "-namespace", "moby", "-id", "outer", path)
	cmd.Env = []string{actEnv + "=sleep"}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if prepare != nil {
		prepare(cmd)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait()
	})
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	if cmd.SysProcAttr.Cloneflags != 0 {
		return cmd.Process.Pid
	}
	return pid
}

// roleOf returns the role that a new scanner gives to a process.
func roleOf(t *testing.T, pid int) role {
	t.Helper()
	s := New()
	defer s.Close()
	if _, err := s.Scan(); err != nil {
		t.Fatal(err)
	}
	p := s.table[pid]
	if p == nil || p.comm != "containerd-shim" {
		t.Fatalf("process %d is not there, or not called a shim: %v", pid, p)
	}
	return p.role
}

// A process with a shim's name is a shim only if it passes verify.
func TestImpostors(t *testing.T) {
	const name = "containerd-shim-runc-v2"
	good := actor(t, name, 0o755, 0)
	for what, c := range map[string]struct {
		path    string
		prepare func(*exec.Cmd)
		want    role
	}{
		"root's on the host": {good, nil, shim},
		"another's program":  {actor(t, name, 0o755, 1), nil, nobody},
		"anybody's program":  {actor(t, name, 0o777, 0), nil, nobody},
		"another name":       {actor(t, name+"x", 0o755, 0), nil, nobody},
		"another user": {good, func(c *exec.Cmd) {
			c.SysProcAttr.Credential = &syscall.Credential{Uid: 1, Gid: 1}
		}, nobody},
		"another pid namespace": {good, func(c *exec.Cmd) {
			c.SysProcAttr.Cloneflags = unix.CLONE_NEWPID
		}, nobody},
		"another user namespace": {good, func(c *exec.Cmd) {
			c.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER
			c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
		}, nobody},
		"in a container's cgroup": {good, func(c *exec.Cmd) {
			c.SysProcAttr.UseCgroupFD, c.SysProcAttr.CgroupFD = true, int(containerGroup(t).Fd())
		}, nobody},
		"below a shim": {good, func(c *exec.Cmd) {
			c.Env = []string{actEnv + "=parent"}
		}, nobody},
		"without an id": {good, func(c *exec.Cmd) {
			c.Args = []string{c.Args[0], "-id", "../x"}
		}, nobody},
	} {
		t.Run(what, func(t *testing.T) {
			if got := roleOf(t, act(t, c.path, c.prepare)); got != c.want {
				t.Errorf("its role is %d, want %d", got, c.want)
			}
		})
	}
}

// containerGroup makes a cgroup with the name of an engine's container.
func containerGroup(t *testing.T) *os.File {
	t.Helper()
	out, err := exec.Command("findmnt", "-n", "-f", "-t", "cgroup2", "-o", "TARGET").Output()
	if err != nil {
		t.Skip("skip: needs a cgroup v2 hierarchy")
	}
	parent, err := os.MkdirTemp(string(out[:len(out)-1]), "tsugiki-test-discover-")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(parent, hex)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	group, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		group.Close()
		testkit.Eventually(t, func() error { return unix.Rmdir(path) })
		if err := unix.Rmdir(parent); err != nil {
			t.Error(err)
		}
	})
	return group
}

// The end of a helper is noticed at once, even if no new process has started.
func TestEnd(t *testing.T) {
	cmd := exec.Command(actor(t, "containerd-shim-runc-v2", 0o755, 0), "-id", "outer")
	cmd.Env = []string{actEnv + "=sleep"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	s := New()
	defer s.Close()
	testkit.Eventually(t, func() error {
		if _, err := s.Scan(); err != nil {
			t.Fatal(err)
		}
		if p := s.table[cmd.Process.Pid]; p == nil || p.role != shim {
			return errors.New("no shim")
		}
		return nil
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	s.poll()
	if s.table[cmd.Process.Pid] != nil || !s.dirty {
		t.Error("its end was not noticed")
	}
}

// BenchmarkScan measures a scan with 2000 additional processes: without a new process, and with a
// new one that is read in several scans.
func BenchmarkScan(b *testing.B) {
	for range 2000 {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	s := New()
	defer s.Close()
	scan := func() {
		if _, err := s.Scan(); err != nil {
			b.Fatal(err)
		}
	}
	scan()
	for ; len(s.young) > 0; time.Sleep(100 * time.Millisecond) {
		scan()
	}
	cpu := func() time.Duration {
		var r unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_THREAD, &r)
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	for _, busy := range []bool{false, true} {
		b.Run("busy="+strconv.FormatBool(busy), func(b *testing.B) {
			runtime.LockOSThread() // whose CPU time is read
			defer runtime.UnlockOSThread()
			var used, wall time.Duration
			for b.Loop() {
				if busy {
					if err := exec.Command("true").Run(); err != nil {
						b.Fatal(err)
					}
				}
				time.Sleep(20 * time.Millisecond)
				start, at := cpu(), time.Now()
				scan()
				used, wall = used+cpu()-start, wall+time.Since(at)
			}
			b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-us/scan")
			b.ReportMetric(float64(wall.Microseconds())/float64(b.N), "us/scan")
		})
	}
}
