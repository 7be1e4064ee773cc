package forward

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// What a program returns to tc (linux/pkt_cls.h).
const (
	goesOn   = ^uint32(0) // TC_ACT_UNSPEC
	dropped  = 2          // TC_ACT_SHOT
	redirect = 7          // TC_ACT_REDIRECT
)

// frame is one that a pod sends, in pieces.
type frame struct {
	to, from [6]byte
	tag      []byte
	proto    uint16
	payload  []byte
}

func (f frame) bytes() []byte {
	b := append(append([]byte{}, f.to[:]...), f.from[:]...)
	b = append(b, f.tag...)
	return append(binary.BigEndian.AppendUint16(b, f.proto), f.payload...)
}

// ip4 is a packet with 16 bytes of an upper protocol: ports 1000 and 2000, or an echo's header.
func ip4(from, to netip.Addr, upper byte, change ...func([]byte)) []byte {
	b := make([]byte, 36)
	b[0], b[3], b[8], b[9] = 0x45, 36, 64, upper
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	ports(b[20:], upper)
	for _, c := range change {
		c(b)
	}
	binary.BigEndian.PutUint16(b[10:], checksum(b[:20]))
	return b
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func ip6(from, to netip.Addr, upper byte, change ...func([]byte)) []byte {
	b := make([]byte, 64)
	b[0], b[5], b[6], b[7] = 0x60, 24, upper, 64
	copy(b[8:], from.AsSlice())
	copy(b[24:], to.AsSlice())
	ports(b[40:], upper)
	for _, c := range change {
		c(b)
	}
	return b
}

func ports(b []byte, upper byte) {
	switch upper {
	case 1:
		b[0], b[5] = 8, 7
	case 58:
		b[0], b[5] = 128, 7
	default:
		binary.BigEndian.PutUint16(b, 1000)
		binary.BigEndian.PutUint16(b[2:], 2000)
	}
}

func set(at int, bytes ...byte) func([]byte) {
	return func(b []byte) { copy(b[at:], bytes) }
}

func arp(mac [6]byte, sender, target netip.Addr, change ...func([]byte)) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	b = append(append(b, mac[:]...), sender.AsSlice()...)
	b = append(append(b, make([]byte, 6)...), target.AsSlice()...)
	for _, c := range change {
		c(b)
	}
	return b
}

// run is try, which has to succeed.
func (r *rig) run(p *ebpf.Program, device int, in []byte) (answer uint32, out []byte, why string) {
	r.t.Helper()
	answer, out, why, err := r.try(p, device, in)
	must(r.t, err)
	return answer, out, why
}

// silence has the pods' kernels send nothing, which would be counted as well: they look for IPv6
// routers.
func (r *rig) silence() {
	r.t.Helper()
	for _, p := range r.pods {
		must(r.t, p.ns.Do(func() error {
			eth0, err := netlink.LinkByName("eth0")
			if err == nil {
				err = netlink.LinkSetDown(eth0)
			}
			return err
		}))
	}
}

// skb is the beginning of struct __sk_buff (linux/bpf.h) up to what a test sets.
type skb struct {
	Len, PktType, Mark, QueueMapping, Protocol, VlanPresent, VlanTci, VlanProto, Priority, IngressIfindex, Ifindex uint32
	Rest                                                                                                           [37]uint32
}

var broadcast = [6]byte{255, 255, 255, 255, 255, 255}

type frameCase struct {
	f    frame
	want string
}

