package kernel

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	bpf "github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// programs are the kinds of kernel programs, each of which is loaded and attached.
// Those of cgroups take CONFIG_CGROUP_BPF.
func programs() []Feature {
	var list []Feature
	for _, p := range []struct {
		name  string
		at    ebpf.AttachType
		typ   ebpf.ProgramType
		since string
		lost  string
	}{
		{"cgroup/connect4", ebpf.AttachCGroupInet4Connect, ebpf.CGroupSockAddr, "4.17", "destinations are not enforced"},
		{"cgroup/connect6", ebpf.AttachCGroupInet6Connect, ebpf.CGroupSockAddr, "4.17", "destinations are not enforced"},
		{"cgroup/bind4", ebpf.AttachCGroupInet4Bind, ebpf.CGroupSockAddr, "4.17", "ports are not enforced"},
		{"cgroup/bind6", ebpf.AttachCGroupInet6Bind, ebpf.CGroupSockAddr, "4.17", "ports are not enforced"},
		{"cgroup/sendmsg4", ebpf.AttachCGroupUDP4Sendmsg, ebpf.CGroupSockAddr, "4.18", "destinations of datagrams are not enforced"},
		{"cgroup/sendmsg6", ebpf.AttachCGroupUDP6Sendmsg, ebpf.CGroupSockAddr, "4.18", "destinations of datagrams are not enforced"},
		{"cgroup/recvmsg4", ebpf.AttachCGroupUDP4Recvmsg, ebpf.CGroupSockAddr, "5.2", "programs see senders other than those they sent to"},
		{"cgroup/recvmsg6", ebpf.AttachCGroupUDP6Recvmsg, ebpf.CGroupSockAddr, "5.2", "programs see senders other than those they sent to"},
		{"cgroup/getsockname4", ebpf.AttachCgroupInet4GetSockname, ebpf.CGroupSockAddr, "5.8", "programs see addresses other than those they asked for"},
		{"cgroup/getsockname6", ebpf.AttachCgroupInet6GetSockname, ebpf.CGroupSockAddr, "5.8", "programs see addresses other than those they asked for"},
		{"cgroup/setsockopt", ebpf.AttachCGroupSetsockopt, ebpf.CGroupSockopt, "5.3", "options that get around the rules are not refused"},
		{"cgroup/getsockopt", ebpf.AttachCGroupGetsockopt, ebpf.CGroupSockopt, "5.3", "programs see options other than those they have set"},
		{"cgroup_skb/egress", ebpf.AttachCGroupInetEgress, ebpf.CGroupSKB, "4.10", "source routes of control messages are not refused"},
		{"cgroup_skb/ingress", ebpf.AttachCGroupInetIngress, ebpf.CGroupSKB, "4.10", "UDP clients receive datagrams from everybody"},
		{"cgroup/sock_ops", ebpf.AttachCGroupSockOps, ebpf.SockOps, "4.13", "listeners that no rule allows are not confined to the loopback device"},
	} {
		list = append(list, Feature{
			Name: "BPF " + p.name, Since: p.since, Required: true, Lost: p.lost,
			Probe: func(s *Scratch) (string, error) { return "", attach(s, p.typ, p.at) },
		})
	}
	return append(list, Feature{
		Name: "BPF sk_lookup", Since: "5.9",
		Lost:  "a server of both families is reached at its IPv6 address only, where rules have one for each",
		Probe: func(*Scratch) (string, error) { return "", bpf.HaveProgramType(ebpf.SkLookup) },
	})
}

// attach loads a program that allows everything, and attaches it to an empty
// cgroup, with which it goes.
func attach(s *Scratch, typ ebpf.ProgramType, at ebpf.AttachType) error {
	p, err := load(typ, at)
	if err != nil {
		return err
	}
	defer p.Close()
	g, err := s.Trial()
	if err != nil {
		return err
	}
	dir, err := g.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	const allowMulti = 2 // BPF_F_ALLOW_MULTI: beside those of others, above it
	return link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: p, Attach: at, Flags: allowMulti})
}

// load loads a program that allows everything.
func load(typ ebpf.ProgramType, at ebpf.AttachType) (*ebpf.Program, error) {
	spec := ebpf.ProgramSpec{
		Type: typ, AttachType: at, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	}
	return ebpf.NewProgramWithOptions(&spec, ebpf.ProgramOptions{LogDisabled: true})
}

