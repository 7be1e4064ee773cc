// Package filter builds the classic-BPF program by which seccomp hands the
// supervisor those system calls that decide about a socket, and lets all others
// pass untouched.
//
// It installs nothing and decides no policy. The programs need Linux 5.14 and
// know the system calls of x86-64 and arm64, with those of the 32-bit ABIs that
// such kernels also run.
//
// A seccomp filter sees numbers and arguments but no memory (seccomp(2)), so it
// can tell an IP socket at socket(2) but not where connect(2) goes.
package filter

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tsugiki/tsugiki/afgraft"

	"golang.org/x/sys/unix"
)

// ErrArch says that the system call numbers of an architecture are not known.
var ErrArch = errors.New("no system call table for this architecture; x86-64 and arm64 have one")

// Mode says which programs' calls the supervisor sees.
type Mode int

// The modes.
const (
	Seccomp Mode = iota // everybody's
	Auto                // all but those that the shim has decided
	Preload             // those that the shim asks about, and those needed for safety
)

var modeNames = map[Mode]string{Auto: "auto", Preload: "preload", Seccomp: "seccomp"}

func (m Mode) String() string { return modeNames[m] }

// ModeNames are the names of the modes.
func ModeNames() []string { return slices.Sorted(maps.Values(modeNames)) }

// ParseMode finds the mode of a name.
func ParseMode(name string) (Mode, bool) {
	for mode, is := range modeNames {
		if is == name {
			return mode, true
		}
	}
	return 0, false
}

// The marks of the shim for the filter, shim/c/marks.h.
const (
	markPass   = 0x7473756769706173
	markAsk    = 0x747375676961736b
	markShim   = 0x747375677368696d
	markFamily = 0xffffffff
)

// Options choose the calls that the supervisor sees.
type Options struct {
	Mode Mode
	// Datagrams asks for every datagram that is sent to an address: only where
	// rules divide destinations in a way that no earlier call can tell. It
	// costs a round trip for each.
	Datagrams bool
	// AFGraft asks for what programs written for AF_GRAFT need besides their own
	// calls: all socket options that may have to be delayed, and all names.
	AFGraft bool
	// Untrapped leaves connect(2), sends and listen(2) to the kernel programs, see
	// graft.NeedsTraps. Datagrams has no effect then.
	Untrapped bool
	// Translated asks for what programs that know IPv4 only need on an IPv6-only network: connects
	// and the names of sockets and their peers, which accept(2) tells too if it has an address. It goes
	// with Untrapped.
	Translated bool
	// Accepts asks for all accept(2): listeners of the container may have connections of two network
	// namespaces (graft/own.go), or connections that are relayed (graft/relayed.go).
	Accepts bool
	// Alone says that no engine's profile refuses sockets that are of no network namespace: so
	// this program has to ask about them.
	Alone bool
}

// Offsets in struct seccomp_data.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// addrMin is the shortest address that names an IP destination: struct
// sockaddr_in. With less, the kernel's own answer is the right one.
const addrMin = 16

type op int

const (
	equal     op = iota // the argument's low half is value
	atLeast             // the low half, unsigned, is at least value
	anyBits             // the low half has one of the bits of value
	nonNull             // the whole argument is not 0
	maskedIs            // the low half and 0xf is value
	bitsAre             // the low half and the upper half of value is value's low half
	differs             // the low half is not value
	marked              // the whole argument is value
	notMarked           // it is not
)

type cond struct {
	arg   int
	op    op
	value uint64
}

// The mark is in the sixth argument, which none of these calls uses.
const markArg = 5

// rule asks the supervisor about a call if all its conditions hold.
type rule struct {
	token  uint32
	number uint32
	only   []cond
}

// Build returns the program for an architecture, by Go's name for it.
func Build(goarch string, o Options) ([]unix.SockFilter, error) {
	n, known := natives[goarch]
	if !known {
		return nil, fmt.Errorf("%w: %s", ErrArch, goarch)
	}
	rules := append(nativeRules(n, o), foreign[goarch]...)
	if !o.Untrapped {
		rules = slices.Concat(rules, destinations(n, o), foreignListen[goarch])
	}
	if o.Alone {
		rules = append(rules, refusals(goarch)...)
	}
	return assemble(rules), nil
}

