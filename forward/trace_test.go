package forward

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/lock"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// traced starts a trace of a pod. The channel has its packets, and ends with the trace; then lost
// and the error are there.
func (r *rig) traced(ctx context.Context, p *testPod) (packets <-chan Packet, ended <-chan error, lost *uint64) {
	r.t.Helper()
	list, lost := make(chan Packet, 4096), new(uint64)
	done := r.start(func() (err error) {
		defer close(list)
		*lost, err = r.table.Trace(ctx, p.Device, func(one Packet) { list <- one })
		return err
	})
	r.awaitTrace(p)
	return list, done, lost
}

// awaitTrace waits until a process that lives traces a pod. The flag alone may be of one that was
// killed.
func (r *rig) awaitTrace(p *testPod) {
	r.t.Helper()
	testkit.Eventually(r.t, func() error {
		return r.table.locked(func() error {
			held, err := os.Open(r.table.traceFolder(p.Device))
			if err != nil {
				return err
			}
			defer held.Close()
			if err := lock.Take(held); !errors.Is(err, unix.EWOULDBLOCK) {
				return fmt.Errorf("the pod is not traced yet: %w", err)
			}
			return nil
		})
	})
}

// A trace tells of each packet of the pod where it went and why, until it is ended, and leaves
// nothing.
func TestTrace(t *testing.T) {
	r := newRig(t, false, 3)
	r.silence()
	a, b, c := r.pods[0], r.pods[1], r.pods[2]
	r.do(func() error { return r.table.SetDirect(c.Device, false) })
	ctx, end := context.WithCancel(context.Background())
	packets, ended, lost := r.traced(ctx, a)
	r.do(func() error {
		if _, err := r.table.Trace(ctx, a.Device, func(Packet) {}); !errors.Is(err, ErrTraced) {
			t.Errorf("a second trace: %v", err)
		}
		return r.table.Sweep() // a trace that lives stays
	})
	for _, f := range []frame{
		{b.MAC, a.MAC, nil, 0x0800, ip4(a.Addrs[0], b.Addrs[0], 17)},
		{c.MAC, a.MAC, nil, 0x86dd, ip6(a.Addrs[1], c.Addrs[1], 6)},
		{broadcast, a.MAC, nil, 0x0806, arp(a.MAC, a.Addrs[0], b.Addrs[0])},
		{b.MAC, a.MAC, nil, 0x0800, ip4(b.Addrs[0], b.Addrs[0], 1)},
	} {
		r.run(r.table.programs.ForwardFromPod, a.Device, f.bytes())
	}
	r.run(r.table.programs.ForwardFromPod, b.Device, frame{a.MAC, b.MAC, nil, 0x0800, ip4(b.Addrs[0], a.Addrs[0], 17)}.bytes())
	r.do(func() error { return r.table.SetDirect(a.Device, false) }) // keeps the trace
	r.run(r.table.programs.ForwardFromPod, a.Device, frame{b.MAC, a.MAC, nil, 0x0800, ip4(a.Addrs[0], b.Addrs[0], 17)}.bytes())
	end()
	must(t, <-ended)
	var got []string
	for p := range packets {
		got = append(got, fmt.Sprintf("%s %d %04x %s %s %d %d %d", p.Reason.Name, p.Length, p.EtherType, p.From, p.To, p.Protocol, p.FromPort, p.ToPort))
	}
	a4, a6, b4, c6 := a.Addrs[0], a.Addrs[1], b.Addrs[0], c.Addrs[1]
	want := []string{
		fmt.Sprintf("direct 50 0800 %s %s 17 1000 2000", a4, b4),
		fmt.Sprintf("off 78 86dd %s %s 6 1000 2000", a6, c6),
		fmt.Sprintf("group 42 0806 %s %s 0 0 0", netip.Addr{}, netip.Addr{}),
		fmt.Sprintf("bad-addr 50 0800 %s %s 1 7 7", b4, b4),
		fmt.Sprintf("off 50 0800 %s %s 17 1000 2000", a4, b4),
	}
	if diff := cmp.Diff(want, got); diff != "" || *lost != 0 {
		t.Errorf("%d lost:\n%s", *lost, diff)
	}
	r.traceless(a)
}

