package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// pinnery is a mount namespace with a file system of its own for kernel programs.
type pinnery struct {
	host *testkit.Namespace
	hold *held
	dir  string // of the run directory
}

func newPinnery(t *testing.T, kind string) *pinnery {
	t.Helper()
	host := testkit.Build(t, testkit.Options{NoRemote: true}).Host
	holder := hold(t, command(t, host, "unshare", "-m", "--propagation", "private", "sh", "-ec", "mount -t "+kind+" none /sys/fs/bpf; echo up; cat"), "up")
	return &pinnery{host, holder, t.TempDir()}
}

// command runs tsugiki there.
func (p *pinnery) command(t *testing.T, args ...string) *testkit.Cmd {
	t.Helper()
	return command(t, p.host, "nsenter", append([]string{"-t", fmt.Sprint(p.hold.Process.Pid), "-m", "--", tsugiki}, args...)...)
}

// run starts a container there.
func (p *pinnery) run(t *testing.T, name string) *held {
	t.Helper()
	return hold(t, p.command(t, "run", "--run-dir", p.dir, "--name", name, "-e", "0.0.0.0/0=0.0.0.0", "--", "sh", "-c", "echo up; cat"), "up")
}

// pins lists our directory of the BPF file system.
func (p *pinnery) pins() []string {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/sys/fs/bpf/tsugiki", p.hold.Process.Pid))
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if err != nil && !os.IsNotExist(err) {
		names = append(names, err.Error())
	}
	return names
}

// hostSocketPrograms returns the ids of the BPF programs that are attached for a container's host
// sockets.
func hostSocketPrograms(t *testing.T, name string) []ebpf.ProgramID {
	t.Helper()
	return attached(filepath.Join(ownCgroup(t), "tsugiki-"+name, "keepers"))
}

// Starts without an agent share the programs that the first has loaded, until they are removed.
func TestStartsSharePrograms(t *testing.T) {
	t.Parallel()
	p := newPinnery(t, "bpf")
	defer p.hold.release()
	a := p.run(t, "pin-a")
	pins := p.pins()
	if len(pins) != 1 {
		t.Fatalf("pinned: %v, want one set", pins)
	}
	b := p.run(t, "pin-b")
	first, second := hostSocketPrograms(t, "pin-a"), hostSocketPrograms(t, "pin-b")
	if len(first) == 0 || !slices.Equal(first, second) {
		t.Errorf("programs %v and %v", first, second)
	}
	found := findings(t, try(t, p.command(t, "doctor", "-j")))
	if f := found["pinned policy programs"]; f.state() != "present" || f.Detail != "/sys/fs/bpf/tsugiki" {
		t.Errorf("doctor finds %+v", f)
	}
	// A killed start leaves its name to the next.
	if err := a.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = a.Wait()
	a = p.run(t, "pin-a")
	if again := hostSocketPrograms(t, "pin-a"); !slices.Equal(first, again) || !slices.Equal(pins, p.pins()) {
		t.Errorf("after a kill: programs %v, pins %v; were %v, %v", again, p.pins(), first, pins)
	}
	if out := succeed(t, p.command(t, "doctor", "--clean")); out != "" {
		t.Errorf("doctor --clean prints %q", out)
	}
	if left := p.pins(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if still := hostSocketPrograms(t, "pin-b"); !slices.Equal(second, still) {
		t.Errorf("the programs of a container that runs were %v, are %v", second, still)
	}
	c := p.run(t, "pin-c")
	if third := hostSocketPrograms(t, "pin-c"); slices.Equal(first, third) {
		t.Errorf("programs %v are used after they were removed", third)
	}
	for _, k := range []*held{a, b, c} {
		k.release()
	}
	if got := try(t, p.command(t, "doctor", "--clean", "-j")); exitStatus(got.err) != 2 || !strings.Contains(got.stderr, "--clean") {
		t.Errorf("doctor --clean -j: status %d, %s", exitStatus(got.err), got.stderr)
	}
}

// Where there is no BPF file system, each start loads its own programs, and doctor says so.
func TestStartsWithoutBPFFileSystem(t *testing.T) {
	t.Parallel()
	host := testkit.Build(t, testkit.Options{NoRemote: true}).Host
	got, _ := inShell(t, host, `mount -t tmpfs none /sys/fs/bpf; "$2" run --run-dir "$1" -- true; "$2" doctor --clean; ls -A /sys/fs/bpf >&2; exec "$2" doctor -j`)
	degraded{
		"no BPF file system",
		map[string]string{"pinned policy programs": "missing", "policy programs": "present"},
		map[string]string{"pinned policy programs": "no BPF file system.*mount -t bpf"},
		0,
	}.check(t, result{got.stdout, "", got.err})
	if strings.Contains(got.stderr, "tsugiki\n") {
		t.Errorf("standard error: %s", got.stderr)
	}
}

// Where there is no BPF file system, the programs of a container end with it.
func TestProgramsEndWithContainer(t *testing.T) {
	t.Parallel()
	p := newPinnery(t, "tmpfs")
	defer p.hold.release()
	c := p.run(t, "unpinned")
	programs := hostSocketPrograms(t, "unpinned")
	if len(programs) == 0 {
		t.Fatal("no programs are attached")
	}
	c.release()
	testkit.Eventually(t, func() error { return programsEnded(programs) })
}
