package launch

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// list returns the names of a set, in the order of their numbers.
func (c Capabilities) list() string {
	var found []string
	for n, name := range names {
		if c&bit(n) != 0 {
			found = append(found, name)
		}
	}
	return strings.Join(found, " ")
}

func TestEdit(t *testing.T) {
	const base = "CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE SYS_CHROOT SETFCAP"
	for _, tt := range []struct {
		name, add, drop, want string
	}{
		{"nothing", "", "", base},
		{"with and without CAP_, in any case", "cap_net_raw Ipc_Lock CAP_SYS_TIME", "CAP_CHOWN kill", "DAC_OVERRIDE FOWNER FSETID SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW IPC_LOCK SYS_CHROOT SYS_TIME SETFCAP"},
		{"one twice", "CHOWN CHOWN", "", base},
		{"drop what is not there", "", "SYS_TIME", base},
		{"drop wins over add", "SYS_TIME", "SYS_TIME", base},
		{"drop ALL comes first", "KILL", "ALL", "KILL"},
		{"drop all, in any case", "", "all", ""},
		{"drop ALL and one that is added", "KILL CHOWN", "KILL ALL", "CHOWN"},
		{"the highest", "CHECKPOINT_RESTORE", "ALL", "CHECKPOINT_RESTORE"},
		{"ALL but NET_ADMIN", "ALL", "NET_ADMIN", strings.Replace(strings.Join(names, " "), "NET_ADMIN ", "", 1)},
	} {
		got, err := Default.Edit(strings.Fields(tt.add), strings.Fields(tt.drop))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, got.list()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestEditRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, add, drop, want string
	}{
		{"an unknown name", "FLY", "", `"FLY"`},
		{"an unknown name to drop", "", "FLY", `"FLY"`},
		{"an empty name", "CAP_", "", `"CAP_"`},
		{"NET_ADMIN", "NET_ADMIN", "", "host's interfaces"},
		{"NET_ADMIN among ALL", "ALL", "", "host's interfaces"},
		{"NET_ADMIN after drop ALL", "cap_net_admin", "ALL", "host's interfaces"},
	} {
		got, err := Default.Edit(strings.Fields(tt.add), strings.Fields(tt.drop))
		if !errors.Is(err, ErrCapability) || !strings.Contains(err.Error(), tt.want) || got != 0 {
			t.Errorf("%s: %x, %v; want %s", tt.name, got, err, tt.want)
		}
	}
}

func TestVoids(t *testing.T) {
	for set, want := range map[string][]string{
		"":                         nil,
		"CHOWN SYS_TIME":           nil,
		"NET_RAW SYS_ADMIN CHOWN":  {"SYS_ADMIN", "NET_RAW"},
		"BPF SYS_MODULE":           {"SYS_MODULE", "BPF"},
		"SYS_RAWIO SYS_PTRACE":     {"SYS_PTRACE", "SYS_RAWIO"},
		"NET_BIND_SERVICE PERFMON": nil,
	} {
		c := mustParse(strings.Fields(set)...)
		if got := c.Voids(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", set, got, want)
		}
	}
	if Default.Voids() != nil {
		t.Errorf("the default set voids rules: %v", Default.Voids())
	}
}

// The names are in the order of the kernel's numbers.
func TestNames(t *testing.T) {
	for n, want := range map[int]string{
		unix.CAP_CHOWN: "CHOWN", unix.CAP_NET_ADMIN: "NET_ADMIN", unix.CAP_SYS_ADMIN: "SYS_ADMIN", unix.CAP_SETFCAP: "SETFCAP",
		unix.CAP_SYSLOG: "SYSLOG", unix.CAP_BPF: "BPF", unix.CAP_CHECKPOINT_RESTORE: "CHECKPOINT_RESTORE",
	} {
		if names[n] != want {
			t.Errorf("%d is %s, want %s", n, names[n], want)
		}
	}
	if len(names) != unix.CAP_LAST_CAP+1 {
		t.Errorf("%d names, want %d", len(names), unix.CAP_LAST_CAP+1)
	}
}
