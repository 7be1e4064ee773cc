package filter

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// Where IPv4 is translated, the filter asks about connects and names too, and about nothing else.
func TestBuildTranslated(t *testing.T) {
	const ptr = 0x7fff_0000_0000
	args := map[call][6]uint64{
		connect: {3, ptr, 16}, accept: {3, ptr, ptr}, accept4: {3, 0, 0, unix.SOCK_NONBLOCK}, getSockName: {3, ptr, ptr}, getPeerName: {3, ptr, ptr},
		listen: {3, 5}, sendTo: {3, ptr, 1, 0, ptr, 16}, sendMsg: {3, ptr}, sendMMsg: {3, ptr, 1}, setSockOpt: {3, unix.SOL_TCP}, getSockOpt: {3, unix.SOL_SOCKET},
	}
	asked := []call{connect, accept, accept4, getSockName, getPeerName}
	for goarch, n := range natives {
		for c, a := range args {
			d := seccompData{n.token, n.numbers[c], a}
			want := uint32(allow)
			if slices.Contains(asked, c) {
				want = ask
			}
			got, before := answer(t, goarch, Options{Untrapped: true, Translated: true}, d), answer(t, goarch, Options{Untrapped: true}, d)
			if got != want || before != allow {
				t.Errorf("%s: call %d%#x: the filter says %#x, want %#x, and %#x without translation", goarch, c, a, got, want, before)
			}
		}
		short := seccompData{n.token, n.numbers[connect], [6]uint64{3, ptr, 2}} // AF_UNSPEC
		if got := answer(t, goarch, Options{Untrapped: true, Translated: true}, short); got != allow {
			t.Errorf("%s: a short connect: the filter says %#x", goarch, got)
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
