package forward

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// FuzzFrames has a pod send any frame. A Go reader of frames, which knows nothing of the programs,
// says what has to be so of those that are handed over, that go on, and that are dropped.
func FuzzFrames(f *testing.F) {
	rigs := map[bool]*rig{}
	for _, routed := range []bool{false, true} {
		r := newRig(f, routed, 3)
		r.do(func() error { return r.table.SetDirect(r.pods[2].Device, false) })
		r.silence()
		rigs[routed] = r
		for _, c := range frameCases(r.pods[0], r.pods[1], r.pods[2]) {
			f.Add(c.f.bytes(), routed)
		}
		a, b := r.pods[0], r.pods[1]
		f.Add(frame{hostMAC, a.MAC, nil, 0x0800, ip4(a.Addrs[0], b.Addrs[0], 6)}.bytes(), routed)
		f.Add(frame{hostMAC, a.MAC, nil, 0x86dd, ip6(a.Addrs[1], b.Addrs[1], 17)}.bytes(), routed)
	}
	f.Fuzz(func(t *testing.T, in []byte, routed bool) {
		if len(in) < 14 || len(in) > 1514 { // what a link without a frame's header does not carry
			return
		}
		r := rigs[routed]
		answer, out, why, err := r.try(r.table.programs.ForwardFromPod, r.pods[0].Device, in)
		if errors.Is(err, unix.EINVAL) { // the kernel tries no program with half an IP header
			return
		}
		must(t, err)
		if err := r.judge(answer, in, out, why); err != nil {
			t.Errorf("%v: answer %d, %q\nframe %x\nthen  %x", err, int32(answer), why, in, out)
		}
	})
}

// FuzzDelivered has any frame come to a pod: the program remembers flows, and neither changes nor
// drops.
func FuzzDelivered(f *testing.F) {
	r := newRig(f, false, 3)
	r.silence()
	for _, c := range frameCases(r.pods[0], r.pods[1], r.pods[2]) {
		f.Add(c.f.bytes())
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 14 || len(in) > 1514 {
			return
		}
		answer, out, why, err := r.try(r.table.programs.ForwardToPod, r.pods[1].Device, in)
		if errors.Is(err, unix.EINVAL) {
			return
		}
		must(t, err)
		if answer != goesOn || why != "" || !bytes.Equal(in, out) {
			t.Errorf("answer %d, %q\nframe %x\nthen  %x", int32(answer), why, in, out)
		}
	})
}

// seen is what a frame says.
type seen struct {
	to, from   [6]byte
	kind       uint16
	src, dst   netip.Addr // invalid if there is no whole header of IP
	ports      bool       // TCP, UDP or an echo, with nothing between the IP header and it
	fragment   bool
	hops       int // where the number is in the frame
	arpClaimed netip.Addr
}

func see(b []byte) (s seen) {
	copy(s.to[:], b)
	copy(s.from[:], b[6:])
	s.kind = binary.BigEndian.Uint16(b[12:])
	p := b[14:]
	switch {
	case s.kind == 0x0800 && len(p) >= 20 && p[0]>>4 == 4:
		s.src, s.dst = netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:]))
		s.fragment = binary.BigEndian.Uint16(p[6:])&0x3fff != 0
		s.hops = 14 + 8
		s.ports = p[0] == 0x45 && upperHasPorts(p[9], p[20:], 1, 0, 8)
	case s.kind == 0x86dd && len(p) >= 40 && p[0]>>4 == 6:
		s.src, s.dst = netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:]))
		s.fragment = p[6] == 44
		s.hops = 14 + 7
		s.ports = upperHasPorts(p[6], p[40:], 58, 128, 129)
	case s.kind == 0x0806 && len(p) >= 28:
		s.arpClaimed = netip.AddrFrom4([4]byte(p[14:]))
	}
	return s
}

func upperHasPorts(upper byte, rest []byte, icmp byte, echoes ...byte) bool {
	if len(rest) < 8 {
		return false
	}
	return upper == 6 || upper == 17 || upper == icmp && slices.Contains(echoes, rest[0])
}

// judge says what is wrong with the answer to a frame of the first pod.
func (r *rig) judge(answer uint32, in, out []byte, why string) error {
	a, b, s := r.pods[0], r.pods[1], see(in)
	local := netip.MustParseAddr("fe80::ff:fe00:a")
	owned := slices.Contains(a.Addrs, s.src) || s.src == local
	want := map[uint32]bool{goesOn: why != "direct" && !isDrop(why), redirect: why == "direct", dropped: isDrop(why)}
	if ok, known := want[answer]; !known || !ok {
		return errors.New("the reason is none of the answer's")
	}
	if answer == dropped {
		return r.rightlyDropped(s, owned, in)
	}
	if s.from != a.MAC {
		return errors.New("the sender's MAC address is not the pod's")
	}
	if answer == goesOn {
		switch {
		case !bytes.Equal(in, out):
			return errors.New("the frame was changed")
		case s.kind == 0x0806 && (slices.Contains(a.Addrs, s.arpClaimed) || s.arpClaimed == netip.IPv4Unspecified()):
			return nil
		case !owned && (s.src != netip.IPv6Unspecified() || !s.dst.IsMulticast()):
			return errors.New("the sender's address is not the pod's")
		}
		return nil
	}
	mac := b.MAC
	if r.routed && s.to != b.MAC {
		mac = hostMAC
	}
	if !owned || s.to != mac || !slices.Contains(b.Addrs, s.dst) || s.fragment || !s.ports {
		return errors.New("the packet may not go directly")
	}
	return r.rightlyChanged(s, in, out)
}

// rightlyDropped says whether a frame that was dropped had nothing wrong.
func (r *rig) rightlyDropped(s seen, owned bool, in []byte) error {
	if s.from == r.pods[0].MAC && owned && s.ports && in[s.hops] != 255 {
		return errors.New("nothing is wrong with the packet")
	}
	return nil
}

// rightlyChanged compares a packet that was handed over with what a router would have made of it.
func (r *rig) rightlyChanged(s seen, in, out []byte) error {
	want := slices.Clone(in)
	if s.to == hostMAC {
		copy(want, r.pods[1].MAC[:])
		copy(want[6:], hostMAC[:])
		want[s.hops]--
		if s.kind == 0x0800 {
			if checksum(in[14:34]) == 0 != (checksum(out[14:34]) == 0) {
				return errors.New("the checksum of the header is another one's")
			}
			copy(want[24:26], out[24:26])
		}
	}
	if !bytes.Equal(want, out) {
		return fmt.Errorf("the frame should be %x", want)
	}
	return nil
}

// try runs a program for a frame on a link. It returns the answer, the frame, and the counts of the
// pod that have changed.
func (r *rig) try(p *ebpf.Program, device int, in []byte) (answer uint32, out []byte, why string, err error) {
	err = r.host.Do(func() error {
		before, err := r.table.Counts(device)
		if err != nil {
			return err
		}
		out = make([]byte, len(in)+64)
		options := &ebpf.RunOptions{Data: in, DataOut: out, Context: skb{Ifindex: uint32(device)}}
		if answer, err = p.Run(options); err != nil {
			return fmt.Errorf("run with %x: %w", in, err)
		}
		out = options.DataOut
		after, err := r.table.Counts(device)
		for name, n := range after.Packets {
			if n != before.Packets[name] {
				why += name
			}
		}
		return err
	})
	return answer, out, why, err
}
