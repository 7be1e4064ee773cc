package filter

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// libseccomp compiles profiles by the library that runc uses; nil for those that it
// does not take.
func libseccomp(t *testing.T, profiles []*specs.LinuxSeccomp) [][]unix.SockFilter {
	t.Helper()
	var in bytes.Buffer
	for _, p := range profiles {
		if err := json.NewEncoder(&in).Encode(p); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("python3", "testdata/libseccomp.py")
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = &in, &stderr
	out, err := cmd.Output()
	if strings.Contains(stderr.String(), "libseccomp.so.2: cannot open") || errors.Is(err, exec.ErrNotFound) {
		t.Skip("skip: needs python3 and libseccomp2")
	}
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("not taken:\n%s", &stderr)
		}
	})
	var all [][]unix.SockFilter
	for len(out) > 0 {
		size := binary.LittleEndian.Uint32(out)
		prog := make([]unix.SockFilter, size/8)
		if err := binary.Read(bytes.NewReader(out[4:4+size]), binary.LittleEndian, prog); err != nil {
			t.Fatal(err)
		}
		all, out = append(all, prog), out[4+size:]
	}
	return all
}

// answered is a call, and what a profile alone says of it.
type answered struct {
	name  string
	call  seccompData
	alone uint32
}

// answers asks a profile about all calls of numbers, with random arguments too.
func answers(t *testing.T, prog []unix.SockFilter, r *rand.Rand) (all []answered) {
	t.Helper()
	for name, number := range numbers() {
		for _, args := range calls(r, 500) {
			d := seccompData{archX8664, number, args}
			all = append(all, answered{name, d, evaluate(t, prog, d)})
		}
	}
	return all
}

// What the library makes of a composed profile, run as the kernel would.
func TestComposeThroughLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	all := profiles(t)
	all["crio"] = profileOf(t, "crio")
	for engine, profile := range all {
		t.Run(engine, func(t *testing.T) {
			alone := profile
			if alone == nil {
				alone = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86}}
			}
			all := []*specs.LinuxSeccomp{alone}
			for _, o := range choices() {
				composed, err := compose("amd64", profile, o, "/l", "m")
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, composed)
			}
			progs := libseccomp(t, all)
			asked := answers(t, progs[0], r)
			for i, o := range choices() {
				raw, err := Build("amd64", o)
				if err != nil {
					t.Fatal(err)
				}
				if n := len(progs[i+1]); n == 0 || n > 4000 {
					t.Fatalf("%+v: %d instructions; the kernel takes 4096", o, n)
				}
				for _, a := range asked {
					both := evaluate(t, progs[i+1], a.call)
					if err := judge(o, a.name, a.call.args, a.alone, evaluate(t, raw, a.call), both); err != nil {
						t.Fatalf("%+v: %s%#x: %#x alone, %#x composed: %v", o, a.name, a.call.args, a.alone, both, err)
					}
				}
				checkForeign(t, o, progs[0], progs[i+1], raw)
			}
		})
	}
}

// checkForeign looks at the calls of other ABIs that our own program asks about.
func checkForeign(t *testing.T, o Options, alone, composed, raw []unix.SockFilter) {
	t.Helper()
	for _, rule := range slices.Concat(foreign["amd64"], foreignListen["amd64"]) {
		for _, args := range calls(rand.New(rand.NewPCG(5, 6)), 500) {
			for i := range args {
				if rule.token == archI386 {
					args[i] &= 0xffff_ffff
				}
			}
			d := seccompData{rule.token, rule.number, args}
			one, own, both := evaluate(t, alone, d), evaluate(t, raw, d), evaluate(t, composed, d)
			switch {
			case both == unix.SECCOMP_RET_KILL_THREAD && rule.number&x32Bit != 0:
			case carriesOn(one) && own == ask && both != ask, !carriesOn(one) && both != one:
				t.Fatalf("%+v: %#x %d%#x: %#x alone, %#x by our own program, %#x composed", o, rule.token, rule.number, args, one, own, both)
			}
		}
	}
}

// randomProfile has two rules for one of our calls, of the operators that profiles
// use.
func randomProfile(r *rand.Rand, name string) *specs.LinuxSeccomp {
	actions := []specs.LinuxSeccompAction{specs.ActAllow, specs.ActErrno, specs.ActKillProcess, specs.ActLog}
	values := []uint64{0, 1, 2, 9, 10, 16, 40, unix.CLONE_NEWNET, unix.CLONE_NEWUSER, 254}
	condition := func() specs.LinuxSeccompArg {
		v := values[r.IntN(len(values))]
		ops := []specs.LinuxSeccompOperator{specs.OpNotEqual, specs.OpEqualTo, specs.OpMaskedEqual}
		return specs.LinuxSeccompArg{Index: uint(r.IntN(2)) * 2 % 3, Value: v, ValueTwo: v * r.Uint64N(2), Op: ops[r.IntN(3)]}
	}
	p := &specs.LinuxSeccomp{DefaultAction: actions[r.IntN(2)], Architectures: []specs.Arch{specs.ArchX86}}
	for i := range 2 {
		s := specs.LinuxSyscall{Names: []string{name}, Action: actions[r.IntN(4)], Args: []specs.LinuxSeccompArg{condition()}}
		if i > 0 {
			s.Args = append(s.Args, condition())
		}
		p.Syscalls = append(p.Syscalls, s)
	}
	if r.IntN(2) == 0 {
		p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: []string{socketcall}, Action: actions[r.IntN(4)]})
	}
	return p
}

// Whatever profile the library takes and we compose, it stays in force, and nothing
// passes us by. The library takes most of them; with others a container does not start.
func TestComposeRandomThroughLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	names := []string{"socket", "listen", "unshare", "setns", "clone", "clone3", "getsockopt", "getsockname", "bind"}
	var all []*specs.LinuxSeccomp
	var of []string
	var options []Options
	for range 600 {
		name := names[r.IntN(len(names))]
		o := choices()[r.IntN(len(choices()))]
		p := randomProfile(r, name)
		composed, err := compose("amd64", p, o, "/l", "m")
		if err == nil {
			all, of, options = append(all, p, composed), append(of, name), append(options, o)
		}
	}
	progs := libseccomp(t, all)
	possible, tried := 0, 0
	for i, name := range of {
		alone, composed, p := progs[2*i], progs[2*i+1], all[2*i]
		if len(alone) == 0 {
			continue
		}
		raw, err := Build("amd64", options[i])
		if err != nil {
			t.Fatal(err)
		}
		possible++
		if len(composed) == 0 {
			continue
		}
		tried++
		said := only(p, name)
		for _, args := range calls(r, 500) {
			want, err := interpret(said, args, false)
			d := seccompData{archX8664, numbers()[name], args}
			if got := evaluate(t, alone, d); err == nil && got != want {
				break // the library has it otherwise
			}
			got := evaluate(t, composed, d)
			if got == seccompReturn(verdictOf(p.DefaultAction, nil)) && got != allow {
				continue // it refuses too much then: it loses rules, see inTreeOrder
			}
			if err := judge(options[i], name, args, evaluate(t, alone, d), evaluate(t, raw, d), got); err != nil {
				t.Fatalf("%+v: %s%#x: %#x by %+v: %v", options[i], name, args, got, p, err)
			}
		}
		checkForeign(t, options[i], alone, composed, raw)
	}
	if tried < 100 || tried < possible*9/10 {
		t.Errorf("of %d profiles the library takes %d alone and %d composed", len(of), possible, tried)
	}
}