func maps() []Feature {
	list := []Feature{{
		Name: "BPF memory", Required: true, // RLIMIT_MEMLOCK counts before 5.11 only
		Lost: "the kernel cannot hold the rules",
		Probe: func(*Scratch) (string, error) {
			// At least as much as all maps of a container.
			spec := ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4096, MaxEntries: 4096}
			m, err := ebpf.NewMap(&spec)
			if err == nil {
				m.Close()
			}
			if errors.Is(err, unix.EPERM) && bpf.HaveMapType(ebpf.Array) == nil {
				err = errors.New("a map of 16 MiB cannot be made; raise RLIMIT_MEMLOCK with ulimit -l")
			}
			return memlock(), err
		},
	}}
	for _, m := range []struct {
		name  string
		typ   ebpf.MapType
		since string
		lost  string
	}{
		{"array", ebpf.Array, "3.19", "the kernel cannot hold the endpoints"},
		{"hash", ebpf.Hash, "3.19", "the kernel cannot hold the names of endpoints"},
		{"lru_hash", ebpf.LRUHash, "4.10", "the kernel cannot remember the senders of datagrams"},
		{"percpu_array", ebpf.PerCPUArray, "4.6", "refusals are not counted"},
		{"lpm_trie", ebpf.LPMTrie, "4.11", "the kernel cannot hold the rules"},
		{"sk_storage", ebpf.SkStorage, "5.2", "the kernel cannot store with a socket what its rules allow"},
		{"sockhash", ebpf.SockHash, "4.18", "connections to an address of IPv6 are not led to a listener of both families"},
		{"ringbuf", ebpf.RingBuf, "5.8", "traces do not show calls about which the kernel programs decide"},
	} {
		list = append(list, Feature{
			Name: "BPF map " + m.name, Since: m.since, Required: true, Lost: m.lost,
			Probe: func(*Scratch) (string, error) { return "", bpf.HaveMapType(m.typ) },
		})
	}
	return list
}

func memlock() string {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Cur == unix.RLIM_INFINITY {
		return "RLIMIT_MEMLOCK unlimited"
	}
	return fmt.Sprintf("RLIMIT_MEMLOCK %d KiB", limit.Cur>>10)
}

// helpers are the helpers that the kernel programs call, by kind of program. All helpers are in
// kernels that have the newest of them.
func helpers() []Feature {
	var list []Feature
	for _, h := range []struct {
		name  string
		typ   ebpf.ProgramType
		since string
		calls []asm.BuiltinFunc
		lost  string
	}{
		{
			"sock_addr", ebpf.CGroupSockAddr, "5.15",
			[]asm.BuiltinFunc{
				asm.FnGetNetnsCookie, asm.FnSkStorageGet, asm.FnSkLookupTcp, asm.FnSkLookupUdp, asm.FnSkRelease,
				asm.FnGetSocketCookie, asm.FnBind, asm.FnRingbufReserve, asm.FnRingbufSubmit, asm.FnGetCurrentPidTgid,
			},
			"endpoints cannot be enforced",
		},
		{
			"sockopt", ebpf.CGroupSockopt, "5.15",
			[]asm.BuiltinFunc{asm.FnSkStorageGet, asm.FnGetNetnsCookie},
			"the socket of the relay cannot be recognized",
		},
		{
			"cgroup_skb", ebpf.CGroupSKB, "5.8",
			[]asm.BuiltinFunc{
				asm.FnSkFullsock, asm.FnSkStorageGet, asm.FnSkLookupTcp, asm.FnSkLookupUdp, asm.FnSkRelease, asm.FnGetSocketCookie,
				asm.FnSkCgroupId, asm.FnSkbCgroupId,
			},
			"packets cannot be checked by their socket",
		},
		{
			"sock_ops", ebpf.SockOps, "5.15",
			[]asm.BuiltinFunc{asm.FnSkStorageGet, asm.FnSetsockopt, asm.FnSockHashUpdate},
			"listeners that no rule allows are not confined to the loopback device",
		},
	} {
		list = append(list, Feature{
			Name: "BPF helpers of " + h.name, Since: h.since, Required: true, Lost: h.lost,
			Probe: func(*Scratch) (string, error) {
				var names []string
				for _, fn := range h.calls {
					if err := bpf.HaveProgramHelper(h.typ, fn); err != nil {
						return "", fmt.Errorf("%s: %w", fn, err)
					}
					names = append(names, strings.TrimPrefix(fn.String(), "Fn"))
				}
				return strings.Join(names, " "), nil
			},
		})
	}
	return append(list, Feature{
		Name: "BPF helpers of sched_cls", Since: "5.12",
		Lost: "tsugiki-cni cannot check pods' addresses, nor hand packets directly from pod to pod",
		Probe: func(*Scratch) (string, error) {
			for _, fn := range []asm.BuiltinFunc{asm.FnRedirectPeer, asm.FnCheckMtu} {
				if err := bpf.HaveProgramHelper(ebpf.SchedCLS, fn); err != nil {
					return "", fmt.Errorf("%s: %w", fn, err)
				}
			}
			return "RedirectPeer CheckMtu", nil
		},
	})
}

// lsm loads a program of the security module, and attaches it to nothing.
func lsm(*Scratch) (string, error) {
	if err := bpf.HaveProgramType(ebpf.LSM); err != nil {
		return "", err
	}
	active, err := os.ReadFile("/sys/kernel/security/lsm")
	if err != nil {
		return "", Untold("programs can be loaded; /sys/kernel/security/lsm, which says whether they run, cannot be read")
	}
	for name := range strings.SplitSeq(strings.TrimSpace(string(active)), ",") {
		if name == "bpf" {
			return "", nil
		}
	}
	return "", errors.New("programs can be loaded, but do not run; start the kernel with bpf in its list lsm=")
}
