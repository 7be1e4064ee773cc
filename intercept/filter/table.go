package filter

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Audit architecture tokens, linux/audit.h.
const (
	archX8664   = unix.AUDIT_ARCH_X86_64
	archI386    = unix.AUDIT_ARCH_I386
	archAarch64 = unix.AUDIT_ARCH_AARCH64
	archArm     = unix.AUDIT_ARCH_ARM
)

// x32Bit marks the system calls of the x32 ABI, which share AUDIT_ARCH_X86_64.
const x32Bit = 0x40000000

// These are the first argument of socketcall(2), linux/net.h.
const (
	socketcallSocket     = 1
	socketcallListen     = 4
	socketcallSetsockopt = 14
)

// These have the same number in every ABI.
const (
	ioUringSetup = 425
	clone3       = 435
)

// call is a system call that the supervisor is asked about.
type call int

const (
	socket call = iota + 1
	connect
	bind
	listen
	sendTo
	sendMsg
	sendMMsg
	unshare
	setNS
	clone
	setSockOpt
	getSockOpt
	getSockName
	getPeerName
	accept
	accept4
	ioctl
)

// native are the system calls of a 64-bit ABI.
type native struct {
	token   uint32
	numbers map[call]uint32
}

var natives = map[string]native{
	"amd64": {archX8664, map[call]uint32{
		socket: 41, connect: 42, bind: 49, listen: 50, sendTo: 44, sendMsg: 46, sendMMsg: 307,
		unshare: 272, setNS: 308, clone: 56, setSockOpt: 54, getSockOpt: 55, getSockName: 51, ioctl: 16,
		getPeerName: 52, accept: 43, accept4: 288,
	}},
	"arm64": {archAarch64, map[call]uint32{
		socket: 198, connect: 203, bind: 200, listen: 201, sendTo: 206, sendMsg: 211, sendMMsg: 269,
		unshare: 97, setNS: 268, clone: 220, setSockOpt: 208, getSockOpt: 209, getSockName: 204, ioctl: 29,
		getPeerName: 205, accept: 202, accept4: 242,
	}},
}

// elsewhere are the families of sockets that are of no network namespace: who has one
// reaches the machine's host or its guests (AF_VSOCK), or its processors (AF_QIPCRTR). The
// gate refuses them.
var elsewhere = []uint64{unix.AF_VSOCK, unix.AF_QIPCRTR}

// refusals are the rules for sockets of these families, in all ABIs. What socketcall(2) is asked for is
// in memory, which the gate reads.
func refusals(goarch string) []rule {
	var rules []rule
	refuse := func(token, number uint32) {
		for _, family := range elsewhere {
			rules = append(rules, rule{token, number, []cond{{0, equal, family}}})
		}
	}
	refuse(natives[goarch].token, natives[goarch].numbers[socket])
	switch goarch {
	case "amd64":
		refuse(archX8664, x32Bit|41)
		refuse(archI386, 359)
		rules = append(rules, rule{archI386, 102, []cond{{0, equal, socketcallSocket}}})
	case "arm64":
		refuse(archArm, 281)
	}
	return rules
}

// foreign are the calls by which a program of another ABI could bypass the kernel programs:
// ioctl(2), for which there is no kernel program, and setsockopt(2), for which the kernel does not
// run them; and the calls by which it gets into another network namespace. All other calls of such
// a program stay in its own namespace, or the kernel programs check them.
var foreign = map[string][]rule{
	"amd64": slices.Concat([]rule{
		{token: archX8664, number: x32Bit | 541},
		{token: archX8664, number: x32Bit | 514, only: aboutInterfaces},
		{token: archI386, number: 54, only: aboutInterfaces},
		{token: archI386, number: 366},
		{token: archI386, number: 102, only: []cond{{arg: 0, op: equal, value: socketcallSetsockopt}}},
	},
		leaving(archX8664, x32Bit|272, x32Bit|308, x32Bit|56),
		leaving(archI386, 310, 346, 120)),
	"arm64": slices.Concat([]rule{
		{token: archArm, number: 54, only: aboutInterfaces},
		{token: archArm, number: 294},
	},
		leaving(archArm, 337, 375, 120)),
}

// foreignListen is listen(2) of other ABIs.
var foreignListen = map[string][]rule{
	"amd64": {
		{token: archX8664, number: x32Bit | 50},
		{token: archI386, number: 363},
		{token: archI386, number: 102, only: []cond{{arg: 0, op: equal, value: socketcallListen}}},
	},
	"arm64": {{token: archArm, number: 284}},
}

// leaving returns the rules for programs that make or enter a network namespace, by the numbers of
// these calls.
func leaving(token, unshare, setNS, clone uint32) []rule {
	return []rule{
		{token, unshare, []cond{{0, anyBits, unix.CLONE_NEWNET}}},
		{token, clone, []cond{{0, anyBits, unix.CLONE_NEWNET}}},
		{token, setNS, []cond{{1, anyBits, unix.CLONE_NEWNET}}},
		{token, setNS, []cond{{1, equal, 0}}}, // any kind of namespace
	}
}
