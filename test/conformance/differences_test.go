package conformance

import "maps"

// difference is what a program may notice after all, and why that is so: the
// limits of docs/LIMITS.md. One that no longer shows fails the test.
type difference struct {
	why       string
	sometimes bool // it is a race
}

const (
	twoNamespaces = "the wildcard is bound on the host, the loopback in the container"
	otherProcess  = "a swapped socket stays unswapped in other processes that share it"
)

// interrupted: before the gate has picked a call up, the kernel waits
// interruptibly (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV protects it from then on).
var interrupted = difference{why: "a signal without SA_RESTART can interrupt a trapped call", sometimes: true}

// lingers: what a kernel without a way to install a file and let go of it at once
// leaves to do after the program has gone on.
var lingers = difference{why: "the gate closes its copy of a born socket a moment after the program has it", sometimes: true}

// everywhere are those of all columns whose sockets are born on the host.
var everywhere = map[string]difference{
	"bind-loopback-conflict": {why: twoNamespaces},
	"connect-mptcp":          {why: "MPTCP becomes TCP"},
	"epollset-close-unused":  lingers,
	"storm-interrupting":     interrupted,
}

// partial are those of columns whose sockets are swapped.
var partial = map[string]difference{
	"bind-loopback-conflict":   {why: twoNamespaces},
	"dup-fork-child-binds":     {why: otherProcess},
	"dup-fork-child-connects":  {why: otherProcess},
	"dup-fork-parent-connects": {why: otherProcess},
	"dup-scm-before":           {why: otherProcess},
	"dup-scm-connects":         {why: otherProcess},
	"dup-scm-in-flight":        {why: otherProcess},
	"epollset-fork":            {why: otherProcess},
	"inherit-vfork":            {why: otherProcess},
	"inherit-owner":            {why: "copying F_SETOWN would let a container send signals as root"},
	"storm-interrupting":       interrupted,
}

// withShim are those of programs in which the shim has got to work.
var withShim = with(everywhere, "inherit-numbers",
	difference{why: "sockets that the shim has parked are among the open descriptors, until they are used"})

func with(all map[string]difference, name string, d difference) map[string]difference {
	more := maps.Clone(all)
	more[name] = d
	return more
}

// differences are by column and case.
var differences = map[string]map[string]difference{
	"seccomp":         everywhere,
	"preload":         withShim,
	"auto":            withShim,
	"musl":            withShim,
	"partial":         partial,
	"partial-preload": partial,
	"partial-auto":    partial,
}
