package filter

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The profiles of testdata are what the engines of Debian 12 wrote into the
// config.json of a container without options: docker.io 20.10.24 (the default
// profile of moby), containerd 1.6.20 (contrib/seccomp) and podman 4.3.1
// (containers/common). All three are under the Apache License 2.0.
func profiles(t testing.TB) map[string]*specs.LinuxSeccomp {
	t.Helper()
	all := map[string]*specs.LinuxSeccomp{"unconfined": nil}
	for _, engine := range []string{"docker", "podman", "containerd"} {
		all[engine] = profileOf(t, engine)
	}
	einval, eacces := uint(unix.EINVAL), uint(unix.EACCES)
	vsock := []specs.LinuxSeccompArg{{Index: 0, Value: unix.AF_VSOCK, Op: specs.OpNotEqual}}
	all["no vsock"] = &specs.LinuxSeccomp{ // as newer engines have it
		DefaultAction: specs.ActErrno, DefaultErrnoRet: &einval, Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86},
		Syscalls: []specs.LinuxSyscall{
			{Names: []string{"socket"}, Action: specs.ActAllow, Args: vsock},
			{Names: []string{"connect", "read", "socketcall", "clone3"}, Action: specs.ActAllow},
			{Names: []string{"setsockopt"}, Action: specs.ActLog},
		},
	}
	families := func(op specs.LinuxSeccompOperator, value uint64) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: []string{"socket"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: value, Op: op}}}
	}
	all["no vsock, no alg"] = &specs.LinuxSeccomp{ // the default profile of moby 29
		DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
		Syscalls: []specs.LinuxSyscall{
			{Names: []string{"connect", "bind", "listen", "read", "setsockopt", "sendto"}, Action: specs.ActAllow},
			families(specs.OpLessThan, unix.AF_ALG), families(specs.OpEqualTo, unix.AF_NFC), families(specs.OpGreaterThan, unix.AF_VSOCK),
		},
	}
	all["some refused"] = &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		Syscalls: []specs.LinuxSyscall{
			{Names: []string{"socket"}, Action: specs.ActErrno, ErrnoRet: &eacces, Args: []specs.LinuxSeccompArg{
				{Index: 0, Value: unix.AF_INET6, Op: specs.OpEqualTo}, {Index: 2, Value: 0xff, ValueTwo: unix.IPPROTO_UDP, Op: specs.OpMaskedEqual},
			}},
			{Names: []string{"bind", "keyctl"}, Action: specs.ActKillProcess},
			{Names: []string{"ioctl"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{ // as hardened profiles have it
				{Index: 1, Value: 0xffff_ffff, ValueTwo: unix.TIOCSTI, Op: specs.OpMaskedEqual},
			}},
			{Names: []string{"clone"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{{Index: 0, Value: 1 << 40, Op: specs.OpGreaterEqual}}},
			{Names: []string{"listen"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{ // alternatives
				{Index: 1, Value: 10, Op: specs.OpLessThan}, {Index: 1, Value: 100, Op: specs.OpGreaterEqual},
			}},
			{Names: []string{"unshare"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{
				{Index: 0, Value: unix.CLONE_NEWUSER, ValueTwo: unix.CLONE_NEWUSER, Op: specs.OpMaskedEqual},
			}},
		},
	}
	return all
}

// profileOf reads a profile of testdata. That of CRI-O 1.36.1 is of a later containers/common. It
// contradicts itself, so only libseccomp says what it means.
func profileOf(t testing.TB, engine string) *specs.LinuxSeccomp {
	t.Helper()
	data, err := os.ReadFile("testdata/" + engine + ".json")
	if err != nil {
		t.Fatal(err)
	}
	p := &specs.LinuxSeccomp{}
	if err := json.Unmarshal(data, p); err != nil {
		t.Fatal(err)
	}
	return p
}

// AF_VSOCK is refused by a rule of CRI-O's profile, and allowed by another one. It stays refused, and so
// do netlink sockets of audit.
func TestComposedContradiction(t *testing.T) {
	for _, o := range choices() {
		composed, err := compose("amd64", profileOf(t, "crio"), o, "/l", "m")
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		said := only(composed, "socket")
		for _, protocol := range []uint64{0, unix.NETLINK_AUDIT} {
			for family := range uint64(300) {
				got, err := interpret(said, [6]uint64{family, 0, protocol}, true)
				if err != nil {
					t.Fatalf("%+v: family %d: %v", o, family, err)
				}
				refused := got == unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM) || got == unix.SECCOMP_RET_ERRNO|uint32(unix.EINVAL)
				if want := family == unix.AF_VSOCK || family == unix.AF_NETLINK && protocol != 0; refused != want {
					t.Errorf("%+v: family %d, protocol %d: %#x", o, family, protocol, got)
				}
			}
		}
	}
}

// The families of socket(2) that moby 29 refuses are refused, whatever the upper half of the
// argument is: the kernel takes the lower one.
func TestComposedFamilies(t *testing.T) {
	for _, o := range choices() {
		composed, err := compose("amd64", profiles(t)["no vsock, no alg"], o, "/l", "m")
		if err != nil {
			t.Fatal(err)
		}
		said := only(composed, "socket")
		for _, upper := range []uint64{0, 1 << 32, 1 << 63, math.MaxUint32 << 32} {
			for family := range uint64(300) {
				if upper != 0 && family == unix.AF_NFC {
					continue // allowed alone; as a number of 64 bits, it is above AF_VSOCK
				}
				got, err := interpret(said, [6]uint64{upper | family}, true)
				if err != nil {
					t.Fatal(err)
				}
				refused := got == unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)
				if refused != (family == unix.AF_ALG || family == unix.AF_VSOCK) {
					t.Errorf("%+v: family %#x: %#x", o, upper|family, got)
				}
			}
		}
	}
}