// frameCases are frames of pod a; b and c are pods, c is switched off.
func frameCases(a, b, c *testPod) map[string]frameCase {
	a4, a6, b4, b6 := a.Addrs[0], a.Addrs[1], b.Addrs[0], b.Addrs[1]
	local := netip.MustParseAddr("fe80::ff:fe00:a") // of a's MAC address
	nodes := netip.MustParseAddr("ff02::1")
	other4, none6 := netip.MustParseAddr("203.0.113.9"), netip.IPv6Unspecified()
	v4 := func(payload []byte) frame { return frame{b.MAC, a.MAC, nil, 0x0800, payload} }
	v6 := func(payload []byte) frame { return frame{b.MAC, a.MAC, nil, 0x86dd, payload} }
	other := set(20, 7, 7) // another flow than that of the fragments, which go the slow way
	neighbor := func(kind byte, target netip.Addr) []byte {
		return ip6(local, nodes, 58, set(7, 255), set(40, kind), set(48, target.AsSlice()...))
	}
	return map[string]frameCase{
		"TCP":               {v4(ip4(a4, b4, 6)), "direct"},
		"UDP":               {v4(ip4(a4, b4, 17)), "direct"},
		"ping":              {v4(ip4(a4, b4, 1)), "direct"},
		"IPv6 TCP":          {v6(ip6(a6, b6, 6)), "direct"},
		"IPv6 UDP":          {v6(ip6(a6, b6, 17)), "direct"},
		"IPv6 ping":         {v6(ip6(a6, b6, 58)), "direct"},
		"hop limit of ND":   {v6(ip6(a6, b6, 17, set(7, 255))), "direct"},
		"TTL 1, bridged":    {v4(ip4(a4, b4, 17, set(8, 1))), "direct"},
		"ICMP error":        {v4(ip4(a4, b4, 1, set(20, 3, 3))), "protocol"},
		"ICMPv6 error":      {v6(ip6(a6, b6, 58, set(40, 1, 4))), "protocol"},
		"SCTP":              {v4(ip4(a4, b4, 132)), "protocol"},
		"IPv4 options":      {v4(ip4(a4, b4, 17, set(0, 0x46))), "protocol"},
		"IPv6 hop-by-hop":   {v6(ip6(a6, b6, 0)), "protocol"},
		"short IPv4":        {v4(ip4(a4, b4, 17)[:22]), "protocol"},
		"IPv6 routing":      {v6(ip6(a6, b6, 43)), "protocol"},
		"IPv6 destination":  {v6(ip6(a6, b6, 60)), "protocol"},
		"IPv6 AH":           {v6(ip6(a6, b6, 51)), "protocol"},
		"IPv6 ESP":          {v6(ip6(a6, b6, 50)), "protocol"},
		"IPv6 nothing more": {v6(ip6(a6, b6, 59)), "protocol"},
		"ICMPv6 in IPv4":    {v4(ip4(a4, b4, 58, set(20, 128))), "protocol"},
		"ICMP in IPv6":      {v6(ip6(a6, b6, 1, set(40, 8))), "protocol"},
		"IPv4 in IPv4":      {v4(ip4(a4, b4, 4)), "protocol"},
		"IPv6 in IPv4":      {v4(ip4(a4, b4, 41)), "protocol"},
		"GRE":               {v4(ip4(a4, b4, 47)), "protocol"},
		"header too small":  {v4(ip4(a4, b4, 17, set(0, 0x44))), "protocol"},
		// The receiver's IP drops the first four, directly or not.
		"says it is longer":  {v4(ip4(a4, b4, 17, set(2, 5, 0xdc), other)), "direct"},
		"says it is shorter": {v4(ip4(a4, b4, 17, set(2, 0, 10), other)), "direct"},
		"IPv6, longer":       {v6(ip6(a6, b6, 17, set(4, 5, 0xdc))), "direct"},
		"wrong checksum":     {v4(append(append(ip4(a4, b4, 17)[:10:10], 1, 2), ip4(a4, b4, 17, other)[12:]...)), "direct"},
		"padded":             {v4(append(ip4(a4, b4, 17, other), make([]byte, 24)...)), "direct"},
		"first fragment":     {v4(ip4(a4, b4, 17, set(6, 0x20))), "fragment"},
		"last fragment":      {v4(ip4(a4, b4, 17, set(7, 9))), "fragment"},
		"IPv6 fragment":      {v6(ip6(a6, b6, 44)), "fragment"},
		"broadcast":          {frame{broadcast, a.MAC, nil, 0x0800, ip4(a4, b4, 17)}, "group"},
		"multicast":          {frame{[6]byte{1, 0, 0x5e, 0, 0, 1}, a.MAC, nil, 0x0800, ip4(a4, netip.MustParseAddr("224.0.0.1"), 17)}, "group"},
		"another host":       {frame{[6]byte{2, 9}, a.MAC, nil, 0x0800, ip4(a4, other4, 17)}, "not-local"},
		"b's MAC, another's": {v4(ip4(a4, other4, 17)), "not-local"},
		"b's MAC, c's IP":    {v4(ip4(a4, c.Addrs[0], 17)), "not-local"},
		"itself":             {frame{a.MAC, a.MAC, nil, 0x0800, ip4(a4, a4, 17)}, "not-local"},
		"switched off":       {frame{c.MAC, a.MAC, nil, 0x0800, ip4(a4, c.Addrs[0], 17)}, "off"},
		"ARP":                {frame{broadcast, a.MAC, nil, 0x0806, arp(a.MAC, a4, b4)}, "group"},
		"ARP, unicast":       {frame{b.MAC, a.MAC, nil, 0x0806, arp(a.MAC, a4, b4)}, "protocol"},
		"ARP probe":          {frame{broadcast, a.MAC, nil, 0x0806, arp(a.MAC, netip.IPv4Unspecified(), b4)}, "group"},
		"DAD":                {v6(ip6(none6, nodes, 58, set(7, 255), set(40, 135))), "not-local"},
		"advertises itself":  {v6(neighbor(136, a6)), "not-local"},
		"router wanted":      {v6(neighbor(133, a6)), "not-local"},

		"MAC of another":            {frame{b.MAC, c.MAC, nil, 0x0800, ip4(a4, b4, 17)}, "bad-mac"},
		"IPv4 of another":           {v4(ip4(c.Addrs[0], b4, 17)), "bad-addr"},
		"IPv4 of nobody":            {v4(ip4(netip.IPv4Unspecified(), b4, 17)), "bad-addr"},
		"IPv6 of another":           {v6(ip6(c.Addrs[1], b6, 17)), "bad-addr"},
		"link-local of another":     {v6(ip6(netip.MustParseAddr("fe80::ff:fe00:b"), b6, 17)), "bad-addr"},
		"no address, to b":          {v6(ip6(none6, b6, 17)), "bad-addr"},
		"mapped in IPv6":            {v6(ip6(netip.AddrFrom16(b4.As16()), b6, 17)), "bad-addr"},
		"ARP for another":           {frame{broadcast, a.MAC, nil, 0x0806, arp(a.MAC, b4, a4)}, "bad-addr"},
		"ARP with another's MAC":    {frame{broadcast, a.MAC, nil, 0x0806, arp(b.MAC, a4, b4)}, "bad-mac"},
		"ARP of odd lengths":        {frame{broadcast, a.MAC, nil, 0x0806, arp(a.MAC, a4, b4, set(4, 8))}, "bad-frame"},
		"short ARP":                 {frame{broadcast, a.MAC, nil, 0x0806, arp(a.MAC, a4, b4)[:20]}, "bad-frame"},
		"IPv4 that says IPv6":       {v4(ip4(a4, b4, 17, set(0, 0x65))), "bad-frame"},
		"IPv6 that says IPv4":       {v6(ip6(a6, b6, 17, set(0, 0x45))), "bad-frame"},
		"VLAN":                      {frame{b.MAC, a.MAC, []byte{0x81, 0, 0, 5}, 0x0800, ip4(a4, b4, 17)}, "bad-frame"},
		"two tags":                  {frame{b.MAC, a.MAC, []byte{0x88, 0xa8, 0, 5, 0x81, 0, 0, 6}, 0x0800, ip4(a4, b4, 17)}, "bad-frame"},
		"802.3 and LLC":             {frame{b.MAC, a.MAC, nil, 36, append([]byte{0xe0, 0xe0, 3}, ip4(a4, b4, 17)[:33]...)}, "bad-frame"},
		"IPv4 in SNAP":              {frame{b.MAC, a.MAC, nil, 44, append([]byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, ip4(a4, b4, 17)...)}, "bad-frame"},
		"MPLS":                      {frame{b.MAC, a.MAC, nil, 0x8847, append([]byte{0, 1, 1, 64}, ip4(a4, b4, 17)...)}, "bad-frame"},
		"PPPoE":                     {frame{b.MAC, a.MAC, nil, 0x8864, append([]byte{0x11, 0, 0, 1, 0, 38, 0, 0x21}, ip4(a4, b4, 17)...)}, "bad-frame"},
		"priority tag":              {frame{b.MAC, a.MAC, []byte{0x81, 0, 0xe0, 0}, 0x86dd, ip6(a6, b6, 17)}, "bad-frame"},
		"spanning tree":             {frame{[6]byte{1, 0x80, 0xc2}, a.MAC, nil, 38, make([]byte, 38)}, "bad-frame"},
		"only a header":             {frame{b.MAC, a.MAC, nil, 0x88b5, nil}, "bad-frame"},
		"advertises b":              {v6(neighbor(136, b6)), "bad-neighbor"},
		"advertises b, cut off":     {v6(neighbor(136, b6)[:60]), "bad-neighbor"},
		"router":                    {v6(neighbor(134, a6)), "bad-neighbor"},
		"redirect":                  {v6(neighbor(137, a6)), "bad-neighbor"},
		"router, behind hop-by-hop": {v6(ip6(local, nodes, 0, set(7, 255), set(40, 58))), "bad-neighbor"},
	}
}

