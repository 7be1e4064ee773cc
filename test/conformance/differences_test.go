package conformance

import (
	"maps"
	"strings"
)

// difference is what a program may notice after all in a case: why, and the first line of the case
// that is not what a bare host answers.
type difference struct {
	why   string
	first line
}

// The differences are limits of docs/LIMITS.md. One that no longer shows, or shows in another way,
// fails the test.
const (
	twoNamespaces = "the wildcard is bound on the host, the loopback in the container"
	otherProcess  = "a swapped socket stays unswapped in other processes that share it"
	noDevice      = "a host socket is bound to no device, since another one could be the host's"
	hostsPort     = "the peer sees the host's port, and so does the program"
	movedPort     = "a socket that is moved to the host keeps the name that it had before"
)

// everywhere are those of all columns whose sockets are created on the host first.
var everywhere = map[string]difference{
	"bind-loopback-conflict": {twoNamespaces, "any address, same port: 0"},
	"connect-mptcp":          {"MPTCP becomes TCP", "protocol: 6"},
	"own-device":             {noDevice, "server's device: -1 EPERM"},
	"own-device-udp":         {noDevice, "device: -1 EPERM"},
}

// hosted has the differences of columns whose loopback is on the host.
var hosted = map[string]difference{
	"own-client-port-v4": {hostsPort, "far getsockname: inet own port nonzero len 16"},
	"own-client-port-v6": {hostsPort, "far getsockname: inet6 own port nonzero len 28 scope 0"},
}

// inside are those of mode preload too, where the loopback stays in the container's namespace.
var inside = map[string]difference{
	"connect-bound-private-v4": {movedPort, "local is the peer's view: no"},
	"connect-bound-private-v6": {movedPort, "local is the peer's view: no"},
	"udp-bound-private-v4":     {twoNamespaces, "ask: -1 ENETUNREACH"},
	"udp-bound-private-v6":     {twoNamespaces, "ask: -1 ENETUNREACH"},
	"own-client-port-udp-v4":   {twoNamespaces, "send far: -1 ENETUNREACH"},
	"own-client-port-udp-v6":   {twoNamespaces, "send far: -1 ENETUNREACH"},
	"own-error-udp-v4":         {"the relay carries no errors", "the error: 8"},
	"own-error-udp-v6":         {"the relay carries no errors", "the error: 8"},
	"own-fork-v4":              {otherProcess, "bound getsockname: inet any port zero len 16"},
	"own-fork-v6":              {otherProcess, "bound getsockname: inet6 any port zero len 28 scope 0"},
	"own-names-udp-v4":         {twoNamespaces, "server hears: -1 ETIMEDOUT"},
	"own-names-udp-v6":         {twoNamespaces, "server hears: -1 ETIMEDOUT"},
}

// partial are those of columns whose sockets are swapped.
var partial = map[string]difference{
	"bind-loopback-conflict":   {twoNamespaces, "any address, same port: 0"},
	"connect-bound-private-v4": {movedPort, "local is the peer's view: no"},
	"connect-bound-private-v6": {movedPort, "local is the peer's view: no"},
	"udp-bound-private-v4":     {movedPort, "local is the peer's view: no"},
	"udp-bound-private-v6":     {movedPort, "local is the peer's view: no"},
	"dup-fork-child-binds":     {otherProcess, "parent getsockname: inet any port zero len 16"},
	"dup-fork-child-connects":  {otherProcess, "parent getsockname: inet any port zero len 16"},
	"dup-fork-parent-connects": {otherProcess, "child echoes: -1 EPIPE"},
	"dup-scm-before":           {otherProcess, "receiver echoes: -1 EPIPE"},
	"dup-scm-connects":         {otherProcess, "sender getsockname: inet any port zero len 16"},
	"dup-scm-in-flight":        {otherProcess, "received getsockname: inet any port zero len 16"},
	"epollset-fork":            {otherProcess, "parent: 0"},
	"inherit-vfork":            {otherProcess, "parent getsockname: inet any port zero len 16"},
	"inherit-owner":            {"copying F_SETOWN would let a container send signals as root", "owner: no"},
	"own-batch-v6":             {"a datagram socket that has sent inside goes on there", "sendmmsg: cannot go on, ENETUNREACH"},
}

// differences are by column and case.
var differences = map[string]map[string]difference{
	"partial":         partial,
	"partial-preload": partial,
	"partial-auto":    partial,

	"sanitized-partial-preload": partial,
	"sanitized-partial-auto":    partial,
}

func init() {
	for _, column := range []string{"seccomp", "preload", "auto", "musl", "sanitized-preload", "sanitized-auto"} {
		differences[column] = maps.Clone(everywhere)
		if strings.HasSuffix(column, "preload") {
			maps.Copy(differences[column], inside)
		} else {
			maps.Copy(differences[column], hosted)
		}
	}
}
