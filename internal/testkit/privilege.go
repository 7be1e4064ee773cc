package testkit

import (
	"bufio"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Privileges is what a helper process keeps, as /proc/PID/status tells it.
type Privileges struct {
	Permitted, Effective, Bounding string // names without CAP_, in order of their numbers; "" is none
	Inheritable, Ambient           string
	NoNewPrivs                     bool
	Filters                        int // of system calls, beyond those of the calling process
}

// capabilityNames are those that helpers keep.
var capabilityNames = map[int]string{
	1: "DAC_OVERRIDE", 6: "SETGID", 7: "SETUID", 8: "SETPCAP", 12: "NET_ADMIN", 19: "SYS_PTRACE", 23: "SYS_NICE",
}

// PromisedPrivileges is the row of a process in SECURITY.md's table of helpers.
func PromisedPrivileges(t TB, process string) Privileges {
	t.Helper()
	root, err := ModuleRoot()
	if err != nil {
		t.Fatalf("%v", err)
	}
	file, err := os.Open(filepath.Join(root, "SECURITY.md"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		cells := strings.Split(lines.Text(), " | ")
		if len(cells) != 5 || strings.Trim(cells[0], "| `") != process {
			continue
		}
		kept := strings.ReplaceAll(strings.ReplaceAll(cells[2], "CAP_", ""), ", ", " ")
		if kept == "none" {
			kept = ""
		}
		p := Privileges{Permitted: kept, Effective: kept, Bounding: kept, NoNewPrivs: cells[3] == "yes"}
		if _, err := fmt.Sscan(cells[4], &p.Filters); err != nil {
			t.Fatalf("SECURITY.md: filters of %s: %v", process, err)
		}
		return p
	}
	t.Fatalf("SECURITY.md has no row for %s", process)
	return Privileges{}
}

// ProcessPrivileges reads what a process has.
func ProcessPrivileges(t TB, pid int) Privileges {
	t.Helper()
	p := readPrivileges(t, pid)
	p.Filters -= readPrivileges(t, os.Getpid()).Filters // they are inherited
	return p
}

func readPrivileges(t TB, pid int) Privileges {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatalf("%v", err)
	}
	var p Privileges
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch key {
		case "CapPrm":
			p.Permitted = capabilities(t, value)
		case "CapEff":
			p.Effective = capabilities(t, value)
		case "CapBnd":
			p.Bounding = capabilities(t, value)
		case "CapInh":
			p.Inheritable = capabilities(t, value)
		case "CapAmb":
			p.Ambient = capabilities(t, value)
		case "NoNewPrivs":
			p.NoNewPrivs = value == "1"
		case "Seccomp_filters": // Linux 5.9
			if _, err := fmt.Sscan(value, &p.Filters); err != nil {
				t.Fatalf("read filters %q: %v", value, err)
			}
		}
	}
	return p
}

func capabilities(t TB, hex string) string {
	t.Helper()
	var set uint64
	if _, err := fmt.Sscanf(hex, "%x", &set); err != nil {
		t.Fatalf("read capabilities %q: %v", hex, err)
	}
	var names []string
	for n := range 64 {
		if set>>n&1 == 0 {
			continue
		}
		name, ok := capabilityNames[n]
		if !ok {
			name = fmt.Sprint(n)
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// WithoutCapability is a program that starts another one, to which no capability of
// that name is left. The capability is as setpriv(1) calls it, "sys_ptrace".
func WithoutCapability(t TB, program, capability string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "without")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, filepath.Base(program))
	script := fmt.Sprintf("#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\nexec setpriv --bounding-set -%s -- '%s' \"$@\"\n", capability, program)
	if err := WriteExecutable(path, []byte(script), 0o700); err != nil {
		t.Fatalf("%v", err)
	}
	return path
}

// Refuses checks that a process's filter of system calls refuses those that no helper
// needs but those that are allowed, and others, and that it lets a call pass that each needs.
func Refuses(t TB, pid int, others map[string]uintptr, allowed ...string) {
	t.Helper()
	if errno := Inject(t, pid, unix.SYS_CLOSE, 1<<20); errno != unix.EBADF {
		t.Errorf("close of nothing: %v, want %v: the filter refuses too much, or the call was not made", errno, unix.EBADF)
	}
	calls := maps.Clone(others)
	if calls == nil {
		calls = map[string]uintptr{}
	}
	maps.Copy(calls, map[string]uintptr{
		"execve": unix.SYS_EXECVE, "ptrace": unix.SYS_PTRACE, "process_vm_writev": unix.SYS_PROCESS_VM_WRITEV,
		"mount": unix.SYS_MOUNT, "setns": unix.SYS_SETNS, "unshare": unix.SYS_UNSHARE, "bpf": unix.SYS_BPF,
		"init_module": unix.SYS_INIT_MODULE, "connect": unix.SYS_CONNECT, "bind": unix.SYS_BIND, "kill": unix.SYS_KILL,
		"io_uring_setup": unix.SYS_IO_URING_SETUP, "keyctl": unix.SYS_KEYCTL, "chmod": unix.SYS_FCHMODAT,
	})
	for _, name := range allowed {
		delete(calls, name)
	}
	const nobody = math.MaxInt32 // no pid, no descriptor
	for name, number := range calls {
		if errno := Inject(t, pid, number, nobody, 0, 0, 0, 0, 0); errno != unix.EPERM {
			t.Errorf("%s: %v, want %v", name, errno, unix.EPERM)
		}
	}
}
