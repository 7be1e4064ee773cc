package e2e

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A marker writes the number of a container into the mark of each packet that leaves a socket
// that was made in the container's cgroup, whoever uses it, just before the packet goes to an
// interface: so a capture knows whose it is. The mark leads packets nowhere there.
//
// The lowest bits tell what the packet had before: a mark, a priority that needs a right, or the id of
// the container's loopback as its priority, on the host's loopback device.
const (
	markMagic       = 0x7359 << 16 // the kernel keeps other things there in some of its own packets
	markMask        = 0xffff << 16
	markShift       = 3
	markHadMark     = 1
	markHadPriority = 2
	markOnLoopback  = 4
	// priorityMax is the highest that any program may give itself (socket(7)).
	priorityMax = 6
)

// markOfContainer is what a marker writes for a container's number, without those bits.
func markOfContainer(number int) uint32 { return markMagic | uint32(number)<<markShift }

// newMarker attaches a marker to a cgroup, whose container's loopback has an id if it is on the host. It stays
// until the test ends, or the cgroup's last socket is closed.
func newMarker(t *testing.T, cgroup string, number int, loopback uint32) {
	t.Helper()
	const mark, priority, ifindex = 8, 32, 40 // in struct __sk_buff
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSKB,
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, int32(markOfContainer(number))),
			asm.LoadMem(asm.R3, asm.R1, mark, asm.Word),
			asm.JEq.Imm(asm.R3, 0, "priority"),
			asm.Or.Imm(asm.R2, markHadMark),
			asm.LoadMem(asm.R3, asm.R1, priority, asm.Word).WithSymbol("priority"),
			asm.JLE.Imm(asm.R3, priorityMax, "write"),
			asm.LoadMem(asm.R4, asm.R1, ifindex, asm.Word),
			asm.JNE.Imm(asm.R4, 1, "other"),
			asm.Mov.Imm32(asm.R4, int32(loopback)),
			asm.JNE.Reg(asm.R3, asm.R4, "own"),
			asm.Or.Imm(asm.R2, markOnLoopback),
			asm.Ja.Label("write"),
			// A container whose loopback is its own has this mark there (bpf/sources.h).
			asm.Mov.Imm32(asm.R4, int32(loopback&(1<<30-1)|1<<30)).WithSymbol("own"),
			asm.JEq.Reg(asm.R3, asm.R4, "write"),
			asm.Or.Imm(asm.R2, markHadPriority).WithSymbol("other"),
			asm.StoreMem(asm.R1, mark, asm.R2, asm.Word).WithSymbol("write"),
			asm.Mov.Imm(asm.R0, 1),
			asm.Return(),
		},
		License: "GPL",
	})
	if err != nil {
		t.Fatalf("load marker: %v", err)
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupInetEgress, Program: p})
	if err != nil {
		t.Fatalf("attach marker to %s: %v", cgroup, err)
	}
	t.Cleanup(func() {
		l.Close()
		p.Close()
	})
}

// hostSocket is a socket as the kernel lists it.
type hostSocket struct {
	protocol uint8
	state    uint8
	at       netip.AddrPort
	peer     netip.AddrPort
	inode    uint32
	cgroup   uint64
}

// cgroupID is the number by which the kernel names a cgroup.
func cgroupID(t *testing.T, dir string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatalf("identify cgroup: %v", err)
	}
	return st.Ino
}

// socketsIn lists the TCP and UDP sockets of a namespace that have a port, with the cgroups
// that they were made in.
func socketsIn(t *testing.T, ns *testkit.Namespace) []hostSocket {
	t.Helper()
	var found []hostSocket
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
				list, err := dumpSockets(fd, family, protocol)
				if err != nil {
					return err
				}
				found = append(found, list...)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("list sockets: %v", err)
	}
	return found
}

// dumpSockets asks sock_diag(7).
func dumpSockets(fd int, family, protocol uint8) ([]hostSocket, error) {
	request := make([]byte, 16+56)
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], 20) // SOCK_DIAG_BY_FAMILY
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	request[16], request[17] = family, protocol
	binary.NativeEndian.PutUint32(request[20:], 0xffffffff) // all states
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	var found []hostSocket
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return nil, err
		}
		for b := buf[:n]; len(b) >= 16; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < 16 || size > len(b) {
				return nil, fmt.Errorf("a message of %d bytes", size)
			}
			switch binary.NativeEndian.Uint16(b[4:]) {
			case unix.NLMSG_DONE:
				return found, nil
			case unix.NLMSG_ERROR:
				return nil, fmt.Errorf("sock_diag: %w", unix.Errno(-int32(binary.NativeEndian.Uint32(b[16:]))))
			default:
				found = append(found, parseSocket(protocol, b[16:size]))
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}

