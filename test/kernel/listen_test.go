// Relied upon: listen(2) on a TCP socket that was not bound binds it to the
// wildcard and a port of the kernel's choice, and no bind program runs. For the
// host's namespace that would be an open door, so the supervisor answers
// listen itself. (A cgroup has no program for listen.)
//
// Since: always, still so in Linux 6.18.
// By: intercept/notify and graft (listen is acted on, never continued unbound).

package kernel

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func TestListenBindsWithoutBindProgram(t *testing.T) {
	enterNetns(t)
	cg := newCgroup(t)
	attach(t, cg, ebpf.AttachCGroupInet4Bind, program(0))
	attach(t, cg, ebpf.AttachCGroupInet6Bind, program(0))

	for wildcard, domain := range map[string]int{"0.0.0.0": unix.AF_INET, "::": unix.AF_INET6} {
		fd := cg.socket(t, domain, unix.SOCK_STREAM, 0)
		wildcardAddr := sockaddr(netip.AddrPortFrom(netip.MustParseAddr(wildcard), 0).String())
		want(t, "bind", unix.Bind(fd, wildcardAddr), error(unix.EPERM))
		try(t, "listen", unix.Listen(fd, 1))
		name := netip.MustParseAddrPort(local(t, fd))
		want(t, "address", name.Addr().String(), wildcard)
		if name.Port() == 0 {
			t.Error("listener has no port")
		}
	}
}
