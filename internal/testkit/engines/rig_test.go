package engines

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// ownerEnv makes the test binary make a rig and wait to be killed.
const ownerEnv = "ENGINES_OWNER"

// ownRig prints the name of its rig, in which a program runs that its starter
// does not take along, and waits.
func ownRig() int {
	top, err := testkit.New(context.Background(), testkit.Options{NoRemote: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	r, err := New(top.Host, Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := litter(r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(filepath.Base(r.dir))
	_, _ = os.Stdin.Read(make([]byte, 1)) // until it is killed
	return 1
}

// litter leaves in a rig what an engine leaves that is killed: a shim, mounts,
// groups and files.
func litter(r *Rig) error {
	script := `set -e
mkdir -p ` + r.dir + `/m /sys/fs/cgroup/pids/$1/container $2/container
mount -t tmpfs none ` + r.dir + `/m
setsid unshare --mount --net sh -c 'echo $$ >'$2'/container/cgroup.procs; exec sleep 1000' "$1" >/dev/null 2>&1 &
setsid sh -c 'while :; do sleep 1000; done' "$1" >/dev/null 2>&1 &
touch /etc/$1 /run/$1 /var/lib/$1
until grep -q . $2/container/cgroup.procs; do :; done
`
	_, err := r.run("sh", "-c", script, "litter", r.name, filepath.Dir(r.group.Name()))
	return err
}

// traces are what is left of a rig.
func traces(rig string) error {
	var left []string
	for _, pattern := range []string{
		"/tmp/" + rig, "/etc/tsugiki-" + rig, "/run/tsugiki-" + rig, "/var/lib/tsugiki-" + rig,
		"/sys/fs/cgroup/tsugiki-" + rig, "/sys/fs/cgroup/*/tsugiki-" + rig,
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		left = append(left, found...)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, p := range processes {
		line, err := os.ReadFile(p)
		if err == nil && strings.Contains(string(line), rig) {
			left = append(left, fmt.Sprintf("%s: %q", p, line))
		}
	}
	if mounts, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(mounts), rig) {
		left = append(left, "a mount")
	}
	if len(left) > 0 {
		return errors.New(strings.Join(left, "\n"))
	}
	return nil
}

func TestRigLeavesNothing(t *testing.T) {
	testkit.CheckLeaks(t)
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	r := NewRig(t, top.Host, Options{})
	must(t, litter(r))
	name := filepath.Base(r.dir)
	for _, path := range []string{"/etc", "/run", "/var/lib"} {
		if _, err := os.Stat(r.outside(filepath.Join(path, r.name))); err != nil {
			t.Errorf("what is written to %s in the rig is not there: %v", path, err)
		}
		if _, err := os.Stat(filepath.Join(path, r.name)); err == nil {
			t.Errorf("what is written to %s in the rig is the machine's", path)
		}
	}
	if traces(name) == nil {
		t.Error("traces sees none of a rig that is there")
	}
	for range 2 {
		must(t, r.Close())
	}
	must(t, traces(name))
}

func TestKilledOwnerLeavesNothing(t *testing.T) {
	testkit.Build(t, testkit.Options{NoRemote: true}) // skips as the owner would fail
	owner := exec.Command("/proc/self/exe")
	owner.Env = append(os.Environ(), ownerEnv+"=1")
	owner.Stderr = os.Stderr
	stdout, err := owner.StdoutPipe()
	must(t, err)
	stdin, err := owner.StdinPipe()
	must(t, err)
	defer stdin.Close()
	must(t, owner.Start())
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	must(t, owner.Process.Kill())
	_ = owner.Wait() // killed
	rig := strings.TrimSpace(line)
	if rig == "" {
		t.Fatal("the owner made no rig")
	}
	testkit.Eventually(t, func() error { return traces(rig) })
}