// traceless checks that nothing of a trace is left.
func (r *rig) traceless(p *testPod) {
	r.t.Helper()
	if found, err := r.table.Pod(p.Device); err == nil && found.Traced {
		r.t.Error("the pod is still traced")
	}
	if _, err := os.Stat(r.table.traceFolder(p.Device)); !errors.Is(err, os.ErrNotExist) {
		r.t.Errorf("the folder of the trace: %v", err)
	}
	var key uint32
	for name, m := range map[string]interface{ NextKey(key, next any) error }{"rings": r.table.maps.ToldByDevice, "counts": r.table.maps.UntoldByDevice} {
		if m.NextKey(nil, &key) == nil {
			r.t.Errorf("%s are left", name)
		}
	}
}

// Packets for which the buffer has no room are counted.
func TestTraceLosesPackets(t *testing.T) {
	r := newRig(t, false, 2)
	r.silence()
	a, b := r.pods[0], r.pods[1]
	wait, entered := make(chan struct{}), make(chan struct{})
	var told, lost uint64
	ctx, end := context.WithCancel(context.Background())
	done := r.start(func() (err error) {
		lost, err = r.table.Trace(ctx, a.Device, func(Packet) {
			if told++; told == 1 {
				close(entered)
				<-wait
			}
		})
		return err
	})
	f := frame{b.MAC, a.MAC, nil, 0x0800, ip4(a.Addrs[0], b.Addrs[0], 17)}.bytes()
	sent := uint64(0)
	r.awaitTrace(a)
	send := func() {
		r.run(r.table.programs.ForwardFromPod, a.Device, f)
		sent++
	}
	send()
	<-entered
	for range 6000 { // 256 KiB has room for some 3600
		send()
	}
	close(wait)
	end()
	must(t, <-done)
	if told+lost != sent || lost == 0 {
		t.Errorf("%d sent, %d told, %d lost", sent, told, lost)
	}
}

// A trace ends with its pod. What a killed trace has left the next one replaces, and Sweep removes.
func TestTraceEnds(t *testing.T) {
	r := newRig(t, false, 2)
	a, b := r.pods[0], r.pods[1]
	_, ended, _ := r.traced(context.Background(), a)
	r.do(func() error { return r.table.Remove(a.Device) })
	must(t, <-ended)
	r.traceless(a)

	killed := func() {
		reader, held, err := r.table.beginTrace(b.Device)
		must(t, errors.Join(err, reader.Close(), held.Close()))
	}
	killed()
	ctx, end := context.WithCancel(context.Background())
	packets, ended, _ := r.traced(ctx, b)
	must(t, b.ns.Do(func() error {
		return sendRaw(frame{broadcast, b.MAC, nil, 0x0806, arp(b.MAC, b.Addrs[0], a.Addrs[0])}.bytes())
	}))
	late := time.After(testkit.Patience)
	for found := false; !found; {
		select {
		case p := <-packets:
			found = p.EtherType == unix.ETH_P_ARP
		case <-late:
			t.Fatal("the trace does not tell of the packet")
		}
	}
	end()
	must(t, <-ended)
	r.traceless(b)
	killed()
	r.do(r.table.Sweep)
	r.traceless(b)
	killed()
	r.do(func() error {
		link, err := netlink.LinkByIndex(b.Device)
		return errors.Join(err, netlink.LinkDel(link), r.table.Sweep())
	})
	r.traceless(b)
	r.do(func() error {
		_, err := r.table.Trace(ctx, b.Device, nil)
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("a pod that is not there: %v", err)
		}
		return nil
	})
}
