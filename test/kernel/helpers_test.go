package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// ---- network namespaces and cgroups ----

// enterNetns puts the test, which then stays on its thread, into a network
// namespace of its own with a loopback that is up.
func enterNetns(t *testing.T) {
	t.Helper()
	needRoot(t)
	moveThread(t, func() error { return unix.Unshare(unix.CLONE_NEWNET) })
	lo, err := netlink.LinkByName("lo")
	try(t, "find loopback", err)
	try(t, "set loopback up", netlink.LinkSetUp(lo))
}

// subtest runs fn in the caller's network namespace, which t.Run, using a
// thread of its own, would not.
func subtest(t *testing.T, name string, fn func(t *testing.T)) {
	t.Helper()
	ns := netnsFD(t)
	t.Run(name, func(t *testing.T) {
		moveThread(t, func() error { return unix.Setns(ns, unix.CLONE_NEWNET) })
		fn(t)
	})
}

// moveThread binds the test to its thread, which move takes to another network
// namespace until the test ends.
func moveThread(t *testing.T, move func() error) {
	t.Helper()
	runtime.LockOSThread()
	before := netnsFD(t)
	try(t, "enter network namespace", move())
	restore := testkit.HoldSignals(t)
	t.Cleanup(func() {
		restore()
		if unix.Setns(before, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // else the thread dies with the test
		}
	})
}

// netnsFD opens the namespace that the calling thread is in.
func netnsFD(t *testing.T) int {
	t.Helper()
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	try(t, "open network namespace", err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

type cgroup struct {
	path string
	fd   int
}

// newCgroup makes a child of the cgroup2 hierarchy's root. What is still in it
// when the test ends is killed.
func newCgroup(t *testing.T) *cgroup {
	t.Helper()
	needRoot(t)
	path, err := os.MkdirTemp(cgroupRoot(t), "kerneltest-")
	try(t, "make cgroup", err)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	try(t, "open cgroup", err)
	cg := &cgroup{path: path, fd: fd}
	t.Cleanup(func() {
		unix.Close(cg.fd)
		os.WriteFile(path+"/cgroup.kill", []byte("1"), 0)
		testkit.Eventually(t, holds("remove cgroup", func() bool {
			err := unix.Rmdir(path)
			return err == nil || errors.Is(err, unix.ENOENT)
		}))
	})
	return cg
}

func cgroupRoot(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	try(t, "read mounts", err)
	for _, line := range strings.Split(string(mounts), "\n") {
		if fields := strings.Fields(line); strings.Contains(line, " - cgroup2 ") {
			return fields[4]
		}
	}
	t.Skip("skip: needs a mounted cgroup2 hierarchy")
	return ""
}

// run executes fn while the test process is a member of the cgroup: sockets
// made by fn belong to it.
func (cg *cgroup) run(t *testing.T, fn func()) {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	try(t, "read own cgroup", err)
	_, home, _ := strings.Cut("\n"+string(own), "\n0::")
	home, _, _ = strings.Cut(home, "\n")
	enter := func(path string) error {
		return os.WriteFile(filepath.Join(path, "cgroup.procs"), []byte("0"), 0)
	}
	try(t, "enter cgroup", enter(cg.path))
	defer func() { try(t, "leave cgroup", enter(filepath.Join(cgroupRoot(t), home))) }()
	fn()
}

// socket makes a socket that belongs to the cgroup.
func (cg *cgroup) socket(t *testing.T, domain, typ, proto int) (fd int) {
	t.Helper()
	cg.run(t, func() { fd = socket(t, domain, typ, proto) })
	return fd
}

// ---- sockets ----

func socket(t *testing.T, domain, typ, proto int) int {
	t.Helper()
	fd, err := unix.Socket(domain, typ|unix.SOCK_CLOEXEC, proto)
	try(t, "make socket", err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// sockaddr makes a socket address from "192.0.2.1:80" or "[2001:db8::1]:80".
func sockaddr(s string) unix.Sockaddr {
	ap := netip.MustParseAddrPort(s)
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16()}
}

// local is the address of a socket, as sockaddr reads it.
func local(t *testing.T, fd int) string {
	t.Helper()
	sa, err := unix.Getsockname(fd)
	try(t, "getsockname", err)
	return addrString(sa)
}

func addrString(sa unix.Sockaddr) string {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)).String()
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port)).String()
	}
	return fmt.Sprintf("%T", sa)
}

func hostOf(address string) string {
	return netip.MustParseAddrPort(address).Addr().String()
}

// listenerAt makes a TCP listener, or for SOCK_DGRAM a bound socket, at address.
// Its accept and receive calls give up after testkit.Patience.
func listenerAt(t *testing.T, typ int, address string) int {
	t.Helper()
	domain := unix.AF_INET
	if strings.HasPrefix(address, "[") {
		domain = unix.AF_INET6
	}
	fd := socket(t, domain, typ, 0)
	try(t, "bind "+address, unix.Bind(fd, sockaddr(address)))
	if typ == unix.SOCK_STREAM {
		try(t, "listen", unix.Listen(fd, 16))
	}
	timeout := unix.NsecToTimeval(testkit.Patience.Nanoseconds())
	try(t, "set timeout", unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	return fd
}

// accept takes a connection and returns it with its peer's address.
func accept(t *testing.T, fd int) (conn int, peer string) {
	t.Helper()
	conn, sa, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
	try(t, "accept", err)
	t.Cleanup(func() { unix.Close(conn) })
	return conn, addrString(sa)
}

// disconnect is connect(AF_UNSPEC), which x/sys cannot express.
func disconnect(t *testing.T, fd int) {
	t.Helper()
	var unspec unix.RawSockaddrInet4
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec))
	if errno != 0 {
		t.Fatalf("connect(AF_UNSPEC): %v", errno)
	}
}

