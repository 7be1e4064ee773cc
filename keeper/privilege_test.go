package keeper

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A keeper has what SECURITY.md says, whoever it is, and still serves after its filter
// has refused what a keeper has no use for.
func TestKeeperPrivileges(t *testing.T) {
	testkit.CheckLeaks(t)
	needRoot(t)
	for _, id := range []int{0, 12345} {
		k := start(t, Config{UID: id, GID: id})
		if diff := cmp.Diff(testkit.PromisedPrivileges(t, Program), testkit.ProcessPrivileges(t, k.PID())); diff != "" {
			t.Errorf("user %d (-promised +kept):\n%s", id, diff)
		}
		testkit.Refuses(t, k.PID(), map[string]uintptr{
			"openat": unix.SYS_OPENAT, "clone": unix.SYS_CLONE, "setsockopt": unix.SYS_SETSOCKOPT, "ioctl": unix.SYS_IOCTL,
			"pidfd_getfd": unix.SYS_PIDFD_GETFD, "process_vm_readv": unix.SYS_PROCESS_VM_READV, "capset": unix.SYS_CAPSET,
		})
		socket(t, k, tcp)
	}
}

// Nobody can start one for himself.
func TestKeeperPrivilegesOfOthers(t *testing.T) {
	testkit.CheckLeaks(t)
	needRoot(t)
	for _, capability := range []string{"setuid", "setgid"} {
		k, err := Start(Config{Binary: testkit.WithoutCapability(t, program(t), capability), UID: 12345, GID: 12345})
		if err == nil {
			k.Close()
			t.Errorf("without %s a keeper becomes another user", capability)
		}
		t.Log(err)
	}
}
