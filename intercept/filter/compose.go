package filter

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ErrProfile says that a seccomp profile cannot be composed with our rules and stay in force.
var ErrProfile = errors.New("the seccomp profile cannot be composed")

// ruleMax is the number of rules that a call may have. The kernel takes 4096 instructions, and each
// condition takes about four. CRI-O's profile comes to more than 256 for socket(2).
const ruleMax = 512

// Compose returns the profile of an OCI runtime with our calls handed to the
// supervisor that listens at a socket, and metadata told to it. A nil profile is
// that of an unconfined container.
//
// The profile stays in force: calls that it refuses are still refused, and calls that it allows or
// logs are allowed, logged or trapped. The result traps at least the calls that the program of
// Build traps, except that it also checks the marks of AF_GRAFT sockets. If rules cannot express a
// call exactly, Compose returns an error.
//
// The profile does not have the x32 ABI, so its calls end their program. There are almost no such
// programs, and rules cannot distinguish their calls from those of the 64-bit ABI.
func Compose(profile *specs.LinuxSeccomp, o Options, listener, metadata string) (*specs.LinuxSeccomp, error) {
	return compose(runtime.GOARCH, profile, o, listener, metadata)
}

// abis are an architecture's own ABI and the 32-bit one that comes with it.
var abis = map[string][2]specs.Arch{
	"amd64": {specs.ArchX86_64, specs.ArchX86},
	"arm64": {specs.ArchAARCH64, specs.ArchARM},
}

func compose(goarch string, profile *specs.LinuxSeccomp, o Options, listener, metadata string) (*specs.LinuxSeccomp, error) {
	abi, known := abis[goarch]
	if !known {
		return nil, fmt.Errorf("%w: %s", ErrArch, goarch)
	}
	if profile == nil {
		profile = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Architectures: abi[:]}
	}
	if err := composable(profile); err != nil {
		return nil, err
	}
	composed := *profile
	composed.ListenerPath, composed.ListenerMetadata = listener, metadata
	composed.Architectures = slices.DeleteFunc(slices.Clone(profile.Architectures), func(a specs.Arch) bool { return a == specs.ArchX32 })
	composed.Syscalls = nil
	foreign32 := slices.Contains(composed.Architectures, abi[1])
	trapped := traps(o, foreign32)
	named, others := divide(profile.Syscalls, trapped)
	composed.Syscalls = others
	for _, name := range slices.Sorted(maps.Keys(trapped)) {
		rules, err := composeCall(profile, name, named[name], trapped[name])
		if err == nil && foreign32 && slices.ContainsFunc(rules, truncated) {
			err = errors.New("its conditions come to some that mean another thing for 32-bit programs")
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrProfile, name, err)
		}
		composed.Syscalls = append(composed.Syscalls, rules...)
	}
	if foreign32 {
		if err := composeSocketcall(&composed, trapped); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrProfile, socketcall, err)
		}
	}
	return &composed, nil
}

// divide takes the calls that are in a table out of the rules.
func divide[T any](rules []specs.LinuxSyscall, table map[string]T) (named map[string][]specs.LinuxSyscall, others []specs.LinuxSyscall) {
	named = map[string][]specs.LinuxSyscall{}
	for _, s := range rules {
		var left []string
		for _, name := range s.Names {
			if _, is := table[name]; is {
				named[name] = append(named[name], s)
			} else {
				left = append(left, name)
			}
		}
		if s.Names = left; len(left) > 0 {
			others = append(others, s)
		}
	}
	return named, others
}

func composable(p *specs.LinuxSeccomp) error {
	if p.ListenerPath != "" || p.ListenerMetadata != "" {
		return fmt.Errorf("%w: it has a listener of its own (listenerPath)", ErrProfile)
	}
	if !verdictOf(p.DefaultAction, nil).keepable() {
		return fmt.Errorf("%w: its default action is %s", ErrProfile, p.DefaultAction)
	}
	for _, s := range p.Syscalls {
		if s.Action == specs.ActNotify {
			return fmt.Errorf("%w: it has a listener of its own (%s)", ErrProfile, s.Action)
		}
	}
	return nil
}