// choices are all options.
func choices() []Options {
	var all []Options
	for mode := Seccomp; mode <= Preload; mode++ {
		all = append(all, Options{Mode: mode, Untrapped: true}, Options{Mode: mode, Accepts: true})
		if mode != Preload {
			all = append(all, Options{Mode: mode, Untrapped: true, Translated: true}, Options{Mode: mode, Untrapped: true, Translated: true, AFGraft: true, Accepts: true})
		}
		for i := range 4 {
			all = append(all, Options{Mode: mode, Datagrams: i&1 != 0, AFGraft: i&2 != 0})
		}
	}
	return all
}

// numbers are those of calls on amd64.
func numbers() map[string]uint32 {
	n := natives["amd64"].numbers
	return map[string]uint32{
		"socket": n[socket], "connect": n[connect], "bind": n[bind], "listen": n[listen], "sendto": n[sendTo],
		"sendmsg": n[sendMsg], "sendmmsg": n[sendMMsg], "unshare": n[unshare], "setns": n[setNS], "clone": n[clone],
		"setsockopt": n[setSockOpt], "getsockopt": n[getSockOpt], "getsockname": n[getSockName], "ioctl": n[ioctl],
		"io_uring_setup": ioUringSetup, "clone3": clone3, "read": 0, "keyctl": 250, "accept": 43,
		"accept4": n[accept4], "getpeername": n[getPeerName],
	}
}

// interesting are values around which rules divide calls.
var interesting = []uint64{
	0, 1, 2, 3, 4, 5, 9, 10, 14, 15, 16, 17, 31, 32, 39, 40, 41, 100, 110, 111, 254, 255, 0x1fe, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC,
	unix.MSG_FASTOPEN, unix.MSG_FASTOPEN | unix.MSG_NOSIGNAL, unix.CLONE_NEWNET, unix.CLONE_NEWNET | unix.CLONE_NEWNS, unix.CLONE_NEWUSER,
	unix.CLONE_NEWNS, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 | 4, 1<<32 | 254, 0x7ffd_1234_5678, 1<<63 | 2, top,
	markPass, markAsk, markShim, markPass &^ 0xffff_ffff, markPass & 0xffff_ffff,
	unix.TIOCINQ, unix.SIOCATMARK, unix.SIOCOUTQNSD, unix.SIOCGIFCONF, unix.SIOCETHTOOL, siocGIWName, 1<<32 | unix.SIOCGIFCONF,
}

