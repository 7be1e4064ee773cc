package launch

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Capabilities is a set of Linux capabilities (capabilities(7)). Bit N is capability N.
type Capabilities uint64

// ErrCapability means that a name is not a capability, or that a grafted program must not have
// the capability.
var ErrCapability = errors.New("bad capability")

// names has the names of all capabilities, by number (linux/capability.h).
var names = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID
	SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER
	SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE
	SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN
	SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)

// Default is the set that podman and CRI-O give a container. Docker adds AUDIT_WRITE, MKNOD and
// NET_RAW. Default does not have NET_RAW: with it, a program marks the packets of a host socket
// by a control message, which no kernel program sees.
var Default = mustParse("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT")

// all has the capabilities that this version knows.
var all = Capabilities(1)<<len(names) - 1

// Edit returns the set with capabilities added and dropped. Names are in the notation of
// engines: with or without CAP_, in any case, or ALL. Edit drops ALL first, then adds, then
// drops the other names. It returns ErrCapability for an unknown name and for NET_ADMIN.
func (c Capabilities) Edit(add, drop []string) (Capabilities, error) {
	for _, name := range drop {
		if strings.EqualFold(name, "ALL") {
			c = 0
		}
	}
	for _, name := range add {
		bits, err := parse(name)
		if err != nil {
			return 0, err
		}
		c |= bits
	}
	for _, name := range drop {
		if strings.EqualFold(name, "ALL") {
			continue
		}
		bits, err := parse(name)
		if err != nil {
			return 0, err
		}
		c &^= bits
	}
	if c&bit(unix.CAP_NET_ADMIN) != 0 {
		return 0, fmt.Errorf("%w NET_ADMIN: a grafted program has sockets of the host's namespace; with CAP_NET_ADMIN "+
			"it could configure the host's interfaces through them (SIOCSIFADDR); leave it out", ErrCapability)
	}
	return c, nil
}

// Voids returns the names of the capabilities in the set with which a program can leave its
// network namespace or change its rules. Rules do not bind a program that has one of them.
func (c Capabilities) Voids() []string {
	var found []string
	for _, n := range []int{unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_SYS_MODULE, unix.CAP_SYS_RAWIO, unix.CAP_BPF, unix.CAP_NET_RAW} {
		if c&bit(n) != 0 {
			found = append(found, names[n])
		}
	}
	return found
}

func bit(n int) Capabilities { return 1 << n }

func parse(name string) (Capabilities, error) {
	upper := strings.TrimPrefix(strings.ToUpper(name), "CAP_")
	if upper == "ALL" {
		return all, nil
	}
	n := slices.Index(names, upper)
	if n < 0 {
		return 0, fmt.Errorf("%w %q: no capability has this name, see capabilities(7)", ErrCapability, name)
	}
	return bit(n), nil
}

func mustParse(names ...string) Capabilities {
	var c Capabilities
	for _, name := range names {
		bits, err := parse(name)
		if err != nil {
			panic(err)
		}
		c |= bits
	}
	return c
}

// lastCap returns the highest capability that the kernel knows.
func lastCap() (int, error) {
	data, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// limit removes all other capabilities from the bounding set of the calling thread, and clears
// its ambient set. A program that the thread executes cannot get more than the set.
func (c Capabilities) limit() error {
	last, err := lastCap()
	if err != nil {
		return err
	}
	for n := range last + 1 {
		if c&bit(n) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0); err != nil {
				return fmt.Errorf("drop capability %d: %w", n, err)
			}
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	return nil
}

// set reduces the permitted and effective capabilities of the calling thread to those in the
// set, and clears the inheritable ones.
func (c Capabilities) set() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for i := range data {
		bits := uint32(c >> (32 * i))
		data[i].Permitted &= bits
		data[i].Effective = data[i].Permitted
		data[i].Inheritable = 0
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	return nil
}