// parseSocket reads a struct inet_diag_msg and its attributes.
func parseSocket(protocol uint8, b []byte) hostSocket {
	const size, cgroupAttribute = 72, 21 // INET_DIAG_CGROUP_ID
	s := hostSocket{protocol: protocol, state: b[1]}
	addr := func(at []byte) netip.Addr {
		if b[0] == unix.AF_INET {
			return netip.AddrFrom4([4]byte(at))
		}
		return netip.AddrFrom16([16]byte(at)).Unmap()
	}
	s.at = netip.AddrPortFrom(addr(b[8:]), binary.BigEndian.Uint16(b[4:]))
	s.peer = netip.AddrPortFrom(addr(b[24:]), binary.BigEndian.Uint16(b[6:]))
	s.inode = binary.NativeEndian.Uint32(b[68:])
	for b = b[size:]; len(b) >= 4; {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			break
		}
		if binary.NativeEndian.Uint16(b[2:]) == cgroupAttribute && n >= 12 {
			s.cgroup = binary.NativeEndian.Uint64(b[4:])
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	return s
}

// inodesOf are the sockets among a process's files.
func inodesOf(t *testing.T, pid int) map[uint32]bool {
	t.Helper()
	files, err := testkit.OpenFiles(pid)
	if err != nil {
		t.Fatal(err)
	}
	inodes := map[uint32]bool{}
	for _, name := range files {
		var inode uint32
		if _, err := fmt.Sscanf(name, "socket:[%d]", &inode); err == nil {
			inodes[inode] = true
		}
	}
	return inodes
}

// The judge sees: what leaves a socket of a marked cgroup is captured with the mark, on the
// loopback and on a link, and sock_diag knows the cgroup.
func TestPropertyCaptureKnowsWhose(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{})
	c := newCapture(t, top.Host)
	groups := testkit.NewGroupsIn(t, "unified")
	dir := groups.Dir("unified")
	newMarker(t, dir, 5, 0)
	send := command(t, top.Host, "sh", "-c", `echo $$ > "$0/cgroup.procs" && exec '`+python(t)+`' -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b"one;", ("127.0.0.1", 9))
s.sendto(b"two;", ("`+remoteAddr4+`", 9))
s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 9)
s.sendto(b"three;", ("`+remoteAddr4+`", 9))
s.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 9)
s.sendto(b"four;", ("`+remoteAddr4+`", 9))
s.setsockopt(socket.SOL_IP, socket.IP_OPTIONS, bytes([1, 131, 7, 4, 198, 51, 100, 2]))
s.sendto(b"five;", ("198.51.100.77", 9))
input()
'`, dir)
	stdin, err := send.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, send)
	testkit.Eventually(t, func() error {
		for _, sock := range socketsIn(t, top.Host) {
			if sock.protocol == unix.IPPROTO_UDP && sock.cgroup == cgroupID(t, dir) {
				return nil
			}
		}
		return fmt.Errorf("no UDP socket of the cgroup in %+v, %s", socketsIn(t, top.Host), s.output)
	})
	stdin.Close()
	<-s.ended
	end := command(t, top.Host, python(t), "-c", `import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"end;", ("127.0.0.1", 9))`)
	succeed(t, end)
	type seen struct {
		link, payload string
		mark          uint32
		via           int
	}
	got := map[seen]bool{}
	for _, f := range c.take(t, "end;") {
		if f.outgoing && f.payload != "" {
			got[seen{f.link, f.payload, f.mark, len(f.via)}] = true
		}
	}
	for _, want := range []seen{
		{"lo", "one;", markOfContainer(5), 0},
		{"srv", "two;", markOfContainer(5), 0},
		{"srv", "three;", markOfContainer(5) | markHadMark, 0},
		{"srv", "four;", markOfContainer(5) | markHadMark | markHadPriority, 0},
		{"srv", "five;", markOfContainer(5) | markHadMark | markHadPriority, 1},
	} {
		if !got[want] {
			t.Errorf("not captured: %+v; %v were\n%s", want, got, s.output)
		}
	}
	if n := c.lost(t); n != 0 {
		t.Errorf("%d packets were lost", n)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}
