package rig

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/cgroup"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cni"
)

func TestRoom(t *testing.T) {
	r := newRig(t, Options{})
	said, err := r.CheckRoom(4, Bridge, Overlay, Room{Memory: 1 << 20, Processes: 2})
	if err != nil || !strings.HasPrefix(said, "4 containers (bridge, overlay) take at most ") {
		t.Errorf("four containers: %q, %v", said, err)
	}
	for _, tt := range []struct {
		containers       int
		network, storage string
		each             Room
		want             string
	}{
		{1_000_000, Graft, Dir, Room{}, "sysctl -w user.max_net_namespaces=N"},
		{cni.LinksMax + 1, Bridge, Overlay, Room{}, "links of a bridge, there are 1023"},
		{1, Bridge, Overlay, Room{Connections: 1 << 40}, "sysctl -w net.netfilter.nf_conntrack_max=N"},
		{1, None, Overlay, Room{Disk: 1 << 50}, "--work-dir"},
		{1, None, Overlay, Room{Inodes: 1 << 40}, "of inodes in "},
		{1, None, Overlay, Room{Memory: 1 << 50}, "of memory, there are"},
		{1, None, Overlay, Room{Processes: 1 << 40}, "sysctl -w kernel.pid_max=N"},
		{1, None, Overlay, Room{Files: 1 << 40}, "ulimit -Hn N"},
	} {
		_, err := r.CheckRoom(tt.containers, tt.network, tt.storage, tt.each)
		if !errors.Is(err, ErrRoom) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%d containers with %+v: %v, want %q", tt.containers, tt.each, err, tt.want)
		}
	}
}

// A process in a group with a limit finds the limit, if its group has the controller.
func TestGroupLimit(t *testing.T) {
	mounts, err := cgroup.Controllers()
	if err != nil {
		t.Fatal(err)
	}
	mount, ok := mounts["pids"]
	if !ok {
		t.Skip("skip: needs the v1 controller pids")
	}
	const most = 1000
	group := filepath.Join(mount, "tsugiki-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Rmdir(group); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(group, "pids.max"), []byte(strconv.Itoa(most)), 0); err != nil {
		t.Fatal(err)
	}
	inside := exec.CommandContext(limited(t), "sh", "-c", `echo $$ >"$1/cgroup.procs"; shift; exec "$@"`, "sh", group, os.Args[0])
	inside.Env = append(os.Environ(), limitEnv+"=1")
	out, err := inside.Output()
	left, parseErr := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil || parseErr != nil || left <= 0 || left >= most {
		t.Errorf("in a group of %d processes there are %q left: %v", most, out, err)
	}
}
