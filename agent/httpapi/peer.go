package httpapi

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
)

// soPeerPidfd is SO_PEERPIDFD of asm/socket.h (6.5).
const soPeerPidfd = 77

// checkPeer returns an error unless the caller is root or our user, and may
// configure the host's network: it has CAP_NET_ADMIN in our user namespace, which
// no program of a container has (see launch.Capabilities), root or not.
//
// Before Linux 6.5, checkPeer may take a caller that ends at once for another process that gets its
// process id right then.
func checkPeer(conn any) error {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("not a unix socket")
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	process := pidfd.None
	cerr := raw.Control(func(fd uintptr) {
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		var number int
		if number, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, soPeerPidfd); err == nil {
			process = pidfd.FD(number)
		} else if errors.Is(err, unix.ENOPROTOOPT) {
			process, err = pidfd.OpenFD(int(cred.Pid))
		}
	})
	if err = errors.Join(cerr, err); err != nil {
		return fmt.Errorf("find out who calls: %w", err)
	}
	defer process.Close()
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d may not change endpoints; root may", cred.Uid)
	}
	may, err := mayConfigure(int(cred.Pid))
	if err != nil {
		return fmt.Errorf("find out what process %d may do: %w", cred.Pid, err)
	}
	// It is alive now, so the files that were read were its own.
	if !process.Lives() {
		return errors.New("find out who calls: the process has ended")
	}
	if !may {
		return fmt.Errorf("process %d may not change endpoints; it needs CAP_NET_ADMIN, outside of containers", cred.Pid)
	}
	return nil
}

func mayConfigure(pid int) (bool, error) {
	theirs, err := os.Stat(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		return false, err
	}
	ours, err := os.Stat("/proc/self/ns/user")
	if err != nil || !os.SameFile(ours, theirs) {
		return false, err
	}
	status, err := proc.Status(pid)
	if err != nil {
		return false, err
	}
	set, err := status.Set("CapEff")
	return set&(1<<unix.CAP_NET_ADMIN) != 0, err
}