// calls are those with each interesting value in one argument, and random ones of
// them and of others.
func calls(r *rand.Rand, random int) [][6]uint64 {
	var all [][6]uint64
	for i := range 6 {
		for _, a := range interesting {
			var args [6]uint64
			args[i] = a
			all = append(all, args)
		}
	}
	for range random {
		var args [6]uint64
		for i := range args {
			switch r.IntN(4) {
			case 0:
				args[i] = r.Uint64() >> r.IntN(64)
			case 1: // 0
			default:
				args[i] = interesting[r.IntN(len(interesting))]
			}
		}
		all = append(all, args)
	}
	return all
}

// seccompReturn is what a filter returns for an action.
func seccompReturn(v verdict) uint32 {
	switch v.action {
	case specs.ActNotify:
		return unix.SECCOMP_RET_USER_NOTIF
	case specs.ActErrno:
		return unix.SECCOMP_RET_ERRNO | uint32(v.errno)
	case specs.ActLog:
		return unix.SECCOMP_RET_LOG
	case specs.ActKillProcess:
		return unix.SECCOMP_RET_KILL_PROCESS
	case specs.ActTrap:
		return unix.SECCOMP_RET_TRAP
	case specs.ActKill, specs.ActKillThread:
		return unix.SECCOMP_RET_KILL_THREAD
	}
	return unix.SECCOMP_RET_ALLOW
}

func matches(c specs.LinuxSeccompArg, v uint64) bool {
	switch c.Op {
	case specs.OpEqualTo:
		return v == c.Value
	case specs.OpNotEqual:
		return v != c.Value
	case specs.OpLessThan:
		return v < c.Value
	case specs.OpLessEqual:
		return v <= c.Value
	case specs.OpGreaterEqual:
		return v >= c.Value
	case specs.OpGreaterThan:
		return v > c.Value
	}
	return v&c.Value == c.ValueTwo
}

// only is what a profile says of one call, by name.
func only(p *specs.LinuxSeccomp, name string) *specs.LinuxSeccomp {
	if p == nil {
		return &specs.LinuxSeccomp{DefaultAction: specs.ActAllow}
	}
	one := *p
	one.Syscalls = slices.DeleteFunc(slices.Clone(p.Syscalls), func(s specs.LinuxSyscall) bool {
		return !slices.Contains(s.Names, name)
	})
	return &one
}

// interpret is what a profile that is only about one call says of that call, without libseccomp.
// Different answers of rules that match are an error; in a profile of ours two of
// one argument in a rule are too.
func interpret(p *specs.LinuxSeccomp, args [6]uint64, composed bool) (uint32, error) {
	def := verdictOf(p.DefaultAction, p.DefaultErrnoRet)
	var found []verdict
	for _, s := range p.Syscalls {
		v := verdictOf(s.Action, s.ErrnoRet)
		if v == def {
			continue
		}
		if len(s.Args) == 0 {
			return seccompReturn(v), nil // the first one is all there is
		}
		seen := map[uint]int{}
		all, either := true, false
		for _, c := range s.Args {
			seen[c.Index]++
			is := matches(c, args[c.Index])
			all, either = all && is, either || is
		}
		repeated := len(seen) < len(s.Args)
		if repeated && composed {
			return 0, fmt.Errorf("a rule has two conditions of one argument: %+v", s)
		}
		if (all || repeated && either) && !slices.Contains(found, v) {
			found = append(found, v)
		}
	}
	switch len(found) {
	case 0:
		return seccompReturn(def), nil
	case 1:
		return seccompReturn(found[0]), nil
	}
	return 0, fmt.Errorf("rules overlap: %v", found)
}

func carriesOn(answer uint32) bool { return answer == allow || answer == unix.SECCOMP_RET_LOG }