// Each frame goes where its reason says, and no program changes one that is not routed.
func TestFrames(t *testing.T) {
	r := newRig(t, false, 3)
	r.silence()
	a, b, c := r.pods[0], r.pods[1], r.pods[2]
	r.do(func() error { return r.table.SetDirect(c.Device, false) })
	cases := frameCases(a, b, c)
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		in := cases[name].f.bytes()
		answer, out, why := r.run(r.table.programs.ForwardFromPod, a.Device, in)
		want := uint32(goesOn)
		if reason := cases[name].want; reason == "direct" {
			want = redirect
		} else if isDrop(reason) {
			want = dropped
		}
		if answer != want || why != cases[name].want {
			t.Errorf("%s: %d, %q; want %d, %q", name, int32(answer), why, int32(want), cases[name].want)
		}
		if !bytes.Equal(in, out) {
			t.Errorf("%s: changed\n%x to\n%x", name, in, out)
		}
	}
}

// The same on links, for frames that a program of the pod writes. The kernel runs no program for
// trial with half an IPv6 header.
func TestFramesOnLinks(t *testing.T) {
	r := newRig(t, false, 3)
	a, b, c := r.pods[0], r.pods[1], r.pods[2]
	r.do(func() error { return r.table.SetDirect(c.Device, false) })
	cases := frameCases(a, b, c)
	cases["short IPv6"] = frameCase{frame{b.MAC, a.MAC, nil, 0x86dd, ip6(a.Addrs[1], b.Addrs[1], 17)[:39]}, "bad-frame"}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		before := r.counts(a)[cases[name].want]
		must(t, a.ns.Do(func() error { return sendRaw(cases[name].f.bytes()) }))
		testkit.Eventually(t, func() error {
			if now := r.counts(a); now[cases[name].want] <= before {
				return fmt.Errorf("%s: no more of %s: %v", name, cases[name].want, now)
			}
			return nil
		})
	}
}

