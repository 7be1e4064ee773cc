package conformance

// The differences are what a program may notice after all: for a case, the reason. They
// are limits of docs/LIMITS.md. A difference that no longer shows fails the test.
const (
	twoNamespaces = "the wildcard is bound on the host, the loopback in the container"
	otherProcess  = "a swapped socket stays unswapped in other processes that share it"
)

// everywhere are those of all columns whose sockets are created on the host first.
var everywhere = map[string]string{
	"bind-loopback-conflict": twoNamespaces,
	"connect-mptcp":          "MPTCP becomes TCP",
}

// partial are those of columns whose sockets are swapped.
var partial = map[string]string{
	"bind-loopback-conflict":   twoNamespaces,
	"dup-fork-child-binds":     otherProcess,
	"dup-fork-child-connects":  otherProcess,
	"dup-fork-parent-connects": otherProcess,
	"dup-scm-before":           otherProcess,
	"dup-scm-connects":         otherProcess,
	"dup-scm-in-flight":        otherProcess,
	"epollset-fork":            otherProcess,
	"inherit-vfork":            otherProcess,
	"inherit-owner":            "copying F_SETOWN would let a container send signals as root",
}

// differences are by column and case.
var differences = map[string]map[string]string{
	"seccomp":         everywhere,
	"preload":         everywhere,
	"auto":            everywhere,
	"musl":            everywhere,
	"partial":         partial,
	"partial-preload": partial,
	"partial-auto":    partial,

	"sanitized-preload":         everywhere,
	"sanitized-auto":            everywhere,
	"sanitized-partial-preload": partial,
	"sanitized-partial-auto":    partial,
}
