package conformance

// Why a program in a guest sees something else than on the host.
const (
	dissolved    = "a vsock socket is not dissolved by AF_UNSPEC"
	vsockEvents  = "vsock has other events and errnos than TCP"
	vsockOptions = "options of SOL_SOCKET are those of the vsock socket, and the guest's clock is coarser"
	guestPort    = "the host's kernel chooses the port of a client, also if the program has bound one"
	deadPort     = "the host is not told that a listener was closed, and asks when it has to"
	guestWorld   = "the guest's loopback and its UDP sockets are its own kernel's; its other sockets are not"
	noOwner      = "F_SETOWN is not copied to the socket that replaces the program's"
	oldThread    = "before Linux 6.9 the descriptors of a thread are those of its process' first thread"
)

// guestDifferences are those of TestGuest.
var guestDifferences = map[string]difference{
	"connect-refused-v4":       {guestPort, "refused getsockname: inet any port zero len 16"},
	"connect-refused-v6":       {guestPort, "refused getsockname: inet6 any port zero len 28 scope 0"},
	"connect-bound-v4":         {guestPort, "same port as before: no"},
	"connect-bound-v6":         {guestPort, "same port as before: no"},
	"connect-bound-private-v4": {dissolved, "dissolve: -1 EISCONN"},
	"connect-bound-private-v6": {dissolved, "dissolve: -1 EISCONN"},
	"connect-unspec-v4":        {dissolved, "dissolve: -1 EISCONN"},
	"connect-unspec-v6":        {dissolved, "dissolve: -1 EISCONN"},
	"connect-unspec-loopback":  {dissolved, "dissolve: -1 EISCONN"},
	"connect-alt-then-peer":    {dissolved, "dissolve: -1 EISCONN"},
	"connect-fastopen":         {guestWorld, "sendto: -1 ENETUNREACH"},
	"progress-connect-v4":      {vsockEvents, "connect again: -1 EISCONN"},
	"progress-connect-v6":      {vsockEvents, "connect again: -1 EISCONN"},
	"progress-refused":         {vsockEvents, "poll: OUT|ERR"},
	"progress-pending-v4":      {vsockEvents, "send: -1 ENOTCONN"},
	"progress-pending-v6":      {vsockEvents, "send: -1 ENOTCONN"},
	"progress-timeout":         {guestPort, "after getsockname: inet any port zero len 16"},
	"bind-loopback-conflict":   {guestWorld, "any address, same port: 0"},
	"listen-range-v4":          {deadPort, "dial the closed port: dialled"},
	"listen-range-v6":          {deadPort, "dial the closed port: dialled"},
	"listen-range-self-v4":     {guestWorld, "connect over loopback: -1 ECONNREFUSED"},
	"listen-range-self-v6":     {guestWorld, "connect over loopback: -1 ECONNREFUSED"},
	"listen-states":            {vsockEvents, "send: -1 ENOTCONN"},
	"listen-unspec":            {dissolved, "dissolve: -1 EINVAL"},
	"accept-shutdown":          {vsockEvents, "shutdown: -1 ENOTCONN"},
	"options-connect-v4":       {vsockOptions, "before: linger 1/7 rcvtimeo 3.500000 sndtimeo 4.250000 reno"},
	"options-connect-v6":       {vsockOptions, "before: linger 1/7 rcvtimeo 3.500000 sndtimeo 4.250000 reno"},
	"options-loopback-v4":      {vsockOptions, "after: linger 1/7 rcvtimeo 3.500000 sndtimeo 4.250000 reno"},
	"options-loopback-v6":      {vsockOptions, "after: linger 1/7 rcvtimeo 3.500000 sndtimeo 4.250000 reno"},
	"options-listen-v4":        {vsockOptions, "bound SO_REUSEADDR: 0"},
	"options-listen-v6":        {vsockOptions, "bound SO_REUSEADDR: 0"},
	"options-bind-loopback":    {vsockOptions, "listening: linger 1/7 rcvtimeo 3.500000 sndtimeo 4.250000 reno"},
	"options-later":            {vsockOptions, "TCP_CONGESTION: -1 EPERM"},
	"optargs-privileged":       {vsockOptions, "SO_PRIORITY: 0"},
	"optargs-ioctl":            {vsockOptions, "FIONREAD: -1 EOPNOTSUPP"},
	"epollset-poll":            {vsockEvents, "ended: IN|HUP|RDHUP"},
	"dup-fork-child-connects":  {otherProcess, "parent getsockname: inet any port zero len 16"},
	"dup-fork-parent-connects": {otherProcess, "child echoes: -1 EPIPE"},
	"dup-fork-child-binds":     {otherProcess, "parent getsockname: inet any port zero len 16"},
	"dup-scm-before":           {otherProcess, "receiver echoes: -1 EPIPE"},
	"dup-scm-connects":         {otherProcess, "sender getsockname: inet any port zero len 16"},
	"dup-scm-in-flight":        {otherProcess, "received getsockname: inet any port zero len 16"},
	"inherit-owner":            {noOwner, "owner: no"},
	"inherit-vfork":            {otherProcess, "parent getsockname: inet any port zero len 16"},
	"inherit-stat":             {vsockEvents, "isatty: -1 EOPNOTSUPP"},
	"storm-table":              {oldThread, "in the thread getpeername: -1 ENOTCONN"},
	"storm-leader":             {oldThread, "connect: -1 ENETUNREACH"},
	"stream-half-close-v4":     {vsockEvents, "shutdown again: 0"},
	"stream-half-close-v6":     {vsockEvents, "shutdown again: 0"},
	"stream-reset":             {vsockEvents, "poll: IN|OUT|RDHUP"},
	"stream-peek":              {vsockEvents, "throw away: -1 ENOMEM"},
	"stream-sendto":            {vsockEvents, "sendto: -1 EISCONN"},
	"udp-bound-v4":             {guestPort, "the peer sees it: no"},
	"udp-bound-v6":             {guestPort, "the peer sees it: no"},
	"udp-broadcast":            {guestWorld, "sendto: 1"},
	"udpmsg-pktinfo-v4":        {guestWorld, "addressed to the local name: no"},
	"udpmsg-pktinfo-v6":        {guestWorld, "addressed to the local name: no"},
	"udpmsg-pktinfo-send":      {guestWorld, "our own source: -1 ENETUNREACH"},
	"udpmsg-error-queue":       {guestWorld, "recvmsg: 0"},
	"badargs-bind-unspec":      {guestWorld, "dial: refused"},
	"own-client-port-v4":       {guestPort, "far getsockname: inet own port nonzero len 16"},
	"own-client-port-v6":       {guestPort, "far getsockname: inet6 own port nonzero len 28 scope 0"},
	"own-unspec-tcp-v4":        {dissolved, "dissolve: -1 EISCONN"},
	"own-unspec-tcp-v6":        {dissolved, "dissolve: -1 EISCONN"},
}