// decided narrows a rule's conditions to calls about which the shim has not made up its mind.
func (o Options) decided(only ...cond) []cond {
	switch o.Mode {
	case Auto:
		only = append(only, cond{markArg, notMarked, markPass})
	case Preload:
		only = append(only, cond{markArg, marked, markAsk})
	}
	return only
}

// nativeRules are for the calls that are always asked about.
func nativeRules(n native, o Options) []rule {
	var rules []rule
	add := func(c call, only ...cond) {
		rules = append(rules, rule{token: n.token, number: n.numbers[c], only: only})
	}
	for _, family := range []uint64{unix.AF_INET, unix.AF_INET6} {
		for _, typ := range []uint64{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			add(socket, o.decided(cond{0, equal, family}, cond{1, maskedIs, typ})...)
		}
	}
	add(socket, cond{0, equal, afgraft.Family})
	add(setSockOpt, cond{1, equal, afgraft.Level})
	add(getSockOpt, cond{1, equal, afgraft.Level})
	if o.AFGraft {
		// SOL_SOCKET's are never delayed.
		add(setSockOpt, cond{1, differs, unix.SOL_SOCKET})
		add(getSockName)
	}
	if o.Translated {
		add(connect, o.decided(cond{2, atLeast, addrMin})...)
		for _, name := range []call{getSockName, getPeerName} {
			add(name, o.decided()...)
		}
		for _, c := range []call{accept, accept4} {
			add(c, o.decided(cond{1, nonNull, 0})...)
		}
	}
	if o.Accepts {
		add(accept)
		add(accept4)
	}
	if o.Mode != Seccomp {
		add(socket, cond{0, equal, markFamily}, cond{markArg, marked, markShim})
	}
	add(bind, o.decided(cond{2, atLeast, addrMin})...)
	add(ioctl, aboutInterfaces...)
	// A program that makes a network namespace must not get the host's sockets there.
	return append(rules, leaving(n.token, n.numbers[unshare], n.numbers[setNS], n.numbers[clone])...)
}

// destinations returns the rules for the calls that tell where a socket belongs, unless the kernel
// programs alone lead sockets there.
func destinations(n native, o Options) []rule {
	var rules []rule
	add := func(c call, only ...cond) {
		rules = append(rules, rule{token: n.token, number: n.numbers[c], only: only})
	}
	add(connect, o.decided(cond{2, atLeast, addrMin})...)
	add(listen)
	// A send with MSG_FASTOPEN is a connect(2). sendto(2) has no argument left
	// for a mark.
	add(sendMsg, o.decided(cond{2, anyBits, unix.MSG_FASTOPEN})...)
	add(sendMMsg, o.decided(cond{3, anyBits, unix.MSG_FASTOPEN})...)
	if o.Mode != Preload {
		add(sendTo, cond{3, anyBits, unix.MSG_FASTOPEN})
	}
	if o.Datagrams {
		add(sendMsg, o.decided()...)
		add(sendMMsg, o.decided()...)
		if o.Mode != Preload {
			add(sendTo, cond{4, nonNull, 0})
		}
	}
	return rules
}