// verdict is an action with its errno.
type verdict struct {
	action specs.LinuxSeccompAction
	errno  uint
}

func verdictOf(action specs.LinuxSeccompAction, errno *uint) verdict {
	v := verdict{action: action}
	if action == specs.ActErrno {
		v.errno = uint(unix.EPERM)
		if errno != nil {
			v.errno = *errno
		}
	}
	return v
}

// allows tells whether the kernel carries on with the call.
func (v verdict) allows() bool { return v.action == specs.ActAllow || v.action == specs.ActLog }

// keepable tells whether the result of the call is known. A tracer could let a call pass.
func (v verdict) keepable() bool {
	switch v.action {
	case specs.ActErrno, specs.ActTrap, specs.ActKill, specs.ActKillThread, specs.ActKillProcess:
		return true
	}
	return v.allows()
}

// part is what a profile says about some of a call's forms.
type part struct {
	verdict
	regions []region
}

// composeCall returns the rules for one of our calls, given those of the profile.
func composeCall(profile *specs.LinuxSeccomp, name string, old []specs.LinuxSyscall, t trap) ([]specs.LinuxSyscall, error) {
	def := verdictOf(profile.DefaultAction, profile.DefaultErrnoRet)
	parts, err := partsOf(name, old, def)
	if err != nil {
		return nil, err
	}
	if err := checkArguments(name, parts, t); err != nil {
		return nil, err
	}
	pass := t.pass
	if pass == nil {
		if pass, err = outside(t.regions); err != nil {
			return nil, err
		}
	}
	if def.allows() {
		var said []region
		for _, p := range parts {
			said = append(said, p.regions...)
		}
		rest, err := outside(said)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part{def, rest})
	}
	var composed []specs.LinuxSyscall
	add := func(v verdict, rs, within []region) {
		if err == nil && v != def { // else it is as all that no rule names
			rs, err = intersection(rs, within)
			composed = append(composed, rulesOf(name, v, rs)...)
		}
	}
	for _, p := range parts {
		if !p.allows() {
			add(p.verdict, p.regions, []region{everything})
			continue
		}
		add(p.verdict, p.regions, pass)
		add(t.verdict, p.regions, t.regions)
	}
	if err == nil && len(composed) > ruleMax {
		err = errTooMany
	}
	slices.SortStableFunc(composed, inTreeOrder)
	return composed, err
}

// truncated tells whether a rule allows more to programs of a 32-bit ABI, for which
// libseccomp compares lower halves only. Of marks those will do, and of the address
// in setsockopt(2) nothing is allowed to them.
func truncated(s specs.LinuxSyscall) bool {
	return verdictOf(s.Action, nil).allows() && slices.ContainsFunc(s.Args, func(c specs.LinuxSeccompArg) bool {
		return datum(c)>>32 != 0 && c.Index != markArg && (c.Index != 3 || s.Names[0] != "setsockopt")
	})
}

func datum(c specs.LinuxSeccompArg) uint64 {
	if c.Op == specs.OpMaskedEqual {
		return c.ValueTwo
	}
	return c.Value
}

// inTreeOrder compares rules as libseccomp does in its tree. If libseccomp has to insert a rule
// before others, it may lose the rule or never end: it is wrong where rules share a condition that
// is not an equality (2.5.4).
func inTreeOrder(a, b specs.LinuxSyscall) int {
	return slices.CompareFunc(a.Args, b.Args, func(c, d specs.LinuxSeccompArg) int {
		return cmp.Or(cmp.Compare(d.Index, c.Index), cmp.Compare(datum(d), datum(c)))
	})
}

// checkArguments refuses different arguments in the rules of one call, because libseccomp 2.5 loses
// such rules. The arguments of socket(2) that engines check are known to work.
func checkArguments(name string, parts []part, t trap) error {
	theirs, all := map[int]bool{}, map[int]bool{}
	note := func(rs []region, in ...map[int]bool) {
		for _, r := range rs {
			for arg, s := range r {
				for _, m := range in {
					if s != anyValue {
						m[arg] = true
					}
				}
			}
		}
	}
	note(t.regions, all)
	for _, p := range parts {
		note(p.regions, theirs, all)
	}
	if name == "socket" {
		delete(theirs, 0)
		delete(theirs, 2)
		all = theirs
	}
	if len(theirs) > 0 && (name == "socket" || len(all) > 1) {
		return fmt.Errorf("its rules look at arguments (%v) that cannot be told from ours", slices.Sorted(maps.Keys(theirs)))
	}
	return nil
}