// guestLeftOut has beginnings of names of cases that make no sense in a guest, or differ from run to run,
// and why.
var guestLeftOut = map[string]string{
	"progress-interrupted": "a signal interrupts each trapped call of a program in a guest",
	"storm-interrupting":   "likewise",
	"storm-restarting":     "likewise",
	"progress-shutdown":    "a vsock socket that connects cannot be shut down, so connect(2) goes on",
	"stream-vectors":       "it waits by FIONREAD, which vsock does not have",
	"options-default":      "it prints the default of congestion control, of which there are two",
	"storm-sandbox":        "network namespaces in a guest are the guest's, and have no part in what is the host's",
	"connect-mptcp":        "the guest's kernel has no MPTCP",
	"badargs-pointers":     "the guest's kernel, an older one, looks at pointers in another order than the host's",
	"epoll-level-v4":       "epoll says EPOLLHUP of a vsock socket before it connects, if it looks",
	"epoll-edge":           "likewise",
	"epoll-oneshot":        "likewise",
	"epoll-refused":        "likewise",
	"epoll-blocking":       "likewise",
	"epoll-listener":       "likewise",
	"epollset-dup":         "likewise",
	"epollset-fork":        "likewise",
	"epollset-nested":      "likewise",
	"bind-close-bind":      "on a busy machine, supervisors are asked for longer than bind(2) waits for them",
	"badargs-bind-v":       "likewise",
	"own-error-udp":        "the guest's kernel tells an error on its loopback at another time",
}
