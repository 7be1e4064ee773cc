package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tsugiki/tsugiki/internal/cgroup"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/lock"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// limitEnv is the environment variable that makes the test binary print how many processes its
// group allows.
const limitEnv = "TSUGIKI_TEST_LIMIT"

// killedEnv is the environment variable that makes the test binary make containers until it is
// killed.
const killedEnv = "TSUGIKI_TEST_KILLED"

func TestMain(m *testing.M) {
	if os.Getenv(limitEnv) != "" {
		r := &Rig{}
		var err error
		var left int64
		if r.v1, err = cgroup.Controllers(); err == nil {
			left, err = r.groupLimit("pids", "pids.max", "pids.current", "pids.max", "pids.current")
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(left)
		os.Exit(0)
	}
	if dir := os.Getenv(killedEnv); dir != "" {
		if err := makeAndWait(dir); err != nil {
			fmt.Println(err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// makeAndWait makes a container on each network, prints the rig's folder, and waits until it is
// killed.
func makeAndWait(dir string) error {
	r, err := New(Options{Dir: dir})
	if err != nil {
		return err
	}
	for _, network := range []string{Bridge, Graft, None, Host} {
		_, err := r.Start(context.Background(), Spec{
			Name: network, Network: network, Ports: []uint16{80}, Args: []string{"httpd", "-f", "-p", "0.0.0.0:80"},
		})
		if err != nil {
			return err
		}
	}
	fmt.Println(r.dir)
	select {}
}

// TestKilled kills a process that has a rig with containers, and checks that the next rig removes
// everything of it.
func TestKilled(t *testing.T) {
	t.Setenv(binEnv, testkit.BuildTsugiki(t))
	killed := exec.CommandContext(limited(t), os.Args[0])
	killed.Env = append(os.Environ(), killedEnv+"="+t.TempDir())
	killed.Stderr = os.Stderr
	stdout, err := killed.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	dir := strings.TrimSpace(line)
	if err != nil || !filepath.IsAbs(dir) {
		t.Fatalf("it says %q: %v", line, err)
	}
	if there := inhabitants(t, filepath.Base(dir)); len(there) < 7 {
		t.Errorf("four containers, an agent, a gate and a keeper are %v", there)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait() // killed
	newRig(t, Options{})
	checkGone(t, filepath.Base(dir), dir)
	if left := inhabitants(t, filepath.Base(dir)); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// inhabitants returns the processes in a rig's groups. It leaves out processes that have ended and
// that their new parent has not waited for.
func inhabitants(t *testing.T, name string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if group, err := os.ReadFile(file); err == nil && strings.Contains(string(group), name) && !strings.Contains(string(group), " (deleted)") {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

// TestOthersStay checks that a rig removes nothing of a living one.
func TestOthersStay(t *testing.T) {
	one := newRig(t, Options{})
	c, err := one.Start(limited(t), Spec{Name: "stays", Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	newRig(t, Options{})
	if c.ended() {
		t.Error("another rig has ended the container")
	}
	if err := syscall.Kill(c.PID(), 0); err != nil {
		t.Error(err)
	}
	if f, err := lock.Open(filepath.Join(Registry, one.name())); err == nil {
		f.Close()
		t.Error("the rig is not locked")
	} else if !errors.Is(err, unix.EWOULDBLOCK) {
		t.Error(err)
	}
}