func rulesOf(name string, v verdict, rs []region) []specs.LinuxSyscall {
	var all []specs.LinuxSyscall
	for _, conditions := range rules(rs) {
		s := specs.LinuxSyscall{Names: []string{name}, Action: v.action, Args: conditions}
		if v.action == specs.ActErrno {
			s.ErrnoRet = &v.errno
		}
		all = append(all, s)
	}
	return all
}

// partsOf returns the effect of the rules of one call in libseccomp: it leaves out a rule with the
// default action, and the first rule without conditions is the only one. Rules with different
// actions for one form of the call have no order in libseccomp, so it is unknown which holds, but for one
// form (see settle).
func partsOf(name string, rules []specs.LinuxSyscall, def verdict) ([]part, error) {
	var parts []part
	for _, s := range rules {
		v := verdictOf(s.Action, s.ErrnoRet)
		if v == def {
			continue
		}
		if !v.keepable() {
			return nil, fmt.Errorf("what %s does cannot be kept", s.Action)
		}
		if len(s.Args) == 0 {
			return []part{{v, []region{everything}}}, nil
		}
		rs, err := regionsOf(name, s.Args)
		if err != nil {
			return nil, err
		}
		next := part{v, rs}
		for i := range parts {
			if err := settle(name, &parts[i], &next); err != nil {
				return nil, err
			}
		}
		parts = append(parts, next)
	}
	return parts, nil
}

// settle checks that two parts do not contradict each other. It settles one contradiction, of the profile
// of containers/common, which refuses AF_VSOCK and allows all families but AF_NETLINK: libseccomp compares
// with the larger number first. What is refused is taken out of what is allowed.
func settle(name string, p, q *part) error {
	if p.verdict == q.verdict {
		return nil
	}
	both, err := intersection(p.regions, q.regions)
	if err != nil || len(both) == 0 {
		return err
	}
	if q.allows() {
		p, q = q, p // p is what allows
	}
	but, some := ofFamily(p, span.hole)
	refused, one := ofFamily(q, span.number)
	if name != "socket" || !some || !one || !p.allows() || q.allows() || refused < but {
		return fmt.Errorf("its rules contradict each other: %s and %s", p.action, q.action)
	}
	p.regions = nil
	for _, s := range lowerHalves(except(but).intersect(except(refused))) {
		p.regions = append(p.regions, everything.where(0, s))
	}
	return nil
}

// ofFamily returns the number of the only condition of a part, if it is of the first argument.
func ofFamily(p *part, number func(span) (uint64, bool)) (uint64, bool) {
	if len(p.regions) != 1 || p.regions[0] != everything.where(0, p.regions[0][0]) {
		return 0, false
	}
	return number(p.regions[0][0])
}

// regionsOf returns what conditions of a call say. Several of one argument are alternatives,
// as runc has it, and then so are all of them.
func regionsOf(name string, conditions []specs.LinuxSeccompArg) ([]region, error) {
	all, either := []region{everything}, []region(nil)
	var seen [6]int
	repeated := false
	for _, c := range conditions {
		if c.Index >= uint(len(seen)) {
			return nil, fmt.Errorf("a call has no argument %d", c.Index)
		}
		spans, err := parse(c)
		if err != nil {
			return nil, err
		}
		if name == "socket" && c.Index == 0 && isOfOrder(c.Op) {
			spans = lowerHalves(spans)
		}
		seen[c.Index]++
		repeated = repeated || seen[c.Index] > 1
		var one []region
		for _, s := range spans {
			one = append(one, everything.where(int(c.Index), s))
		}
		if !repeated {
			if all, err = intersection(all, one); err != nil {
				return nil, err
			}
		}
		either = append(either, one...)
	}
	if repeated {
		return either, nil
	}
	return all, nil
}
