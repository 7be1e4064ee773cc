package graft

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/policy"
)

// writeSysctl writes a value of the calling thread's network namespace.
func writeSysctl(name, value string) error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0) }

// By a socket of the host a program learns of its own namespace's interfaces; of the host's
// only the names, and only where a rule has bound the socket.
func TestInterfaces(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	for _, c := range []struct {
		name         string
		made         *fakePlace
		bound, named bool
		family       int

		asked *fakePlace
	}{
		{name: "its own", made: own, family: ip4, asked: own},
		{name: "the host's", made: host, family: ip4, asked: own},
		{name: "the host's, IPv6", made: host, family: ip6, asked: own},
		{name: "the host's, a name", made: host, family: ip4, named: true, asked: own},
		{name: "a server's", made: host, family: ip4, bound: true, asked: own},
		{name: "a server's, a name", made: host, family: ip4, bound: true, named: true, asked: host},
		{name: "a unix socket", made: host, family: unix.AF_UNIX, asked: own},
	} {
		w := newWorld(t, host, own, false)
		number := w.socket(c.made, c.family, udp)
		if c.bound {
			w.enforcer.bindings[w.enforcer.cookie(w.program.files[number])] = policy.Binding{Ingress: true}
		}
		asked := 0
		err := w.Interfaces(w.program, number, c.named, func(file int) {
			asked++
			cookie, err := unix.GetsockoptUint64(file, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
			if err != nil || cookie != c.asked.Cookie() {
				t.Errorf("%s: asked in another namespace, %v", c.name, err)
			}
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			if err := unix.Capget(&header, &data[0]); err != nil || data != ([2]unix.CapUserData{}) {
				t.Errorf("%s: asked with capabilities %+v, %v", c.name, data, err)
			}
		})
		if err != nil || asked != 1 {
			t.Errorf("%s: asked %d times, %v", c.name, asked, err)
		}
	}
}

// Files that tell nothing of interfaces are not asked.
func TestNoInterfaces(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	ours := errors.New("a fault of ours")
	w := newWorld(t, host, own, false)
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	w.program.files[7] = null
	number := w.socket(host, ip4, udp)
	own.err = ours
	for n, want := range map[int]error{7: unix.ENOTTY, 8: unix.EBADF, number: ours} {
		if err := w.Interfaces(w.program, n, false, func(int) { t.Errorf("descriptor %d is asked", n) }); !errors.Is(err, want) {
			t.Errorf("descriptor %d: %v, want %v", n, err, want)
		}
	}
}