// judge says what is wrong with an answer of a composed profile, given that of the
// profile alone and that of our own program.
func judge(o Options, name string, args [6]uint64, alone, raw, composed uint32) error {
	marked := args[markArg] == markPass
	switch {
	case !carriesOn(alone):
		if composed != alone {
			return errors.New("the profile refuses it otherwise")
		}
	case composed == ask || composed == enosys:
		decidable := slices.Contains([]string{"socket", "connect", "bind", "sendmsg", "sendmmsg"}, name)
		if o.Mode == Auto && marked && decidable {
			return errors.New("the shim has decided it")
		}
		if o.Mode == Preload && raw == allow && decidable && args[markArg]&1 == 0 {
			return errors.New("only the shim's questions are asked")
		}
	case raw == ask && name == "socket" && o.Mode != Seccomp && uint32(args[0]) == afgraft.Family &&
		args[markArg] != markAsk && (marked || o.Mode == Preload): // see Compose
	case raw != allow:
		return errors.New("our own program asks about it")
	case composed != alone:
		return errors.New("the profile allows it otherwise")
	}
	return nil
}

func TestComposeKeepsProfile(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for engine, profile := range profiles(t) {
		for _, o := range choices() {
			composed, err := compose("amd64", profile, o, "/l", "m")
			if err != nil {
				t.Fatalf("%s, %+v: %v", engine, o, err)
			}
			if composed.ListenerPath != "/l" || composed.ListenerMetadata != "m" {
				t.Errorf("listener %q, %q", composed.ListenerPath, composed.ListenerMetadata)
			}
			prog, err := Build("amd64", o)
			if err != nil {
				t.Fatal(err)
			}
			for name, number := range numbers() {
				_, ours := traps(o, false)[name] // else the profile's rules stay as they are
				before, after := only(profile, name), only(composed, name)
				for _, args := range calls(r, testkit.Times(100, 1000)) {
					alone, err := interpret(before, args, false)
					if err != nil {
						t.Fatal(err)
					}
					got, err := interpret(after, args, ours)
					if err == nil {
						err = judge(o, name, args, alone, evaluate(t, prog, seccompData{archX8664, number, args}), got)
					}
					if err != nil {
						t.Fatalf("%s, %+v: %s%#x: %#x alone, %#x composed: %v", engine, o, name, args, alone, got, err)
					}
				}
			}
		}
	}
}

func TestComposeRefuses(t *testing.T) {
	eacces := uint(unix.EACCES)
	rule := func(a specs.LinuxSeccompAction, args ...specs.LinuxSeccompArg) []specs.LinuxSyscall {
		return []specs.LinuxSyscall{{Names: []string{"read", "socket"}, Action: a, Args: args}}
	}
	equals := func(arg uint, v uint64) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: arg, Value: v, Op: specs.OpEqualTo}
	}
	for name, p := range map[string]specs.LinuxSeccomp{
		"a listener":                          {DefaultAction: specs.ActAllow, ListenerPath: "/other"},
		"metadata for a listener":             {DefaultAction: specs.ActAllow, ListenerMetadata: "m"},
		"notifications":                       {DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"mount"}, Action: specs.ActNotify}}},
		"notifications by default":            {DefaultAction: specs.ActNotify},
		"a tracer":                            {DefaultAction: specs.ActAllow, Syscalls: rule(specs.ActTrace)},
		"a tracer by default":                 {DefaultAction: specs.ActTrace},
		"an unknown action":                   {DefaultAction: specs.ActAllow, Syscalls: rule("SCMP_ACT_PANIC")},
		"an unknown default":                  {DefaultAction: "SCMP_ACT_PANIC"},
		"an unknown operator":                 {DefaultAction: specs.ActErrno, Syscalls: rule(specs.ActAllow, specs.LinuxSeccompArg{Op: "SCMP_CMP_ODD"})},
		"a seventh argument":                  {DefaultAction: specs.ActErrno, Syscalls: rule(specs.ActAllow, equals(6, 1))},
		"arguments that the library mixes up": {DefaultAction: specs.ActErrno, Syscalls: rule(specs.ActAllow, equals(1, unix.SOCK_STREAM))},
		"what is more to 32-bit programs": {DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchX86}, Syscalls: []specs.LinuxSyscall{
			{Names: []string{"clone"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Value: 40, Op: specs.OpNotEqual}}},
		}},
		"a contradiction": {DefaultAction: specs.ActErrno, DefaultErrnoRet: &eacces, Syscalls: append(
			rule(specs.ActAllow, equals(0, unix.AF_INET)), rule(specs.ActErrno, equals(2, unix.IPPROTO_UDP))...)},
		"too many rules": {DefaultAction: specs.ActErrno, Syscalls: rule(specs.ActAllow,
			specs.LinuxSeccompArg{Index: 0, Value: 5, Op: specs.OpGreaterThan}, specs.LinuxSeccompArg{Index: 2, Value: 5, Op: specs.OpGreaterThan})},
	} {
		if composed, err := compose("amd64", &p, Options{Mode: Preload}, "/l", "m"); !errors.Is(err, ErrProfile) {
			t.Errorf("%s: composed to %+v, %v", name, composed, err)
		}
	}
	if _, err := compose("riscv64", nil, Options{}, "/l", "m"); !errors.Is(err, ErrArch) {
		t.Errorf("riscv64: %v", err)
	}
}

