package filter

import (
	"errors"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

const socketcall = "socketcall"

// socketcallNames are the calls of which socketcall(2) of i386 is another form, by
// its first argument less 1 (linux/net.h).
var socketcallNames = []string{
	"socket", "bind", "connect", "listen", "accept", "getsockname", "getpeername", "socketpair", "send", "recv",
	"sendto", "recvfrom", "shutdown", "setsockopt", "getsockopt", "sendmsg", "recvmsg", "accept4", "recvmmsg", "sendmmsg",
}

// composeSocketcall adds what is to become of socketcall(2), once the other calls are
// composed.
//
// For programs of i386 libseccomp makes of each rule of those calls one for
// socketcall(2) too, which compares the first argument with the call's number and
// forgets what the rule says of it. Where one of these says less than another, it has
// to come first; then it wins, and else it is an error, as are two that are alike but
// for their action. A profile that allows socketcall(2) itself makes all of them
// void, ours too: so it is said here for exactly those that we have no rule for.
func composeSocketcall(composed *specs.LinuxSeccomp, trapped map[string]trap) error {
	named, others := divide(composed.Syscalls, map[string]bool{socketcall: true})
	def := verdictOf(composed.DefaultAction, composed.DefaultErrnoRet)
	parts, err := partsOf(socketcall, named[socketcall], def)
	if err != nil {
		return err
	}
	var rules []specs.LinuxSyscall
	switch {
	case len(parts) == 0:
		var verdicts map[string]verdict
		if verdicts, err = shorts(others); err != nil {
			return err
		}
		// Where the profile refuses some, it stays with what the library makes.
		for _, s := range others {
			for _, name := range s.Names {
				if s.Action != specs.ActNotify && !verdictOf(s.Action, s.ErrnoRet).allows() && verdicts[name].action != s.Action {
					verdicts[name] = def
				}
			}
		}
		rules = socketcalls(def, def, verdicts, trapped)
	case parts[0].regions[0] != everything:
		return errors.New("its rules have conditions")
	case !parts[0].allows():
		rules = rulesOf(socketcall, parts[0].verdict, parts[0].regions)
	default:
		verdicts, err := shorts(others)
		rules = socketcalls(parts[0].verdict, def, nil, trapped)
		if err != nil || contradicted(rules, verdicts) {
			rules = rulesOf(socketcall, verdict{action: specs.ActNotify}, parts[0].regions)
		}
	}
	composed.Syscalls = slices.Concat(rules, others)
	return nil
}

// socketcalls are the rules for a socketcall(2) of which a profile says one thing,
// other than for some of the calls.
func socketcalls(said, def verdict, except map[string]verdict, trapped map[string]trap) []specs.LinuxSyscall {
	var rules []specs.LinuxSyscall
	for i, name := range socketcallNames {
		v := said
		if _, ours := trapped[name]; ours && said.allows() {
			v = verdict{action: specs.ActNotify}
		}
		if other, is := except[name]; is {
			v = other
		}
		if v != def {
			rules = append(rules, rulesOf(socketcall, v, []region{everything.where(0, exactly(uint64(i+1)))})...)
		}
	}
	return rules
}

// contradicted tells whether rules of socketcall(2) differ from those that the library
// makes of others'.
func contradicted(rules []specs.LinuxSyscall, made map[string]verdict) bool {
	return slices.ContainsFunc(rules, func(s specs.LinuxSyscall) bool {
		v, is := made[socketcallNames[s.Args[0].Value-1]]
		return is && v != verdictOf(s.Action, s.ErrnoRet)
	})
}

// shorts are the verdicts of rules that say nothing, or nothing but of the first
// argument.
func shorts(rules []specs.LinuxSyscall) (map[string]verdict, error) {
	all := map[string]verdict{}
	for _, s := range rules {
		if slices.ContainsFunc(s.Args, func(c specs.LinuxSeccompArg) bool { return c.Index != 0 }) {
			continue
		}
		for _, name := range s.Names {
			v := verdictOf(s.Action, s.ErrnoRet)
			if have, is := all[name]; is && have != v && slices.Contains(socketcallNames, name) {
				return nil, errors.New("for programs of i386 the rules of " + name + " contradict each other")
			}
			all[name] = v
		}
	}
	return all, nil
}
