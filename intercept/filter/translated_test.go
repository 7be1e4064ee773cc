package filter

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// Where IPv4 is translated, the filter asks about connects and names too, and about nothing else. It
// asks about no call that the shim has decided.
func TestBuildTranslated(t *testing.T) {
	const ptr = 0x7fff_0000_0000
	args := map[call][6]uint64{
		connect: {3, ptr, 16}, accept: {3, ptr, ptr}, accept4: {3, 0, 0, unix.SOCK_NONBLOCK}, getSockName: {3, ptr, ptr}, getPeerName: {3, ptr, ptr},
		listen: {3, 5}, sendTo: {3, ptr, 1, 0, ptr, 16}, sendMsg: {3, ptr}, sendMMsg: {3, ptr, 1}, setSockOpt: {3, unix.SOL_TCP}, getSockOpt: {3, unix.SOL_SOCKET},
	}
	asked := []call{connect, accept, getSockName, getPeerName} // not the accept4 without an address
	for goarch, n := range natives {
		for _, mode := range []Mode{Seccomp, Auto} {
			o := Options{Mode: mode, Untrapped: true, Translated: true}
			for c, a := range args {
				d := seccompData{n.token, n.numbers[c], a}
				want := map[uint64]uint32{0: allow, markAsk: allow, markPass: allow}
				if slices.Contains(asked, c) {
					want = map[uint64]uint32{0: ask, markAsk: ask, markPass: ask}
				}
				if mode == Auto {
					want[markPass] = allow
				}
				before := answer(t, goarch, Options{Mode: mode, Untrapped: true}, d)
				for mark, want := range want {
					if c == sendTo && mark != 0 {
						continue // it has no place for a mark
					}
					if c != sendTo {
						d.args[markArg] = mark
					}
					if got := answer(t, goarch, o, d); got != want || before != allow {
						t.Errorf("%s, %s: call %d%#x: the filter says %#x, want %#x, and %#x without translation", goarch, mode, c, d.args, got, want, before)
					}
				}
			}
			short := seccompData{n.token, n.numbers[connect], [6]uint64{3, ptr, 2}} // AF_UNSPEC
			if got := answer(t, goarch, o, short); got != allow {
				t.Errorf("%s, %s: a short connect: the filter says %#x", goarch, mode, got)
			}
		}
	}
}

// Where listeners may have connections of two namespaces, the filter asks about each accept(2), in each
// mode.
func TestBuildAccepts(t *testing.T) {
	for goarch, n := range natives {
		for _, mode := range []Mode{Seccomp, Auto, Preload} {
			for _, c := range []call{accept, accept4} {
				d := seccompData{n.token, n.numbers[c], [6]uint64{3}}
				got, before := answer(t, goarch, Options{Mode: mode, Accepts: true}, d), answer(t, goarch, Options{Mode: mode}, d)
				if got != ask || before != allow {
					t.Errorf("%s, %s: call %d: the filter says %#x, and %#x otherwise", goarch, mode, c, got, before)
				}
			}
		}
	}
}