// FuzzCompose composes whatever conditions a profile has for socket(2).
func FuzzCompose(f *testing.F) {
	f.Add(uint8(0), uint8(3), uint8(0), uint64(40), uint64(0), uint8(1), uint8(2), uint64(9), uint64(0), uint64(2), uint64(1), uint64(0), uint64(markAsk))
	f.Add(uint8(5), uint8(6), uint8(5), uint64(markPass), uint64(markPass), uint8(4), uint8(5), uint64(9), uint64(0), uint64(2), uint64(1), uint64(0), uint64(markPass))
	ops := []specs.LinuxSeccompOperator{
		specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpMaskedEqual,
	}
	actions := []specs.LinuxSeccompAction{specs.ActAllow, specs.ActErrno, specs.ActLog, specs.ActKillProcess}
	f.Fuzz(func(t *testing.T, how, op1, arg1 uint8, v1, w1 uint64, op2, arg2 uint8, v2, w2, a0, a1, a2, a5 uint64) {
		condition := func(op, arg uint8, v, w uint64) specs.LinuxSeccompArg {
			return specs.LinuxSeccompArg{Index: uint(arg % 6), Value: v, ValueTwo: w & v, Op: ops[op%7]}
		}
		p := &specs.LinuxSeccomp{DefaultAction: actions[how%4], Syscalls: []specs.LinuxSyscall{
			{Names: []string{"socket"}, Action: actions[how/4%4], Args: []specs.LinuxSeccompArg{condition(op1, arg1, v1, w1)}},
			{Names: []string{"socket"}, Action: actions[how/16%4], Args: []specs.LinuxSeccompArg{condition(op1, arg1, v1, w1), condition(op2, arg2, v2, w2)}},
		}}
		for _, o := range choices() {
			composed, err := compose("amd64", p, o, "/l", "m")
			if err != nil {
				continue
			}
			composed = only(composed, "socket")
			for _, args := range [][6]uint64{{a0, a1, a2, 0, 0, a5}, {v1, v2, a2, 0, 0, a5}, {a0, v1, v2, v1, v2, markPass}, {v2, v1, 0, 0, 0, v1}} {
				alone, err := interpret(p, args, false)
				if err != nil {
					t.Fatal(err)
				}
				got, err := interpret(composed, args, true)
				if err == nil {
					err = judge(o, "socket", args, alone, answer(t, "amd64", o, seccompData{archX8664, 41, args}), got)
				}
				if err != nil {
					t.Fatalf("%+v: socket%#x: %#x alone, %#x composed of %+v: %v", o, args, alone, got, p, err)
				}
			}
		}
	})
}