// ---- BPF ----

// Offsets in struct bpf_sock_addr.
const (
	ctxUserFamily = 0
	ctxIP4        = 4
	ctxIP6        = 8
	ctxPort       = 24
	ctxProtocol   = 36
	ctxMsgSrc4    = 40
	ctxMsgSrc6    = 44
	ctxSock       = 64
)

// attach loads a program for a cgroup attach point and attaches it with
// BPF_PROG_ATTACH, so that no file descriptor keeps it there.
func attach(t *testing.T, cg *cgroup, at ebpf.AttachType, insns asm.Instructions) {
	t.Helper()
	prog := load(t, at, insns)
	try(t, fmt.Sprintf("attach %v", at), link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: cg.fd, Program: prog, Attach: at,
	}))
}

func load(t *testing.T, at ebpf.AttachType, insns asm.Instructions) *ebpf.Program {
	t.Helper()
	typ := ebpf.CGroupSockAddr
	switch at {
	case ebpf.AttachCGroupSetsockopt, ebpf.AttachCGroupGetsockopt:
		typ = ebpf.CGroupSockopt
	case ebpf.AttachCGroupInetEgress, ebpf.AttachCGroupInetIngress:
		typ = ebpf.CGroupSKB
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: typ, AttachType: at, License: "GPL", Instructions: insns,
	})
	try(t, fmt.Sprintf("load %v program", at), err)
	t.Cleanup(func() { prog.Close() })
	return prog
}

// record is where a program leaves what it saw: the number of its runs in
// word 0, parts of its context after that.
type record struct{ m *ebpf.Map }

const recordWords = 16

func newRecord(t *testing.T) record {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4 * recordWords, MaxEntries: 1})
	try(t, "make map", err)
	t.Cleanup(func() { m.Close() })
	return record{m}
}

// note counts a run and copies the 32-bit context fields at offsets to words
// 1, 2, … It expects the context in R6 and spoils R1 and R2.
func (r record) note(offsets ...int16) asm.Instructions {
	insns := asm.Instructions{
		asm.LoadMapValue(asm.R1, r.m.FD(), 0),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word),
		asm.Add.Imm(asm.R2, 1),
		asm.StoreMem(asm.R1, 0, asm.R2, asm.Word),
	}
	for i, offset := range offsets {
		insns = append(insns,
			asm.LoadMem(asm.R2, asm.R6, offset, asm.Word),
			asm.StoreMem(asm.R1, int16(4*(i+1)), asm.R2, asm.Word))
	}
	return insns
}

// keep stores register reg, which is neither R1 nor R2, in a word.
func (r record) keep(word int16, reg asm.Register) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapValue(asm.R1, r.m.FD(), 0),
		asm.StoreMem(asm.R1, 4*word, reg, asm.Word),
	}
}

func (r record) word(t *testing.T, i int) uint32 {
	t.Helper()
	var words [recordWords]uint32
	try(t, "read map", r.m.Lookup(uint32(0), &words))
	return words[i]
}

// runs is how often the program ran since the last call.
func (r record) runs(t *testing.T) (n int) {
	t.Helper()
	n = int(r.word(t, 0))
	try(t, "clear map", r.m.Update(uint32(0), [recordWords]uint32{}, ebpf.UpdateAny))
	return n
}

// ip4 is word i, an address in network order.
func (r record) ip4(t *testing.T, i int) string {
	t.Helper()
	w := r.word(t, i)
	return netip.AddrFrom4(*(*[4]byte)(unsafe.Pointer(&w))).String()
}

// storeAddress writes an address to the context.
func storeAddress(offset int16, address string) (insns asm.Instructions) {
	for b := netip.MustParseAddr(address).AsSlice(); len(b) > 0; b, offset = b[4:], offset+4 {
		insns = append(insns,
			asm.Mov.Imm(asm.R2, int32(binary.NativeEndian.Uint32(b))),
			asm.StoreMem(asm.R6, offset, asm.R2, asm.Word))
	}
	return insns
}

// program puts the context into R6, runs the parts, and returns verdict.
func program(verdict int32, parts ...asm.Instructions) asm.Instructions {
	insns := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	for _, p := range parts {
		insns = append(insns, p...)
	}
	return append(insns, asm.Mov.Imm(asm.R0, verdict), asm.Return())
}

// watch attaches a program that allows everything and counts its runs.
func watch(t *testing.T, cg *cgroup, at ebpf.AttachType, offsets ...int16) record {
	t.Helper()
	r := newRecord(t)
	attach(t, cg, at, program(1, r.note(offsets...)))
	return r
}

// ---- checks ----

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
}

func try(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// want checks one fact.
func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// holds is a condition as testkit.Eventually takes it.
func holds(what string, cond func() bool) func() error {
	return func() error {
		if !cond() {
			return errors.New(what + ": not yet")
		}
		return nil
	}
}
