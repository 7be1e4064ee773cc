package forward

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/tsugiki/tsugiki/bpf"
)

// A switch floods frames for MAC addresses that it does not know. A pod gets its own frames and
// those to groups.
func TestFramesFromWire(t *testing.T) {
	r := newRig(t, false, 2)
	a, b := r.pods[0], r.pods[1]
	r.wire(0, a)
	for name, c := range map[string]struct {
		to   [6]byte
		want uint32
	}{
		"its own":            {a.MAC, redirect},
		"another pod's":      {b.MAC, dropped},
		"another host's":     {[6]byte{2, 9}, dropped},
		"broadcast":          {broadcast, redirect},
		"multicast, of IPv4": {[6]byte{1, 0, 0x5e, 0, 0, 1}, redirect},
		"multicast, of IPv6": {[6]byte{0x33, 0x33, 0, 0, 0, 1}, redirect},
	} {
		f := frame{c.to, b.MAC, nil, 0x0800, ip4(b.Addrs[0], a.Addrs[0], 17)}
		r.do(func() error {
			answer, err := r.table.programs.ForwardFromWire.Run(&ebpf.RunOptions{Data: f.bytes(), Context: skb{Ifindex: uint32(a.Wire)}})
			if answer != c.want {
				t.Errorf("%s: %d, want %d", name, int32(answer), int32(c.want))
			}
			return err
		})
	}
}

// Kernels before c43272299488 do not take a frame for the pod's own after bpf_redirect_peer. A
// kernel that does cannot show the difference: the test reads the programs.
func TestHandOver(t *testing.T) {
	spec, err := bpf.LoadForward()
	must(t, err)
	for _, name := range []string{"forward_from_pod", "forward_from_wire"} {
		calls := map[asm.BuiltinFunc]int{}
		for _, in := range spec.Programs[name].Instructions {
			if in.IsBuiltinCall() {
				calls[asm.BuiltinFunc(in.Constant)]++
			}
		}
		if calls[asm.FnSkbChangeType] != 1 || calls[asm.FnRedirectPeer] == 0 {
			t.Errorf("%s: %d calls of bpf_skb_change_type, %d of bpf_redirect_peer",
				name, calls[asm.FnSkbChangeType], calls[asm.FnRedirectPeer])
		}
	}
}
