package e2e

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// harmless are the options of the attack that anybody may set.
var harmless = []string{"SO_KEEPALIVE", "TCP_NODELAY", "IP_FREEBIND", "6 IPV6_V6ONLY"}

// Options that lead a socket around the other rules are refused, with EPERM,
// whatever the kernel would have said. By i386's call, which the kernel does not
// show to cgroup programs, they may be refused in any way.
func TestAttackOptions(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for user, flags := range users {
		out := steps(succeed(t, a.attack("dynamic", append(minimal(), flags...), "options")))
		if len(out) < 2*25 {
			t.Errorf("only %d options were tried", len(out))
		}
		for name, results := range out {
			plain, byI386 := strings.CutPrefix(name, "i386 ")
			if runtime.GOARCH != "amd64" && byI386 {
				continue
			}
			got := results[0]
			switch {
			case slices.Contains(harmless, plain):
				if got != "ok" {
					t.Errorf("%s: %s: %s; it is harmless", user, name, got)
				}
			case byI386 && got == "ok", !byI386 && got != "EPERM":
				t.Errorf("%s: setsockopt %s: %s, want EPERM", user, name, got)
			}
		}
	}
}

// With the host's socket in hand the host cannot be configured.
func TestAttackInterfaceIoctls(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	out := steps(succeed(t, a.attack("static", minimal(), "ioctls", "srv")))
	if len(out) < 10 {
		t.Errorf("only %d ioctls were tried", len(out))
	}
	for name, results := range out {
		if results[0] != "EPERM" {
			t.Errorf("%s: %s, want EPERM", name, results[0])
		}
	}
}

// A datagram has the source that its endpoint says, whatever its control messages
// say; a wildcard endpoint leaves the choice among the host's addresses.
func TestAttackSourceAddress(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	succeed(t, command(t, a.Host, "ip", "addr", "add", sourceAddr4+"/24", "dev", "srv"))
	seen := observe(t, a.Remote)
	rules := []string{
		"--endpoint", "out type ipv4 addr " + hostAddr4 + " port dynamic",
		"--endpoint", "out6 type ipv6 addr " + hostAddr6 + " port dynamic",
		"-e", fmt.Sprintf("%s/32:%d=out", remoteAddr4, observerPort),
		"-e", fmt.Sprintf("[%s/128]:%d=out6", remoteAddr6, observerPort),
	}
	to4, to6 := fmt.Sprintf("%s:%d", remoteAddr4, observerPort), fmt.Sprintf("[%s]:%d", remoteAddr6, observerPort)
	for _, source := range []string{sourceAddr4, "127.0.0.1", linkLocal4, "203.0.113.9"} {
		succeed(t, a.attack("static", rules, "udp-source", to4, source+":0"))
	}
	for _, source := range []string{"2001:db8:1::77", "::1", "fe80::1"} {
		succeed(t, a.attack("static", rules, "udp-source", to6, "["+source+"]:0"))
	}
	succeed(t, a.attack("static", rules, "udp-later", to4))
	a.settle()
	// Who asks after that is answered when all others were seen.
	if a.ask(a.Host, to4, "sentinel", testkit.Patience) == "" {
		t.Fatal("the sentinel has got no answer")
	}
	from := seen.take()
	if len(from) < 8 {
		t.Errorf("only %d datagrams arrived", len(from)-1)
	}
	for _, addr := range from {
		if addr != hostAddr4 && addr != hostAddr6 && addr != "::ffff:"+hostAddr4 {
			t.Errorf("a datagram came from %s", addr)
		}
	}
}

// A socket that has sent by an endpoint can still connect by it: its port is bound then, and the
// kernel gives no address to a socket that has a port. Where the kernel would choose another than
// the endpoint's, the connect or the datagram is refused.
func TestAttackConnectAfterSend(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	addAddr(t, a.Host, sourceAddr4+"/24", "srv")
	traps := []string{"--endpoint", "own type ipv4 addr " + hostAddr4 + " port dynamic nameable"}
	for _, tt := range []struct {
		addr          string
		flags         []string
		connect, send string
	}{
		{"0.0.0.0", nil, "ok", "ok"},
		{hostAddr4, nil, "ok", "ok"},
		{sourceAddr4, nil, "EPERM", "EDESTADDRREQ"},
		{"0.0.0.0", traps, "ok", "ok"},
		{hostAddr4, traps, "EPERM", "EDESTADDRREQ"},
	} {
		rules := append([]string{
			"--endpoint", "out type ipv4 addr " + tt.addr + " port dynamic",
			"-e", remoteAddr4 + "/32=out",
		}, tt.flags...)
		out := steps(succeed(t, a.attack("static", rules, "udp-later", allowed4.String())))
		for step, want := range map[string]string{"sendto": "ok", "connect": tt.connect, "send": tt.send} {
			if got := out[step]; !slices.Equal(got, []string{want}) {
				t.Errorf("endpoint %s %v: %s: %v, want %s", tt.addr, tt.flags, step, got, want)
			}
		}
	}
}

// Sockets of other ABIs are the container's own, and io_uring is not there.
func TestAttackOtherABIs(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	out := steps(succeed(t, a.attack("static", minimal(), "abi-sockets", allowed4.String())))
	for _, name := range []string{"io_uring_setup", "x32 io_uring_setup", "i386 io_uring_setup"} {
		if got := out[name]; !slices.Equal(got, []string{"ENOSYS"}) {
			t.Errorf("%s: %v, want ENOSYS", name, got)
		}
	}
	for _, abi := range []string{"i386", "x32"} {
		if slices.Equal(out[abi+" socket"], []string{"ENOSYS"}) {
			continue // not built into this kernel
		}
		if got := out[abi+" socket in the host's namespace"]; !slices.Equal(got, []string{"no"}) {
			t.Errorf("%s socket in the host's namespace: %v", abi, got)
		}
		if got := out[abi+" connect"]; !slices.Equal(got, []string{unix.ErrnoName(unix.ENETUNREACH)}) {
			t.Errorf("%s connect: %v, want ENETUNREACH", abi, got)
		}
	}
	if allowed, _ := a.arrived(); len(allowed) > 0 {
		t.Errorf("arrived: %v", allowed)
	}
}
