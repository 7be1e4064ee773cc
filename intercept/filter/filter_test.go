package filter

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// seccompData is what a filter sees of a call.
type seccompData struct {
	arch   uint32
	number uint32
	args   [6]uint64
}

// word is the 32-bit word at an offset of struct seccomp_data.
func (d *seccompData) word(offset uint32) uint32 {
	switch {
	case offset == offNumber:
		return d.number
	case offset == offArch:
		return d.arch
	case offset >= offArgs && offset < offArgs+48 && offset%4 == 0:
		arg := d.args[(offset-offArgs)/8]
		return uint32(arg >> (8 * (offset % 8)))
	}
	panic("load outside of seccomp_data")
}

// evaluate is the kernel's interpreter for the instructions that we and libseccomp use.
func evaluate(t *testing.T, prog []unix.SockFilter, d seccompData) uint32 {
	t.Helper()
	var a uint32
	for pc := 0; pc < len(prog); pc++ {
		in := prog[pc]
		jump := func(taken bool) {
			if taken {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = d.word(in.K)
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= in.K
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(a == in.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(a >= in.K)
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			jump(a > in.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(a&in.K != 0)
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		default:
			t.Fatalf("instruction %d has the unknown code %#x", pc, in.Code)
		}
	}
	t.Fatal("the program runs off its end")
	return 0
}

const (
	allow  = unix.SECCOMP_RET_ALLOW
	ask    = unix.SECCOMP_RET_USER_NOTIF
	enosys = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

func TestBuild(t *testing.T) {
	const (
		stream = unix.SOCK_STREAM
		dgram  = unix.SOCK_DGRAM
		flags  = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
		ptr    = 0x7fff_0000_0000 // its low half is 0
	)
	tests := []struct {
		name      string
		goarch    string
		datagrams bool
		data      seccompData
		want      uint32
	}{
		{"TCP socket", "amd64", false, seccompData{archX8664, 41, [6]uint64{unix.AF_INET, stream, 0}}, ask},
		{"TCP6 socket with flags", "amd64", false, seccompData{archX8664, 41, [6]uint64{unix.AF_INET6, stream | flags, 6}}, ask},
		{"UDP socket", "amd64", false, seccompData{archX8664, 41, [6]uint64{unix.AF_INET, dgram | flags, 17}}, ask},
		{"family in the low half only", "amd64", false, seccompData{archX8664, 41, [6]uint64{1<<32 | unix.AF_INET, stream, 0}}, ask},
		{"raw socket", "amd64", false, seccompData{archX8664, 41, [6]uint64{unix.AF_INET, unix.SOCK_RAW, 1}}, allow},
		{"unix socket", "amd64", false, seccompData{archX8664, 41, [6]uint64{unix.AF_UNIX, stream, 0}}, allow},
		{"netlink socket", "amd64", false, seccompData{archX8664, 41, [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, 0}}, allow},
		{"connect", "amd64", false, seccompData{archX8664, 42, [6]uint64{3, ptr, 16}}, ask},
		{"connect with a short address", "amd64", false, seccompData{archX8664, 42, [6]uint64{3, ptr, 15}}, allow},
		{"connect with a negative length", "amd64", false, seccompData{archX8664, 42, [6]uint64{3, ptr, 0xffff_ffff}}, ask},
		{"bind", "amd64", false, seccompData{archX8664, 49, [6]uint64{3, ptr, 28}}, ask},
		{"listen", "amd64", false, seccompData{archX8664, 50, [6]uint64{3, 0}}, ask},
		{"accept", "amd64", false, seccompData{archX8664, 43, [6]uint64{3}}, allow},
		{"SIOCGIFCONF", "amd64", false, seccompData{archX8664, 16, [6]uint64{3, unix.SIOCGIFCONF, ptr}}, ask},
		{"SIOCGIFCONF in the low half only", "amd64", false, seccompData{archX8664, 16, [6]uint64{3, 1<<32 | unix.SIOCGIFCONF, ptr}}, ask},
		{"SIOCGIWNAME", "amd64", false, seccompData{archX8664, 16, [6]uint64{3, siocGIWName, ptr}}, ask},
		{"SIOCATMARK", "amd64", false, seccompData{archX8664, 16, [6]uint64{3, unix.SIOCATMARK, ptr}}, allow},
		{"SIOCOUTQNSD", "amd64", false, seccompData{archX8664, 16, [6]uint64{3, unix.SIOCOUTQNSD, ptr}}, allow},
		{"FIONREAD", "amd64", false, seccompData{archX8664, 16, [6]uint64{3, unix.TIOCINQ, ptr}}, allow},
		{"a driver's ioctl with the low half of SIOCGIFCONF", "amd64", false, seccompData{archX8664, 16, [6]uint64{3, 0xc0040000 | unix.SIOCGIFCONF, ptr}}, allow},
		{"i386 SIOCGIFHWADDR", "amd64", false, seccompData{archI386, 54, [6]uint64{3, unix.SIOCGIFHWADDR, 16}}, ask},
		{"i386 FIONREAD", "amd64", false, seccompData{archI386, 54, [6]uint64{3, unix.TIOCINQ, 16}}, allow},
		{"x32 SIOCGIFHWADDR", "amd64", false, seccompData{archX8664, x32Bit | 514, [6]uint64{3, unix.SIOCGIFHWADDR, 16}}, ask},
		{"arm64 SIOCGARP", "arm64", false, seccompData{archAarch64, 29, [6]uint64{3, unix.SIOCGARP, ptr}}, ask},
		{"arm64 FIONBIO", "arm64", false, seccompData{archAarch64, 29, [6]uint64{3, 0x5421, ptr}}, allow},
		{"arm SIOCGARP", "arm64", false, seccompData{archArm, 54, [6]uint64{3, unix.SIOCGARP, 16}}, ask},
		{"read", "amd64", false, seccompData{archX8664, 0, [6]uint64{3, ptr, 100}}, allow},
		{"sendto with an address", "amd64", false, seccompData{archX8664, 44, [6]uint64{3, ptr, 1, 0, ptr, 16}}, allow},
		{"sendto with Fast Open", "amd64", false, seccompData{archX8664, 44, [6]uint64{3, ptr, 1, unix.MSG_FASTOPEN, ptr, 16}}, ask},
		{"sendmsg with Fast Open", "amd64", false, seccompData{archX8664, 46, [6]uint64{3, ptr, unix.MSG_FASTOPEN | unix.MSG_NOSIGNAL}}, ask},
		{"sendmmsg with Fast Open", "amd64", false, seccompData{archX8664, 307, [6]uint64{3, ptr, 1, unix.MSG_FASTOPEN}}, ask},
		{"sendmsg", "amd64", false, seccompData{archX8664, 46, [6]uint64{3, ptr, 0}}, allow},
		{"datagrams: sendto with an address whose low half is 0", "amd64", true, seccompData{archX8664, 44, [6]uint64{3, ptr, 1, 0, ptr, 16}}, ask},
		{"datagrams: sendto with an address below 4 GiB", "amd64", true, seccompData{archX8664, 44, [6]uint64{3, ptr, 1, 0, 0x1000, 16}}, ask},
		{"datagrams: send", "amd64", true, seccompData{archX8664, 44, [6]uint64{3, ptr, 1, 0, 0, 0}}, allow},
		{"datagrams: sendmsg", "amd64", true, seccompData{archX8664, 46, [6]uint64{3, ptr, 0}}, ask},
		{"datagrams: sendmmsg", "amd64", true, seccompData{archX8664, 307, [6]uint64{3, ptr, 1, 0}}, ask},
		{"unshare a network namespace", "amd64", false, seccompData{archX8664, 272, [6]uint64{unix.CLONE_NEWUSER | unix.CLONE_NEWNET}}, ask},
		{"unshare others", "amd64", false, seccompData{archX8664, 272, [6]uint64{unix.CLONE_NEWNS}}, allow},
		{"clone with a network namespace", "amd64", false, seccompData{archX8664, 56, [6]uint64{unix.CLONE_NEWNET | 17}}, ask},
		{"fork", "amd64", false, seccompData{archX8664, 56, [6]uint64{17}}, allow},
		{"clone3", "amd64", false, seccompData{archX8664, 435, [6]uint64{ptr, 88}}, enosys},
		{"setns", "amd64", false, seccompData{archX8664, 308, [6]uint64{3, 0}}, ask},
		{"setns of a mount namespace", "amd64", false, seccompData{archX8664, 308, [6]uint64{3, unix.CLONE_NEWNS}}, allow},
		{"io_uring_setup", "amd64", false, seccompData{archX8664, 425, [6]uint64{8, ptr}}, enosys},
		{"x32 io_uring_setup", "amd64", false, seccompData{archX8664, x32Bit | 425, [6]uint64{8, ptr}}, enosys},
		{"i386 io_uring_setup", "amd64", false, seccompData{archI386, 425, [6]uint64{8, 16}}, enosys},
		{"i386 unshare a network namespace", "amd64", false, seccompData{archI386, 310, [6]uint64{unix.CLONE_NEWNET}}, ask},
		{"i386 unshare others", "amd64", false, seccompData{archI386, 310, [6]uint64{unix.CLONE_NEWNS}}, allow},
		{"i386 setns", "amd64", false, seccompData{archI386, 346, [6]uint64{3, 0}}, ask},
		{"i386 fork", "amd64", false, seccompData{archI386, 120, [6]uint64{17}}, allow},
		{"x32 clone with a network namespace", "amd64", false, seccompData{archX8664, x32Bit | 56, [6]uint64{unix.CLONE_NEWNET | 17}}, ask},
		{"arm setns", "arm64", false, seccompData{archArm, 375, [6]uint64{3, unix.CLONE_NEWNET}}, ask},
		{"x32 socket", "amd64", false, seccompData{archX8664, x32Bit | 41, [6]uint64{unix.AF_INET, stream, 0}}, allow},
		{"x32 connect", "amd64", false, seccompData{archX8664, x32Bit | 42, [6]uint64{3, 16, 16}}, allow},
		{"x32 listen", "amd64", false, seccompData{archX8664, x32Bit | 50, [6]uint64{3, 0}}, ask},
		{"i386 listen", "amd64", false, seccompData{archI386, 363, [6]uint64{3, 0}}, ask},
		{"i386 socketcall listen", "amd64", false, seccompData{archI386, 102, [6]uint64{socketcallListen, 16}}, ask},
		{"x32 setsockopt", "amd64", false, seccompData{archX8664, x32Bit | 541, [6]uint64{3, 1, 25}}, ask},
		{"i386 setsockopt", "amd64", false, seccompData{archI386, 366, [6]uint64{3, 1, 25}}, ask},
		{"i386 socketcall setsockopt", "amd64", false, seccompData{archI386, 102, [6]uint64{socketcallSetsockopt, 16}}, ask},
		{"i386 socketcall socket", "amd64", false, seccompData{archI386, 102, [6]uint64{1, 16}}, allow},
		{"i386 socket", "amd64", false, seccompData{archI386, 359, [6]uint64{unix.AF_INET, stream, 0}}, allow},
		{"i386 number 41 is dup", "amd64", false, seccompData{archI386, 41, [6]uint64{unix.AF_INET, stream, 0}}, allow},
		{"VSOCK socket", "amd64", false, seccompData{archX8664, 41, [6]uint64{unix.AF_VSOCK, stream, 0}}, allow},
		{"unknown architecture", "amd64", false, seccompData{archAarch64, 198, [6]uint64{unix.AF_INET, stream, 0}}, allow},

		{"arm64 TCP socket", "arm64", false, seccompData{archAarch64, 198, [6]uint64{unix.AF_INET, stream, 0}}, ask},
		{"arm64 connect", "arm64", false, seccompData{archAarch64, 203, [6]uint64{3, ptr, 16}}, ask},
		{"arm64 bind", "arm64", false, seccompData{archAarch64, 200, [6]uint64{3, ptr, 16}}, ask},
		{"arm64 listen", "arm64", false, seccompData{archAarch64, 201, [6]uint64{3, 5}}, ask},
		{"arm64 sendto with Fast Open", "arm64", false, seccompData{archAarch64, 206, [6]uint64{3, ptr, 1, unix.MSG_FASTOPEN, ptr, 16}}, ask},
		{"arm64 datagrams: sendmsg", "arm64", true, seccompData{archAarch64, 211, [6]uint64{3, ptr, 0}}, ask},
		{"arm64 datagrams: sendmmsg", "arm64", true, seccompData{archAarch64, 269, [6]uint64{3, ptr, 1, 0}}, ask},
		{"arm64 accept", "arm64", false, seccompData{archAarch64, 202, [6]uint64{3}}, allow},
		{"arm64 io_uring_setup", "arm64", false, seccompData{archAarch64, 425, [6]uint64{8, ptr}}, enosys},
		{"arm listen", "arm64", false, seccompData{archArm, 284, [6]uint64{3, 5}}, ask},
		{"arm setsockopt", "arm64", false, seccompData{archArm, 294, [6]uint64{3, 1, 25}}, ask},
		{"arm connect", "arm64", false, seccompData{archArm, 283, [6]uint64{3, 16, 16}}, allow},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			prog, err := Build(tt.goarch, Options{Datagrams: tt.datagrams})
			if err != nil {
				t.Fatal(err)
			}
			if got := evaluate(t, prog, tt.data); got != tt.want {
				t.Errorf("the filter says %#x, want %#x", got, tt.want)
			}
		})
	}
}

func TestBuildForPrograms(t *testing.T) {
	const ptr = 0x7fff_0000_0000
	calls := map[string]struct{ socket, setsockopt, getsockopt, getsockname uint32 }{
		"amd64": {41, 54, 55, 51},
		"arm64": {198, 208, 209, 204},
	}
	for goarch, n := range calls {
		token := natives[goarch].token
		for _, tt := range []struct {
			name          string
			data          seccompData
			want, afgraft uint32
		}{
			{"AF_GRAFT stream", seccompData{token, n.socket, [6]uint64{4, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, 0}}, ask, ask},
			{"AF_GRAFT raw", seccompData{token, n.socket, [6]uint64{4, unix.SOCK_RAW, 0}}, ask, ask},
			{"AF_APPLETALK", seccompData{token, n.socket, [6]uint64{5, unix.SOCK_DGRAM, 0}}, allow, allow},
			{"set an AF_GRAFT option", seccompData{token, n.setsockopt, [6]uint64{3, 254, 4, ptr, 128}}, ask, ask},
			{"get an AF_GRAFT option", seccompData{token, n.getsockopt, [6]uint64{3, 254, 3, ptr, ptr}}, ask, ask},
			{"set a TCP option", seccompData{token, n.setsockopt, [6]uint64{3, unix.SOL_TCP, 1, ptr, 4}}, allow, ask},
			{"set a socket option", seccompData{token, n.setsockopt, [6]uint64{3, unix.SOL_SOCKET, 2, ptr, 4}}, allow, allow},
			{"set an IP option with a high half", seccompData{token, n.setsockopt, [6]uint64{3, 1 << 32, 2, ptr, 4}}, allow, ask},
			{"get a TCP option", seccompData{token, n.getsockopt, [6]uint64{3, unix.SOL_TCP, 1, ptr, ptr}}, allow, allow},
			{"getsockname", seccompData{token, n.getsockname, [6]uint64{3, ptr, ptr}}, allow, ask},
		} {
			for expected, want := range map[bool]uint32{false: tt.want, true: tt.afgraft} {
				prog, err := Build(goarch, Options{AFGraft: expected})
				if err != nil {
					t.Fatal(err)
				}
				if got := evaluate(t, prog, tt.data); got != want {
					t.Errorf("%s, %s, AF_GRAFT: %v: the filter says %#x, want %#x", goarch, tt.name, expected, got, want)
				}
			}
		}
	}
}

// What each mode makes of the shim's marks: a call without any, with each of them,
// and with half of one.
func TestMarks(t *testing.T) {
	const (
		ptr    = 0x7fff_0000_0000
		stream = unix.SOCK_STREAM
		dgram  = unix.SOCK_DGRAM
	)
	marks := map[string]uint64{
		"none": 0, "pass": markPass, "ask": markAsk, "shim": markShim,
		"half": markPass & 0xffff_ffff, "other half": markPass &^ 0xffff_ffff,
	}
	type arg = [6]uint64
	calls := []struct {
		name      string
		call      call
		args      arg
		datagrams bool
		asked     map[Mode]string // the marks with which it is
	}{
		{"TCP socket", socket, arg{unix.AF_INET, stream}, false, decidedMarks},
		{"UDP6 socket", socket, arg{unix.AF_INET6, dgram | unix.SOCK_CLOEXEC}, false, decidedMarks},
		{"unix socket", socket, arg{unix.AF_UNIX, stream}, false, nil},
		{"the shim's question", socket, arg{markFamily, 1}, false, map[Mode]string{Auto: "shim", Preload: "shim"}},
		{"the same as a long", socket, arg{0xffff_ffff_ffff_ffff, 2}, false, map[Mode]string{Auto: "shim", Preload: "shim"}},
		{"connect", connect, arg{3, ptr, 16}, false, decidedMarks},
		{"short connect", connect, arg{3, ptr, 15}, false, nil},
		{"bind", bind, arg{3, ptr, 28}, false, decidedMarks},
		{"listen", listen, arg{3, 5}, false, everyMark},
		{"sendmsg", sendMsg, arg{3, ptr}, false, nil},
		{"sendmsg with Fast Open", sendMsg, arg{3, ptr, unix.MSG_FASTOPEN}, false, decidedMarks},
		{"sendmmsg with Fast Open", sendMMsg, arg{3, ptr, 1, unix.MSG_FASTOPEN}, false, decidedMarks},
		{"datagrams: sendmsg", sendMsg, arg{3, ptr}, true, decidedMarks},
		{"datagrams: sendmmsg", sendMMsg, arg{3, ptr, 1}, true, decidedMarks},
		// Its sixth argument is an address's length.
		{"sendto with Fast Open", sendTo, arg{3, ptr, 1, unix.MSG_FASTOPEN, ptr}, false, map[Mode]string{Seccomp: every, Auto: every}},
		{"datagrams: sendto", sendTo, arg{3, ptr, 1, 0, ptr}, true, map[Mode]string{Seccomp: every, Auto: every}},
		{"unshare a network namespace", unshare, arg{unix.CLONE_NEWNET}, false, everyMark},
		{"clone with a network namespace", clone, arg{unix.CLONE_NEWNET}, false, everyMark},
		{"setns", setNS, arg{3}, false, everyMark},
		{"SIOCGIFCONF", ioctl, arg{3, unix.SIOCGIFCONF, ptr}, false, everyMark},
		{"FIONREAD", ioctl, arg{3, unix.TIOCINQ, ptr}, false, nil},
	}
	for goarch, n := range natives {
		for mode := Seccomp; mode <= Preload; mode++ {
			for _, c := range calls {
				prog, err := Build(goarch, Options{Mode: mode, Datagrams: c.datagrams})
				if err != nil {
					t.Fatal(err)
				}
				for name, mark := range marks {
					d := seccompData{n.token, n.numbers[c.call], c.args}
					d.args[markArg] = mark
					want := uint32(allow)
					if slices.Contains(strings.Split(c.asked[mode], ","), name) {
						want = ask
					}
					if got := evaluate(t, prog, d); got != want {
						t.Errorf("%s, mode %d: %s, mark %s: the filter says %#x, want %#x", goarch, mode, c.name, name, got, want)
					}
				}
			}
		}
	}
}

const every = "none,pass,ask,shim,half,other half"

var (
	everyMark = map[Mode]string{Seccomp: every, Auto: every, Preload: every}
	// Of calls that the shim may have decided.
	decidedMarks = map[Mode]string{Seccomp: every, Auto: "none,ask,shim,half,other half", Preload: "ask"}
)

// The numbers are those of shim/c/marks.h.
func TestMarksAreTheShims(t *testing.T) {
	testkit.CheckC(t, "../../shim/c/marks.h", map[string]any{
		"MARK_PASS":             uint64(markPass),
		"MARK_ASK":              uint64(markAsk),
		"MARK_SHIM":             uint64(markShim),
		"(uint32_t)MARK_FAMILY": uint32(markFamily),
	})
}

func TestBuildUnknownArchitecture(t *testing.T) {
	if _, err := Build("riscv64", Options{}); !errors.Is(err, ErrArch) {
		t.Errorf("Build: %v, want ErrArch", err)
	}
}

// Whatever a call looks like, the program ends with one of its three answers; and
// what must not be decided by a program's marks is not.
func FuzzFilter(f *testing.F) {
	f.Add(uint32(archX8664), uint32(41), uint64(2), uint64(1), uint64(0), uint64(0), uint64(0), uint64(markPass), uint8(1), true)
	f.Add(uint32(archAarch64), uint32(201), uint64(3), uint64(5), uint64(0), uint64(0), uint64(0), uint64(markPass), uint8(2), false)
	f.Add(uint32(archX8664), uint32(41), uint64(markFamily), uint64(2), uint64(0), uint64(0), uint64(0), uint64(markShim), uint8(2), false)
	f.Fuzz(func(t *testing.T, arch, number uint32, a0, a1, a2, a3, a4, a5 uint64, mode uint8, datagrams bool) {
		for goarch := range natives {
			o := Options{Mode: Mode(mode % 3), Datagrams: datagrams, AFGraft: datagrams, Untrapped: mode&4 != 0}
			d := seccompData{arch, number, [6]uint64{a0, a1, a2, a3, a4, a5}}
			got := answer(t, goarch, o, d)
			if got != allow && got != ask && got != enosys {
				t.Errorf("%s: the filter says %#x", goarch, got)
			}
			o.Mode = Seccomp
			full := answer(t, goarch, o, d)
			switch {
			case got == full:
			case got == ask && a5 == markShim: // its own question
			case got == allow && full == ask && (a5 == markPass || Mode(mode%3) == Preload):
			default:
				t.Errorf("%s: mode %d says %#x where seccomp says %#x", goarch, mode%3, got, full)
			}
		}
	})
}

func answer(t *testing.T, goarch string, o Options, d seccompData) uint32 {
	t.Helper()
	prog, err := Build(goarch, o)
	if err != nil {
		t.Fatal(err)
	}
	return evaluate(t, prog, d)
}

// Untrapped leaves out what says where a socket belongs, whatever its mark is, and nothing else.
func TestBuildUntrapped(t *testing.T) {
	const ptr = 0x7fff_0000_0000
	type arg = [6]uint64
	destinations := map[call][]arg{
		connect: {{3, ptr, 16}},
		listen:  {{3, 5}},
		sendTo:  {{3, ptr, 1, unix.MSG_FASTOPEN, ptr, 16}, {3, ptr, 1, 0, ptr, 16}},
		sendMsg: {{3, ptr, unix.MSG_FASTOPEN}, {3, ptr}},
		sendMMsg: {
			{3, ptr, 1, unix.MSG_FASTOPEN}, {3, ptr, 1},
		},
	}
	others := map[call][]arg{
		socket: {{unix.AF_INET, unix.SOCK_STREAM}, {unix.AF_INET6, unix.SOCK_DGRAM}, {4, unix.SOCK_STREAM}},
		bind:   {{3, ptr, 16}},
		ioctl:  {{3, unix.SIOCGIFCONF, ptr}},
		setNS:  {{3, 0}}, unshare: {{unix.CLONE_NEWNET}}, clone: {{unix.CLONE_NEWNET}},
		setSockOpt: {{3, 254}, {3, unix.SOL_TCP}}, getSockOpt: {{3, 254}}, getSockName: {{3}},
	}
	for goarch, n := range natives {
		for mode := Seccomp; mode <= Preload; mode++ {
			for i, mark := range []uint64{0, markPass, markAsk} {
				trapped := Options{Mode: mode, Datagrams: i%2 == 0, AFGraft: true}
				untrapped := trapped
				untrapped.Untrapped = true
				say := func(o Options, c call, args arg) uint32 {
					if c != sendTo {
						args[markArg] = mark
					}
					return answer(t, goarch, o, seccompData{n.token, n.numbers[c], args})
				}
				for c, calls := range destinations {
					for _, args := range calls {
						if got := say(untrapped, c, args); got != allow {
							t.Errorf("%s, %s: call %d%#x: the filter says %#x", goarch, mode, c, args, got)
						}
					}
				}
				for c, calls := range others {
					for _, args := range calls {
						if got, want := say(untrapped, c, args), say(trapped, c, args); got != want {
							t.Errorf("%s, %s: call %d%#x: the filter says %#x, and %#x where destinations are trapped", goarch, mode, c, args, got, want)
						}
					}
				}
			}
		}
		for _, rule := range foreignListen[goarch] {
			d := seccompData{rule.token, rule.number, arg{socketcallListen, 16}}
			if got, before := answer(t, goarch, Options{Untrapped: true}, d), answer(t, goarch, Options{}, d); got != allow || before != ask {
				t.Errorf("%s: listen(2) %d of another ABI: the filter says %#x, and %#x where it is trapped", goarch, rule.number, got, before)
			}
		}
	}
}

// Sockets that are of no network namespace are asked about in all ABIs and modes, whatever the mark
// is, where no engine's profile does so.
func TestBuildAlone(t *testing.T) {
	for _, mode := range []Mode{Seccomp, Auto, Preload} {
		for _, family := range []uint64{unix.AF_VSOCK, 1<<32 | unix.AF_VSOCK, unix.AF_QIPCRTR} {
			for _, mark := range []uint64{0, markPass, markAsk} {
				args := [6]uint64{family, unix.SOCK_STREAM, 0, 0, 0, mark}
				for _, tt := range []struct {
					goarch string
					data   seccompData
				}{
					{"amd64", seccompData{archX8664, 41, args}},
					{"amd64", seccompData{archX8664, x32Bit | 41, args}},
					{"amd64", seccompData{archI386, 359, args}},
					{"amd64", seccompData{archI386, 102, [6]uint64{socketcallSocket, 16}}},
					{"arm64", seccompData{archAarch64, 198, args}},
					{"arm64", seccompData{archArm, 281, args}},
				} {
					prog, err := Build(tt.goarch, Options{Mode: mode, Alone: true})
					if err != nil {
						t.Fatal(err)
					}
					if got := evaluate(t, prog, tt.data); got != ask {
						t.Errorf("mode %d, %s, %+v: the filter says %#x, want %#x", mode, tt.goarch, tt.data, got, uint32(ask))
					}
				}
			}
		}
	}
}
