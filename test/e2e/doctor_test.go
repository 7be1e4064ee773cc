package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// finding is what tsugiki doctor -j says of a feature.
type finding struct {
	Name     string `json:"name"`
	Present  *bool  `json:"present"`
	Required bool   `json:"required"`
	Lost     string `json:"lost"`
	Detail   string `json:"detail"`
}

func (f finding) state() string {
	switch {
	case f.Present == nil:
		return "unknown"
	case *f.Present:
		return "present"
	}
	return "missing"
}

// findings reads the output of tsugiki doctor -j, and holds it against its exit
// status.
func findings(t *testing.T, got result) map[string]finding {
	t.Helper()
	var list []finding
	d := json.NewDecoder(strings.NewReader(got.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		t.Fatalf("%v\nstandard output:\n%s\nstandard error:\n%s", err, got.stdout, got.stderr)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		t.Errorf("something follows: %v", err)
	}
	byName, status := map[string]finding{}, 0
	for _, f := range list {
		if f.Name == "" || f.Lost == "" || byName[f.Name].Name != "" {
			t.Errorf("%+v: no name, nothing lost, or twice", f)
		}
		byName[f.Name] = f
		if f.Required && f.state() != "present" {
			status = 1
			if !strings.Contains(got.stderr, f.Name) {
				t.Errorf("standard error does not name %s: %s", f.Name, got.stderr)
			}
		}
	}
	if exitStatus(got.err) != status {
		t.Errorf("exit status %d, want %d\n%s", exitStatus(got.err), status, got.stderr)
	}
	if want := status; strings.Count(got.stderr, "\n") != want {
		t.Errorf("standard error has not %d lines:\n%s", want, got.stderr)
	}
	return byName
}

// Here, where all the other tests run, nothing is missing; and lines say what JSON
// says.
func TestDoctor(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	found := findings(t, try(t, command(t, top.Host, tsugiki, "doctor", "-j")))
	for _, f := range found {
		if f.Required && f.state() != "present" {
			t.Errorf("%s is %s: %s", f.Name, f.state(), f.Detail)
		}
	}
	lines := strings.Split(strings.TrimSuffix(succeed(t, command(t, top.Host, tsugiki, "doctor", "-v")), "\n"), "\n")
	verdict := lines[len(lines)-1]
	if lines = lines[:len(lines)-1]; !strings.HasPrefix(verdict, "tsugiki run works here: ") {
		t.Errorf("the last line is %q", verdict)
	}
	if len(lines) != len(found) {
		t.Errorf("%d lines for %d features", len(lines), len(found))
	}
	column := 0
	for _, l := range lines {
		parts := regexp.MustCompile(`^(\w+)  (required|optional)  (.+?)  +(.+)$`).FindStringSubmatchIndex(l)
		if parts == nil {
			t.Errorf("not in columns: %q", l)
			continue
		}
		part := func(n int) string { return l[parts[2*n]:parts[2*n+1]] }
		if column == 0 {
			column = parts[8]
		}
		f, known := found[part(3)]
		if !known || part(1) != f.state() || part(2) == "required" != f.Required || parts[8] != column {
			t.Errorf("the line is %q, the finding %+v", l, f)
		}
		if !strings.HasSuffix(l, "without it: "+f.Lost) || !strings.Contains(l, f.Detail) {
			t.Errorf("the line is %q, the finding %+v", l, f)
		}
	}
}

// degraded is an environment in which features are missing, or cannot be told.
type degraded struct {
	name   string
	states map[string]string // by feature
	says   map[string]string // regular expressions
	exit   int
}

func (d degraded) check(t *testing.T, got result) {
	t.Helper()
	found := findings(t, got)
	for name, want := range d.states {
		if f, known := found[name]; !known || f.state() != want {
			t.Errorf("%s is %s, want %s: %s", name, f.state(), want, f.Detail)
		}
	}
	for name, re := range d.says {
		if !regexp.MustCompile(re).MatchString(found[name].Detail) {
			t.Errorf("%s: %q does not say %q", name, found[name].Detail, re)
		}
	}
	if exitStatus(got.err) != d.exit {
		t.Errorf("exit status %d, want %d", exitStatus(got.err), d.exit)
	}
}

// In a mount namespace, by limits and by another user namespace. $2 is tsugiki.
func TestDoctorMachineLacks(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	for _, tt := range []struct {
		degraded
		script string
	}{
		{degraded{
			"cgroup v2",
			map[string]string{"cgroup v2": "missing", "writable cgroup v2": "unknown", "cgroup.kill": "unknown", "policy programs": "unknown", "BPF cgroup/bind4": "unknown", "BPF map hash": "present"},
			map[string]string{"cgroup v2": "mount -t cgroup2"},
			1,
		}, `umount -l "$4"; exec "$2" doctor -j`},
		{degraded{
			"writable cgroups",
			map[string]string{"cgroup v2": "present", "writable cgroup v2": "missing", "cgroup.kill": "unknown"},
			map[string]string{"writable cgroup v2": "read-only file system"},
			1,
		}, `mount --bind "$4" "$4"; mount -o remount,ro,bind "$4"; exec "$2" doctor -j`},
		{degraded{
			"files",
			map[string]string{"RLIMIT_NOFILE": "missing", "ample RLIMIT_NOFILE": "missing", "CAP_SYS_ADMIN": "present"},
			map[string]string{"RLIMIT_NOFILE": "limit is 32, at least .* are needed.*ulimit -n"},
			1,
		}, `ulimit -n 32; exec "$2" doctor -j`},
		{degraded{
			"many files",
			map[string]string{"RLIMIT_NOFILE": "present", "ample RLIMIT_NOFILE": "missing"},
			map[string]string{"ample RLIMIT_NOFILE": "limit is 512.*ulimit -n"},
			0,
		}, `ulimit -n 512; exec "$2" doctor -j`},
		{degraded{
			"the machine's user namespace",
			map[string]string{"CAP_SYS_ADMIN": "present", "BPF cgroup/connect4": "missing", "policy programs": "missing", "seccomp listener": "present"},
			map[string]string{"BPF cgroup/connect4": "user namespace"},
			1,
		}, `exec unshare -Ur "$2" doctor -j`},
		{degraded{
			"a run directory", map[string]string{"run directory": "missing"}, map[string]string{"run directory": "(?i)read-only.*--run-dir"}, 1,
		}, `mount -t tmpfs -o ro none "$1"; exec "$2" doctor -j --run-dir "$1/x"`},
		{degraded{
			"a directory", map[string]string{"run directory": "missing"}, map[string]string{"run directory": "not a directory.*--run-dir"}, 1,
		}, `: > "$1/x"; exec "$2" doctor -j --run-dir "$1/x"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, _ := inShell(t, top.Host, tt.script)
			tt.check(t, got)
		})
	}
}

// Who is not root is told what can be told, and what cannot.
func TestDoctorWithoutRoot(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	got := try(t, command(t, top.Host, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all",
		tsugikiForAll(t), "doctor", "-j"))
	degraded{
		states: map[string]string{
			"CAP_SYS_ADMIN": "missing", "CAP_NET_ADMIN": "missing", "CAP_SYS_PTRACE": "missing", "CAP_SETPCAP": "missing",
			"network namespaces": "unknown", "writable cgroup v2": "unknown", "BPF map lpm_trie": "unknown", "BPF cgroup/connect6": "unknown",
			"seccomp user notification": "present", "seccomp listener": "present", "SECCOMP_ADDFD_FLAG_SEND": "present",
			"pidfd_getfd(2)": "present", "kcmp(2)": "present", "tsugiki-gate": "present", "cgroup v2": "present",
		},
		says: map[string]string{"CAP_NET_ADMIN": "run it as root", "network namespaces": "^needs root to tell$", "BPF map lpm_trie": "^needs root to tell$"},
		exit: 1,
	}.check(t, got)
}

// tsugikiForAll is tsugiki with all that belongs to it, where everybody can execute
// it.
func tsugikiForAll(t *testing.T) string {
	t.Helper()
	dir, err := installTree()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "usr/bin/tsugiki")
}

// A program of a container learns that there is no container in a container.
func TestDoctorInContainer(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	got := try(t, graft(t, top.Host, "-e", "203.0.113.9=0.0.0.0", "--", tsugiki, "doctor", "-j"))
	degraded{
		states: map[string]string{"seccomp listener": "missing", "SECCOMP_ADDFD_FLAG_SEND": "unknown", "CAP_SYS_ADMIN": "missing"},
		says:   map[string]string{"seccomp listener": "supervised.*outside"},
		exit:   1,
	}.check(t, got)
}

func TestDoctorInstallation(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	doctor := func(dir string) result {
		return try(t, command(t, top.Host, filepath.Join(dir, "tsugiki"), "doctor", "-j"))
	}
	t.Run("tsugiki alone", func(t *testing.T) {
		dir := installed(t, "tsugiki")
		degraded{
			states: map[string]string{"tsugiki-keeper": "missing", "tsugiki-gate": "missing", "libtsugiki.so": "missing", "policy programs": "present"},
			says:   map[string]string{"tsugiki-keeper": regexp.QuoteMeta(dir) + ".*make build"},
			exit:   1,
		}.check(t, doctor(dir))
	})
	t.Run("for root only", func(t *testing.T) {
		dir := installed(t, binaries(t)...)
		if out, err := exec.Command("cp", "-a", filepath.Join(filepath.Dir(tsugiki), "preload"), dir).CombinedOutput(); err != nil {
			t.Fatalf("copy: %v %s", err, out)
		}
		d := degraded{states: map[string]string{"libtsugiki.so": "present", "libtsugiki.so for all users": "present"}}
		d.check(t, doctor(dir))
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		d.states["libtsugiki.so for all users"] = "missing"
		d.says = map[string]string{"libtsugiki.so for all users": "permission denied"}
		d.check(t, doctor(dir))
	})
}

// Where the kernel knows a system call not, or forbids it.
func TestDoctorKernelLacks(t *testing.T) {
	t.Parallel()
	missing := func(feature, says string, exit int) degraded {
		return degraded{feature, map[string]string{feature: "missing"}, map[string]string{feature: says}, exit}
	}
	for _, tt := range []struct {
		degraded
		call  uint32
		errno unix.Errno
	}{
		{missing("kcmp(2)", "Linux 4.13", 0), unix.SYS_KCMP, unix.ENOSYS},
		{missing("pidfd_getfd(2)", "Linux 5.6", 1), unix.SYS_PIDFD_GETFD, unix.ENOSYS},
		{missing("pidfd_getfd(2)", "not permitted.*seccomp", 1), unix.SYS_PIDFD_GETFD, unix.EPERM},
		{missing("process_vm_readv(2)", "Linux 3.2", 1), unix.SYS_PROCESS_VM_READV, unix.ENOSYS},
		{missing("close_range(2)", "Linux 5.9", 1), unix.SYS_CLOSE_RANGE, unix.ENOSYS},
		{missing("F_SEAL_FUTURE_WRITE", "Linux 5.1", 1), unix.SYS_MEMFD_CREATE, unix.ENOSYS},
		{missing("MADV_WIPEONFORK", "Linux 4.14", 0), unix.SYS_MADVISE, unix.EINVAL},
		{missing("network namespaces", "not permitted.*seccomp", 1), unix.SYS_UNSHARE, unix.EPERM},
		{missing("io_uring", "switched off", 0), unix.SYS_IO_URING_SETUP, unix.EPERM},
		{missing("io_uring", "Linux 5.1", 0), unix.SYS_IO_URING_SETUP, unix.ENOSYS},
		{missing("CLONE_INTO_CGROUP", "Linux 5.7", 1), unix.SYS_CLONE3, unix.ENOSYS},
		{missing("seccomp user notification", "Linux 5.14", 1), unix.SYS_SECCOMP, unix.ENOSYS},
		{missing("BPF map lpm_trie", "not permitted.*seccomp", 1), unix.SYS_BPF, unix.EPERM},
		{missing("policy programs", ".", 1), unix.SYS_BPF, unix.ENOSYS},
	} {
		t.Run(fmt.Sprintf("%s, %s", tt.name, unix.ErrnoName(tt.errno)), func(t *testing.T) {
			tt.check(t, runWithout(t, tt.call, tt.errno, tsugiki, "doctor", "-j"))
		})
	}
}

// What Require looks at is what doctor looks at.
func TestRunRefusesWhatDoctorMisses(t *testing.T) {
	t.Parallel()
	for call, says := range map[uint32]string{
		unix.SYS_PIDFD_GETFD: "pidfd_getfd.*5.6", unix.SYS_CLOSE_RANGE: "close_range.*5.9",
		unix.SYS_PROCESS_VM_READV: "process_vm_readv.*3.2", unix.SYS_SECCOMP: "seccomp user notification.*5.14",
	} {
		t.Run(says, func(t *testing.T) {
			marker := filepath.Join(t.TempDir(), "marker")
			got := runWithout(t, call, unix.ENOSYS, tsugiki, "run", "--run-dir", runDir, "--", "touch", marker)
			refusal{status: 1, says: []string{says, "later"}}.judge(t, got, marker)
		})
	}
}

// runWithout runs a program on a kernel that answers a system call with an error.
func runWithout(t *testing.T, call uint32, errno unix.Errno, name string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(timeout(t), name, args...)
	c.Stdout, c.Stderr = &stdout, &stderr
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the filter ends with the thread, and is its children's
		err := filterOut(call, errno)
		if err == nil {
			err = c.Start()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	err := c.Wait()
	return result{stdout.String(), stderr.String(), err}
}

func filterOut(call uint32, errno unix.Errno) error {
	load := unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS} // the call's number
	is := unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1}
	fail := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)}
	pass := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	list := []unix.SockFilter{load, is, fail, pass}
	prog := unix.SockFprog{Len: uint16(len(list)), Filter: &list[0]}
	if _, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return e
	}
	return nil
}