// sendRaw sends a frame from eth0 of the thread's namespace.
func sendRaw(b []byte) error {
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	return unix.Sendto(s, b, 0, &unix.SockaddrLinklayer{Ifindex: eth0.Attrs().Index, Halen: 6})
}

func isDrop(reason string) bool {
	return slices.ContainsFunc(Reasons[:], func(r Reason) bool { return r.Name == reason && r.Dropped })
}

// A pod that is not checked may send what it likes; what another pod would believe is not direct.
func TestUnchecked(t *testing.T) {
	r := newRig(t, false, 3)
	r.silence()
	a, b, c := r.pods[0], r.pods[1], r.pods[2]
	r.do(func() error {
		p := a.Pod
		p.Checked = false
		return r.table.maps.PodByDevice.Put(uint32(p.Device), row(p))
	})
	cases := frameCases(a, b, c)
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		answer, _, _ := r.run(r.table.programs.ForwardFromPod, a.Device, cases[name].f.bytes())
		if answer != goesOn && answer != redirect {
			t.Errorf("%s: %d", name, int32(answer))
		}
	}
	for _, name := range []string{"VLAN", "two tags", "spanning tree", "ARP for another", "router", "advertises b"} {
		if answer, _, _ := r.run(r.table.programs.ForwardFromPod, a.Device, cases[name].f.bytes()); answer != goesOn {
			t.Errorf("%s: %d", name, int32(answer))
		}
	}
}

// A routed packet gets the MAC addresses of the next hop, a lower TTL and a right checksum.
func TestRoutedFrames(t *testing.T) {
	r := newRig(t, true, 2)
	r.silence()
	a, b := r.pods[0], r.pods[1]
	for name, f := range map[string]frame{
		"IPv4": {hostMAC, a.MAC, nil, 0x0800, ip4(a.Addrs[0], b.Addrs[0], 17)},
		"IPv6": {hostMAC, a.MAC, nil, 0x86dd, ip6(a.Addrs[1], b.Addrs[1], 6)},
	} {
		in := f.bytes()
		answer, out, why := r.run(r.table.programs.ForwardFromPod, a.Device, in)
		want := frame{b.MAC, hostMAC, nil, f.proto, ip4(a.Addrs[0], b.Addrs[0], 17, set(8, 63))}
		if name == "IPv6" {
			want.payload = ip6(a.Addrs[1], b.Addrs[1], 6, set(7, 63))
		}
		if answer != redirect || why != "direct" || !bytes.Equal(out, want.bytes()) {
			t.Errorf("%s: %d, %s\n%x, want\n%x", name, int32(answer), why, out, want.bytes())
		}
	}
	for name, c := range map[string]frameCase{
		"TTL":             {frame{hostMAC, a.MAC, nil, 0x0800, ip4(a.Addrs[0], b.Addrs[0], 17, set(8, 1))}, "ttl"},
		"hop limit":       {frame{hostMAC, a.MAC, nil, 0x86dd, ip6(a.Addrs[1], b.Addrs[1], 6, set(7, 1))}, "ttl"},
		"TTL 0":           {frame{hostMAC, a.MAC, nil, 0x0800, ip4(a.Addrs[0], b.Addrs[0], 17, set(8, 0))}, "ttl"},
		"elsewhere":       {frame{hostMAC, a.MAC, nil, 0x0800, ip4(a.Addrs[0], netip.MustParseAddr("203.0.113.9"), 17)}, "not-local"},
		"another network": {frame{[6]byte{2, 9}, a.MAC, nil, 0x0800, ip4(a.Addrs[0], b.Addrs[0], 17)}, "not-local"},
	} {
		if answer, _, why := r.run(r.table.programs.ForwardFromPod, a.Device, c.f.bytes()); answer != goesOn || why != c.want {
			t.Errorf("%s: %d, %q; want %q", name, int32(answer), why, c.want)
		}
	}
}

