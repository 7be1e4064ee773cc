package enforcer

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/policy"
)

// childEnv has what this binary does in place of its tests, when a test starts it as another
// process. Its file 3 is the BPF file system.
const childEnv = "TSUGIKI_PIN_CHILD"

func TestMain(m *testing.M) {
	words := strings.Fields(os.Getenv(childEnv))
	if len(words) == 0 {
		os.Exit(m.Run())
	}
	bpffs = "/proc/self/fd/3/."
	if os.Getenv(trivialEnv) != "" {
		if _, err := trivialPrograms(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if err := (map[string]func(string) error{"die": dieAt, "take": takeNumbers, "enforce": enforceIn})[words[0]](words[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// trivialEnv is set for another process whose programs are trivial.
const trivialEnv = "TSUGIKI_PIN_TRIVIAL"

// trivialPrograms puts programs that the kernel verifies at once in the place of ours, until undo.
func trivialPrograms() (undo func(), err error) {
	spec, err := parsed()
	if err != nil {
		return nil, err
	}
	ours := map[*ebpf.ProgramSpec]asm.Instructions{}
	for name, p := range spec.Programs {
		ours[p] = p.Instructions
		p.Instructions = asm.Instructions{asm.Mov.Imm(asm.R0, 1).WithSymbol(name), asm.Return()}
	}
	return func() {
		for p, instructions := range ours {
			p.Instructions = instructions
		}
	}, nil
}

// pinTrivial gives a test a BPF file system, and it and the processes that it starts trivial
// programs: what is pinned when does not depend on what the programs do.
func pinTrivial(t *testing.T) *os.File {
	t.Helper()
	undo, err := trivialPrograms()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(undo)
	t.Setenv(trivialEnv, "1")
	return bpfFileSystem(t)
}

// dieAt takes a number, and is killed at a step of pinning.
func dieAt(step string) error {
	atStep = func(s string) {
		if s == step {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}
	_, _, err := takeNumber()
	return err
}

// takeNumbers prints the set and the number of each of some containers.
func takeNumbers(many string) error {
	var n int
	if _, err := fmt.Sscan(many, &n); err != nil {
		return err
	}
	for range n {
		s, number, err := takeNumber()
		if err != nil {
			return err
		}
		id, err := mapID(s.ContainerByCgroup)
		if err != nil {
			return err
		}
		fmt.Println(id, number)
	}
	return nil
}

// enforceIn lets the sockets of a cgroup reach all, says so, and waits to be killed.
func enforceIn(group string) error {
	dir, err := os.Open(group)
	if err != nil {
		return err
	}
	any, err := endpoint.Parse("any type ipv4 addr 0.0.0.0 port dynamic")
	if err != nil {
		return err
	}
	all := policy.Egress{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Ports: endpoint.PortRange{Last: 65535}, Endpoint: any}
	table, err := policy.NewTable(nil, []policy.Egress{all})
	if err != nil {
		return err
	}
	var netns uint64
	if _, err := fmt.Sscan(os.Getenv("TSUGIKI_NETNS"), &netns); err != nil {
		return err
	}
	e, err := Enforce(dir, table, func(*endpoint.Endpoint) uint64 { return netns })
	if err != nil {
		return err
	}
	if err := e.makeTable(peersTable); err != nil {
		return err
	}
	id, err := mapID(e.set.ContainerByCgroup)
	if err != nil {
		return err
	}
	fmt.Println(id, e.id)
	return unix.Pause()
}

// bpfFileSystem is one of a test's own, which no path leads to. A test that counts on one set for
// its containers needs it: other processes take numbers of the set that all share.
func bpfFileSystem(t *testing.T) *os.File {
	t.Helper()
	context, err := unix.Fsopen("bpf", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatalf("open BPF file system: %v", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		t.Fatalf("make BPF file system: %v", err)
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("mount BPF file system: %v", err)
	}
	mount := os.NewFile(uintptr(fd), "bpf file system")
	before := bpffs
	bpffs = fmt.Sprintf("/proc/self/fd/%d/.", fd)
	t.Cleanup(func() {
		bpffs = before
		mount.Close()
	})
	return mount
}

// other is this binary as another process.
func other(mount *os.File, what string, env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), childEnv+"="+what), env...)
	cmd.ExtraFiles = []*os.File{mount}
	cmd.Stderr = os.Stderr
	return cmd
}

// startOther starts other, and returns the set and the number of the container that it has made.
func startOther(t *testing.T, mount *os.File, group *cgroup.Group, netns uint64) (cmd *exec.Cmd, id ebpf.MapID, number uint32) {
	t.Helper()
	cmd = other(mount, "enforce "+group.Path(), fmt.Sprintf("TSUGIKI_NETNS=%d", netns))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &id, &number)
	}
	if err != nil {
		t.Fatalf("the other process says %q: %v", line, err)
	}
	return cmd, id, number
}
