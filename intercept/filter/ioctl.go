package filter

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ioctl(2) of a socket tells of the interfaces, addresses and neighbours of the
// socket's network namespace, which for a grafted socket is the host's. The numbers of
// these requests are 0x8910 to 0x89ff (linux/sockios.h) and 0x8b00 to 0x8bff
// (linux/wireless.h). Requests about the socket itself have numbers below 0x8910, or are
// SIOCOUTQNSD, or are not of these types at all (FIONREAD, FIONBIO, SIOCOUTQ): none of
// these is asked about.
const (
	ioctlRequest  = 1 // the argument
	interfaceType = 0x8900
	// interfaceTypes has the bits of a request that say its type. 0x89 and 0x8b differ in
	// one bit, which is left out, so that one comparison finds both.
	interfaceTypes = 0xfffffd00
	interfaceFirst = 0x8910
)

// aboutInterfaces are the conditions by which our own program knows the requests. The
// first is all that others cost.
var aboutInterfaces = []cond{
	{ioctlRequest, bitsAre, interfaceTypes<<32 | interfaceType},
	{ioctlRequest, atLeast, interfaceFirst},
	{ioctlRequest, differs, unix.SIOCOUTQNSD},
}

// interfaceTrap returns the same for profiles. It also traps requests that differ only in the upper
// half, because rules of profiles can express a range only by masks. The masks are of the lower
// half of an argument, because programs of 32-bit ABIs have no upper half.
func interfaceTrap() trap {
	t := trap{verdict: verdict{action: specs.ActNotify}}
	for _, m := range []struct{ mask, value uint64 }{
		{0xfff0, 0x8910},
		{0xffe0, 0x8920},
		{0xfff8, 0x8940},
		{0xfffe, 0x8948},
		{0xffff, 0x894a},
		{0xfffc, 0x894c},
		{0xfff0, 0x8950},
		{0xffe0, 0x8960},
		{0xff80, 0x8980},
		{0xff00, 0x8b00},
	} {
		t.regions = append(t.regions, everything.where(ioctlRequest, masked(m.mask, m.value)))
	}
	for _, m := range []struct{ mask, value uint64 }{
		{0x8000, 0x0000},
		{0xc000, 0xc000},
		{0xe000, 0xa000},
		{0xf000, 0x9000},
		{0xf800, 0x8000},
		{0xfc00, 0x8c00},
		{0xfd00, 0x8800}, // 0x88 and 0x8a
		{0xfff0, 0x8900},
		{0xffff, unix.SIOCOUTQNSD},
	} {
		t.pass = append(t.pass, everything.where(ioctlRequest, masked(m.mask, m.value)))
	}
	return t
}
