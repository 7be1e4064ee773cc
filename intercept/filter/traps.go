package filter

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
)

// trap says which forms of a call the profile's permission does not cover, and how they are
// handled.
type trap struct {
	verdict
	regions []region
	pass    []region // all that is in none of the regions; nil: it is to be found out
}

// markBits are those by which the shim's questions are told from MARK_PASS, and from
// what is left in a register: pointers are even, small numbers have no upper bits,
// and negative ones have them all. They are of the lower half, as rules for 32-bit
// ABIs compare no other.
const markBits = 0xe0000009

// pointerBits are those of which the addresses of 64-bit programs have at least one,
// but for what is linked to a fixed place: of the stack, of mapped memory and of
// position independent programs on x86-64 and arm64, and of Go's heap.
const pointerBits = 1<<47 | 1<<46 | 1<<38

// leavable are the kinds of namespaces that setns(2) knows, but the network's.
const leavable = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWTIME

// traps are ours, by the name of the call, which is that of all ABIs. Where there
// are programs of a 32-bit ABI, those of their calls are among them that foreign
// has.
//
// A rule compares all 64 bits where the kernel takes the lower half of an argument,
// so what is trapped is said by masks, or as all that is not to pass.
func traps(o Options, foreign32 bool) map[string]trap {
	ask := func(rs ...region) trap { return trap{verdict: verdict{action: specs.ActNotify}, regions: rs} }
	bit := func(arg int, b uint64) region { return everything.where(arg, masked(b, b)) }
	enosys := trap{verdict: verdict{specs.ActErrno, uint(unix.ENOSYS)}, regions: []region{everything}}

	all := map[string]trap{
		"ioctl":          interfaceTrap(),
		"unshare":        ask(bit(0, unix.CLONE_NEWNET)),
		"clone":          ask(bit(0, unix.CLONE_NEWNET)),
		"setns":          ask(bit(1, unix.CLONE_NEWNET), everything.where(1, masked(unix.CLONE_NEWNET|leavable, 0))),
		"getsockopt":     ask(everything.where(1, masked(0xff, afgraft.Level))),
		"setsockopt":     ask(everything.where(1, masked(0xff, afgraft.Level))),
		"socket":         decided(o.Mode, everything),
		"bind":           decided(o.Mode, everything),
		"io_uring_setup": enosys,
		"clone3":         enosys,
	}
	if !o.Untrapped {
		all["listen"] = ask(everything)
		all["connect"] = decided(o.Mode, everything)
		all["sendmsg"], all["sendmmsg"] = decided(o.Mode, bit(2, unix.MSG_FASTOPEN)), decided(o.Mode, bit(3, unix.MSG_FASTOPEN))
		all["sendto"] = ask(bit(3, unix.MSG_FASTOPEN))
	}
	if !o.Untrapped && o.Datagrams {
		all["sendmsg"], all["sendmmsg"] = decided(o.Mode, everything), decided(o.Mode, everything)
		all["sendto"] = ask(append(all["sendto"].regions, everything.where(4, except(0)))...)
	}
	if o.Translated {
		for _, call := range []string{"connect", "getsockname", "getpeername"} {
			all[call] = decided(o.Mode, everything)
		}
		for _, call := range []string{"accept", "accept4"} {
			all[call] = decided(o.Mode, everything.where(1, except(0)))
		}
	}
	if o.AFGraft {
		all["setsockopt"] = ask(everything.where(1, except(unix.SOL_SOCKET)))
		all["getsockname"] = ask(everything)
	}
	if o.Accepts {
		all["accept"], all["accept4"] = ask(everything), ask(everything)
	}
	if o.Mode == Preload {
		delete(all, "sendto")
		all["socket"] = ask(everything.where(markArg, masked(markBits, markAsk)))
	}
	if foreign32 {
		// For a 32-bit ABI this is all of them: libseccomp leaves the upper half of
		// what it compares away there, and then nothing is left to compare.
		all["setsockopt"] = ask(append(all["setsockopt"].regions, everything.where(3, masked(pointerBits, 0)))...)
	}
	return all
}

// decided narrows a region to the calls about which the shim has not decided.
func decided(m Mode, r region) trap {
	t := trap{verdict: verdict{action: specs.ActNotify}}
	switch m {
	case Auto:
		t.regions = []region{r.where(markArg, except(markPass))}
	case Preload:
		t.regions = []region{r.where(markArg, exactly(markAsk))}
	default:
		t.regions = []region{r}
	}
	return t
}