// A pod without a row, as while it is removed, sends nothing.
func TestNoRow(t *testing.T) {
	r := newRig(t, false, 2)
	r.silence()
	a, b := r.pods[0], r.pods[1]
	if err := r.table.maps.PodByDevice.Delete(uint32(a.Device)); err != nil {
		t.Fatal(err)
	}
	f := frame{b.MAC, a.MAC, nil, 0x0800, ip4(a.Addrs[0], b.Addrs[0], 17)}
	if answer, _, why := r.run(r.table.programs.ForwardFromPod, a.Device, f.bytes()); answer != dropped || why != "" {
		t.Errorf("%d, %q", int32(answer), why)
	}
}

// Flows of one pod do not displace those of another.
func TestFlowsOfPods(t *testing.T) {
	r := newRig(t, false, 3)
	r.silence()
	a, b, c := r.pods[0], r.pods[1], r.pods[2]
	known := frame{b.MAC, a.MAC, nil, 0x0800, ip4(a.Addrs[0], b.Addrs[0], 6)}
	deliver := func(f frame) {
		if answer, _, _ := r.run(r.table.programs.ForwardToPod, b.Device, f.bytes()); answer != goesOn {
			t.Fatalf("%d", int32(answer))
		}
	}
	deliver(known)
	for i := range 3 * bpfFlowsMax(t) {
		deliver(frame{b.MAC, c.MAC, nil, 0x0800, ip4(c.Addrs[0], b.Addrs[0], 6, set(20, byte(i>>8), byte(i)))})
	}
	back := frame{a.MAC, b.MAC, nil, 0x0800, ip4(b.Addrs[0], a.Addrs[0], 6, set(20, 2000>>8, 2000&255, 1000>>8, 1000&255))}
	for name, f := range map[string]struct {
		pod *testPod
		frame
	}{"there": {a, known}, "back": {b, back}} {
		if answer, _, why := r.run(r.table.programs.ForwardFromPod, f.pod.Device, f.bytes()); answer != goesOn || why != "flow" {
			t.Errorf("%s: %d, %q", name, int32(answer), why)
		}
	}
	first := frame{b.MAC, a.MAC, nil, 0x0800, ip4(a.Addrs[0], b.Addrs[0], 17, set(6, 0x20))}
	deliver(first)
	whole := frame{b.MAC, a.MAC, nil, 0x0800, ip4(a.Addrs[0], b.Addrs[0], 17)}
	if _, _, why := r.run(r.table.programs.ForwardFromPod, a.Device, whole.bytes()); why != "flow" {
		t.Errorf("after a first fragment: %q", why)
	}
}

// A pod's table of flows has room for what each processor keeps for itself.
func TestRoomForFlows(t *testing.T) {
	for cpus, want := range map[int]uint32{1: 2304, 16: 6144, 32: 10240, 128: 10240} {
		if got := flowEntries(2048, cpus); got != want {
			t.Errorf("%d processors: %d entries, want %d", cpus, got, want)
		}
	}
	r := newRig(t, false, 1)
	var flows *ebpf.Map
	must(t, r.table.maps.FlowsByDevice.Lookup(uint32(r.pods[0].Device), &flows))
	defer flows.Close()
	info, err := flows.Info()
	must(t, err)
	cpus, err := ebpf.PossibleCPU()
	must(t, err)
	if want := flowEntries(uint32(bpfFlowsMax(t)), cpus); info.MaxEntries != want {
		t.Errorf("%d entries, want %d", info.MaxEntries, want)
	}
}

func bpfFlowsMax(t *testing.T) int {
	t.Helper()
	spec, err := bpf.LoadForward()
	must(t, err)
	return int(spec.Maps["flows_by_device"].InnerMap.MaxEntries)
}
