package kernel

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Offsets in struct __sk_buff, and one in struct bpf_sock.
const (
	skbLen    = 0
	skbFamily = 88
	skbSock   = 168
	sockState = 72
)

// stateNoSocket is what a trace says of a packet without a full socket.
const stateNoSocket = 0

// states are the names of a socket's states, of net/tcp_states.h.
var states = []string{
	"none", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT",
	"CLOSE", "CLOSE_WAIT", "LAST_ACK", "LISTEN", "CLOSING", "NEW_SYN_RECV",
}

// trace is what programs that see packets saw, in order, and whether they refuse
// them.
type trace struct {
	m       *ebpf.Map
	reader  *ringbuf.Reader
	refuses record
}

// seen is a packet as a program saw it.
type seen struct {
	state  uint32 // of the socket that it was called for
	length uint32
	start  [60]byte // of the IP header
}

const seenSize = 4 + 4 + 60

// newTrace attaches a program that notes packets to a cgroup.
func newTrace(t *testing.T, cg *cgroup, at ebpf.AttachType) *trace {
	t.Helper()
	try(t, "allow memory for maps", rlimit.RemoveMemlock()) // before Linux 5.11
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 1 << 16})
	try(t, "make ring buffer", err)
	t.Cleanup(func() { m.Close() })
	reader, err := ringbuf.NewReader(m)
	try(t, "read ring buffer", err)
	t.Cleanup(func() { reader.Close() })
	tr := &trace{m, reader, newRecord(t)}
	attach(t, cg, at, tr.program())
	return tr
}

// program notes the socket's state, the length and as much of the headers as every
// packet has, and gives its verdict.
func (tr *trace) program() asm.Instructions {
	const event = -72
	insns := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R0, 0)}
	for at := int16(event); at < 0; at += 8 {
		insns = append(insns, asm.StoreMem(asm.RFP, at, asm.R0, asm.DWord))
	}
	insns = append(insns,
		asm.Mov.Imm(asm.R7, stateNoSocket),
		asm.LoadMem(asm.R1, asm.R6, skbSock, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "socket noted"),
		asm.FnSkFullsock.Call(),
		asm.JEq.Imm(asm.R0, 0, "socket noted"),
		asm.LoadMem(asm.R7, asm.R0, sockState, asm.Word),
		asm.StoreMem(asm.RFP, event, asm.R7, asm.Word).WithSymbol("socket noted"),
		asm.LoadMem(asm.R1, asm.R6, skbLen, asm.Word),
		asm.StoreMem(asm.RFP, event+4, asm.R1, asm.Word),
	)
	// 60 bytes are an IPv6 and a TCP header; the shortest packet has 28.
	for _, part := range []struct{ from, size int32 }{{0, 28}, {28, 12}, {40, 8}, {48, 12}} {
		insns = append(insns,
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, part.from),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, event+8+part.from),
			asm.Mov.Imm(asm.R4, part.size),
			asm.FnSkbLoadBytes.Call())
	}
	return append(insns,
		asm.LoadMapPtr(asm.R1, tr.m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, event),
		asm.Mov.Imm(asm.R3, seenSize),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.LoadMapValue(asm.R1, tr.refuses.m.FD(), 0),
		asm.LoadMem(asm.R1, asm.R1, 0, asm.Word),
		asm.Mov.Imm(asm.R0, 1),
		asm.JEq.Imm(asm.R1, 0, "pass"),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return().WithSymbol("pass"))
}

// refuse makes the program refuse packets, or let them pass.
func (tr *trace) refuse(t *testing.T, yes bool) {
	t.Helper()
	words := [recordWords]uint32{}
	if yes {
		words[0] = 1
	}
	try(t, "tell program", tr.refuses.m.Update(uint32(0), words, ebpf.UpdateAny))
}

// take returns what was noted since the last call.
func (tr *trace) take(t *testing.T) (all []seen) {
	t.Helper()
	tr.reader.SetDeadline(time.Unix(1, 0)) // what is there, without waiting
	for {
		sample, err := tr.reader.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return all
		}
		try(t, "read ring buffer", err)
		b := sample.RawSample
		all = append(all, seen{
			binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint32(b[4:]), [60]byte(b[8:seenSize]),
		})
	}
}

// tcp is a TCP packet's flags and the state of its socket: "SYN/SYN_SENT".
func (s seen) tcp() string {
	header := s.start[20:]
	if s.start[0]>>4 == 6 {
		header = s.start[40:]
	}
	var flags []string
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK"} {
		if header[13]>>i&1 == 1 && name != "PSH" {
			flags = append(flags, name)
		}
	}
	return strings.Join(flags, "+") + "/" + states[s.state]
}

func (tr *trace) tcp(t *testing.T) string {
	t.Helper()
	var all []string
	for _, s := range tr.take(t) {
		all = append(all, s.tcp())
	}
	return strings.Join(all, " ")
}

// loopbacks are the addresses that tests of both families use.
var loopbacks = []struct {
	name, address string
	domain        int
}{
	{"IPv4", "127.0.0.1:80", unix.AF_INET},
	{"IPv6", "[::1]:80", unix.AF_INET6},
}
