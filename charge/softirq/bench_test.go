package softirq

import (
	"net"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// BenchmarkPacket measures by how much a datagram to a container slows down while receiving is
// measured. The sender's own thread receives it. Rounds with and without measuring take turns. The
// figures are medians of the differences.
func BenchmarkPacket(b *testing.B) {
	const rounds, packets = 41, 5000
	top := testkit.Build(b, testkit.Options{Containers: 1, NoRemote: true})
	m, err := New()
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	var conn net.Conn
	if err := top.Host.Do(func() error {
		conn, err = net.Dial("udp", testkit.ContainerAddr4(0).String()+":9")
		return err
	}); err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	netns, index := place(b, top.Containers[0])
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	payload := make([]byte, 64)
	timeOf := func() float64 {
		var before, after unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before)
		for range packets {
			_, _ = conn.Write(payload)
		}
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after)
		return float64(after.Nano()-before.Nano()) / packets
	}
	for range b.N {
		var off, more []float64
		for range rounds {
			without := timeOf()
			if err := m.Interface(netns, index, 1); err != nil {
				b.Fatal(err)
			}
			with := timeOf()
			if err := m.ForgetInterface(netns, index, 1); err != nil {
				b.Fatal(err)
			}
			off, more = append(off, without), append(more, with-without)
		}
		slices.Sort(off)
		slices.Sort(more)
		b.ReportMetric(off[rounds/2], "ns/packet")
		b.ReportMetric(more[rounds/2], "more-ns/packet")
		b.ReportMetric(more[rounds/4], "more-ns/packet-25%")
		b.ReportMetric(more[rounds*3/4], "more-ns/packet-75%")
	}
}

// BenchmarkReceive measures a sender whose own thread receives the packets for another container:
// the receiver's time per packet, and the part of it that is credited to the sender.
func BenchmarkReceive(b *testing.B) {
	top := testkit.Build(b, testkit.Options{Containers: 2, NoRemote: true})
	m := open(b)
	to, from := newContainer(b, m, 1, top.Containers[0]), newContainer(b, m, 2, top.Containers[1])
	to.own(b, m)
	from.own(b, m)
	addr := testkit.ContainerAddr4(0).String() + ":9"
	to.run(b, nil, "sink", 1, addr)
	sender := from.run(b, nil, "send", 0, addr)
	sender.send(b)
	m.collect(b, works{})
	before, sums := to.packets(b), works{}
	for b.Loop() {
		sender.send(b)
	}
	m.collect(b, sums)
	b.ReportMetric(float64(sums[1].For)/float64(to.packets(b)-before), "received-ns/packet")
	b.ReportMetric(float64(sums[2].Credit)/float64(sums[1].For), "credit-share")
	b.ReportMetric(float64(sums[2].For)/float64(sums[1].For), "others-share")
}
