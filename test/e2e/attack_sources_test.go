package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// begun is a connection that somebody who is no source of a server's rule has begun.
type begun struct {
	from string
	file int
}

// beginFrom begins to connect to a server from an address of a namespace.
func beginFrom(t *testing.T, ns *testkit.Namespace, from string, to netip.AddrPort) begun {
	t.Helper()
	b := begun{from, -1}
	err := ns.Do(func() (err error) {
		family := unix.AF_INET6
		if to.Addr().Is4() {
			family = unix.AF_INET
		}
		if b.file, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(b.file) })
		if err := unix.Bind(b.file, sockaddr.Of(netip.AddrPortFrom(netip.MustParseAddr(from), 0))); err != nil {
			return err
		}
		return unix.Connect(b.file, sockaddr.Of(to))
	})
	if !errors.Is(err, unix.EINPROGRESS) {
		t.Fatalf("connect from %s to %s: %v, want EINPROGRESS", from, to, err)
	}
	return b
}

// waits checks that a connection has not been taken, nor refused.
func (b begun) waits(t *testing.T) {
	t.Helper()
	_, err := unix.Getpeername(b.file)
	failed, _ := unix.GetsockoptInt(b.file, unix.SOL_SOCKET, unix.SO_ERROR)
	if !errors.Is(err, unix.ENOTCONN) || failed != 0 {
		t.Errorf("the server has answered %s: %v, %v", b.from, err, unix.Errno(failed))
	}
}

// TestAttackSources has servers in all modes, and a static one, whose rule has one source. Neither another
// host nor the host itself is heard. The source comes last, and so the others have been heard by then, or
// are not.
func TestAttackSources(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "python3")
	w := newWorld(t)
	for _, at := range []netip.AddrPort{netip.AddrPortFrom(testkit.HostAddr4, ownPort), netip.AddrPortFrom(testkit.HostAddr6, ownPort)} {
		any, source, other := "0.0.0.0", remoteAddr4, otherRemoteAddr4
		if at.Addr().Is6() {
			any, source, other = "[::]", remoteAddr6, ""
		}
		rule := []string{"-i", fmt.Sprintf("%s:%d+from:%s=%s", any, ownPort, source, at)}
		begins := func(t *testing.T) []begun {
			t.Helper()
			list := []begun{beginFrom(t, w.h, at.Addr().String(), at)}
			if other != "" {
				list = append(list, beginFrom(t, w.srv, other, at))
			}
			return list
		}
		asks := func(t *testing.T) {
			t.Helper()
			list := begins(t)
			if got := told(t, w.srv, at.String()); got != source+" "+source+"\n" {
				t.Errorf("%s says %q to its source", at, got)
			}
			for _, b := range list {
				b.waits(t)
			}
		}
		for _, m := range modes {
			if at.Addr().Is6() {
				break // the dynamic server knows IPv4 only
			}
			for _, bridge := range []bool{false, true} {
				v := variant{bridge: bridge, egress: everything, mode: m}
				t.Run(fmt.Sprintf("%s bridge %v %s", m.name, bridge, any), func(t *testing.T) {
					s := serve(t, v.run(t, w, append(rule, "--", "python3", "testdata/prefork/prefork.py", fmt.Sprint(ownPort), "1")...), port{w.h, "tcp", ownPort})
					asks(t)
					s.stop(t)
				})
			}
		}
		t.Run("static "+any, func(t *testing.T) {
			o := w.obey(t, t.TempDir(), append(variants[0].flags(w), rule...)...)
			o.want("listens", "listen l %s:%d", any, ownPort)
			list := begins(t)
			reached(t, w.srv, []string{"http://" + at.String() + "/"}, source)
			for _, b := range list {
				b.waits(t)
			}
			o.release()
		})
	}
}
