package enforcer

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
)

// BenchmarkPackets is what the packet programs add to a segment of a TCP connection, without
// what the kernel takes to call them: the least of many short runs.
func BenchmarkPackets(b *testing.B) {
	spec, err := parsed()
	if err != nil {
		b.Fatal(err)
	}
	var objs bpf.PolicyObjects
	if err := spec.LoadAndAssign(&objs, nil); err != nil {
		b.Fatal(err)
	}
	defer objs.Close()
	const ethernet = 14
	segment := make([]byte, ethernet+20+20+100)
	binary.BigEndian.PutUint16(segment[12:], unix.ETH_P_IP)
	ip := segment[ethernet:]
	ip[0], ip[9], ip[20+13] = 0x45, unix.IPPROTO_TCP, 0x10 // ACK
	for name, program := range map[string]*ebpf.Program{"leave": objs.Leave, "enter": objs.Enter} {
		b.Run(name, func(b *testing.B) {
			least := time.Hour
			for b.Loop() {
				_, each, err := program.Benchmark(segment, 5000, nil)
				if err != nil {
					b.Fatal(err)
				}
				least = min(least, each)
			}
			b.ReportMetric(float64(least.Nanoseconds()), "ns/packet")
		})
	}
}
