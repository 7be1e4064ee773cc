// Relied upon: a process can be created in a cgroup (CLONE_INTO_CGROUP), and the
// sockets it makes are that cgroup's from the first one on; there is no moment
// in which it could make one elsewhere.
//
// Since: Linux 5.7.
// By: keeper (starts the keeper in its cgroup).

package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func init() {
	roles["make socket"] = func(c *child) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		c.check("make socket", err)
		c.say("%d", fd)
		c.hear()
	}
}

func TestSocketsOfProcessBornInCgroup(t *testing.T) {
	enterNetns(t)
	listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	cg := newCgroup(t)
	connect4 := watch(t, cg, ebpf.AttachCGroupInet4Connect)
	keeper := start(t, "make socket", &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: cg.fd})
	membership, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", keeper.pid))
	try(t, "read membership", err)
	if line := "0::/" + filepath.Base(cg.path) + "\n"; !strings.HasSuffix("\n"+string(membership), "\n"+line) {
		t.Errorf("child is in %q, want %q", membership, line)
	}

	var number int
	keeper.hearInts(t, &number)
	fd := keeper.getfd(t, number)
	try(t, "connect", unix.Connect(fd, sockaddr("127.0.0.1:80")))
	want(t, "runs of the cgroup's program", connect4.runs(t), 1)
}