// assemble lays the rules out one after another, by architecture and number:
//
//	arch != token ? next architecture
//	number != nr  ? next number
//	conditions of each rule of that number; one that fails: next rule
//	return USER_NOTIF
//
// Jumps only go forward and stay within a rule or a block, which keeps them
// below the 255 instructions that a conditional jump can span.
func assemble(rules []rule) []unix.SockFilter {
	var prog []unix.SockFilter
	for _, token := range distinct(rules, func(r rule) uint32 { return r.token }) {
		ofArch := slices.DeleteFunc(slices.Clone(rules), func(r rule) bool { return r.token != token })
		block := []unix.SockFilter{load(offNumber)}
		for _, number := range distinct(ofArch, func(r rule) uint32 { return r.number }) {
			var body []unix.SockFilter
			for _, r := range ofArch {
				if r.number == number {
					body = append(body, r.assemble()...)
				}
			}
			body = append(body, ret(unix.SECCOMP_RET_ALLOW))
			block = append(block, jump(unix.BPF_JEQ, number, 0, len(body)))
			block = append(block, body...)
		}
		// io_uring's requests pass no filter: no filter would see its connect(2) and listen(2).
		// clone3(2) has its flags in memory, where no filter sees them; engines' default profiles
		// do the same to it. Programs fall back to older calls on ENOSYS.
		block = append(block, refuse(ioUringSetup)...)
		block = append(block, refuse(clone3)...)
		if token == archX8664 {
			block = append(block, refuse(x32Bit|ioUringSetup)...)
		}
		block = append(block, ret(unix.SECCOMP_RET_ALLOW))
		// The block may be longer than a conditional jump reaches.
		prog = append(prog, load(offArch), jump(unix.BPF_JEQ, token, 1, 0), skip(len(block)))
		prog = append(prog, block...)
	}
	return append(prog, ret(unix.SECCOMP_RET_ALLOW))
}

func (r rule) assemble() []unix.SockFilter {
	code := []unix.SockFilter{ret(unix.SECCOMP_RET_USER_NOTIF)}
	for _, c := range slices.Backward(r.only) {
		code = append(c.assemble(len(code)), code...)
	}
	return code
}

// assemble returns code that falls through if the condition holds, and else
// jumps over the n instructions that follow it.
func (c cond) assemble(n int) []unix.SockFilter {
	low, value := load(offArgs+8*c.arg), uint32(c.value)
	switch c.op {
	case atLeast:
		return []unix.SockFilter{low, jump(unix.BPF_JGE, value, 0, n)}
	case anyBits:
		return []unix.SockFilter{low, jump(unix.BPF_JSET, value, 0, n)}
	case differs:
		return []unix.SockFilter{low, jump(unix.BPF_JEQ, value, n, 0)}
	case nonNull:
		return []unix.SockFilter{
			low, jump(unix.BPF_JEQ, 0, 0, 2),
			load(offArgs + 8*c.arg + 4), jump(unix.BPF_JEQ, 0, n, 0),
		}
	case maskedIs:
		mask := unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xf}
		return []unix.SockFilter{low, mask, jump(unix.BPF_JEQ, value, 0, n)}
	case bitsAre:
		mask := unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: uint32(c.value >> 32)}
		return []unix.SockFilter{low, mask, jump(unix.BPF_JEQ, value, 0, n)}
	case marked:
		return []unix.SockFilter{
			low, jump(unix.BPF_JEQ, value, 0, n+2),
			load(offArgs + 8*c.arg + 4), jump(unix.BPF_JEQ, uint32(c.value>>32), 0, n),
		}
	case notMarked:
		return []unix.SockFilter{
			low, jump(unix.BPF_JEQ, value, 0, 2),
			load(offArgs + 8*c.arg + 4), jump(unix.BPF_JEQ, uint32(c.value>>32), n, 0),
		}
	default:
		return []unix.SockFilter{low, jump(unix.BPF_JEQ, value, 0, n)}
	}
}

func refuse(number uint32) []unix.SockFilter {
	return []unix.SockFilter{
		jump(unix.BPF_JEQ, number, 0, 1),
		ret(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)),
	}
}

func load(offset int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(offset)}
}

func jump(test uint16, k uint32, ifTrue, ifFalse int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, Jt: uint8(ifTrue), Jf: uint8(ifFalse), K: k}
}

func skip(n int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(n)}
}

func ret(value uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value}
}

// distinct lists the values of key over rules, in order of first appearance.
func distinct(rules []rule, key func(rule) uint32) []uint32 {
	var keys []uint32
	for _, r := range rules {
		if k := key(r); !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}
