package graft

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// If this process has no descriptor for a connection, that is no errno for the program, and not for the kernel to
// carry on with if the listener may have a marker. The connection stays in the queue.
func TestAcceptWithoutDescriptors(t *testing.T) {
	for rule, want := range map[string]struct {
		answer Answer
		err    error
	}{
		ownRule:                      {fail(unix.ECONNABORTED), unix.EMFILE},
		"0.0.0.0:80=198.51.100.1:80": {},
	} {
		w := ownWorld(t, rule)
		number := w.listening()
		_, name, err := connect(t, w.host, "198.51.100.1:80")
		must(t, err)
		var answer Answer
		testkit.WithFiles(t, 1, func() { _, _, answer, err = w.Accept(w.program, number) }) // one is the listener's duplicate
		if answer != want.answer || !errors.Is(err, want.err) {
			t.Errorf("%s: accept says %+v, %v; want %+v", rule, answer, err, want)
		}
		if rule != ownRule {
			continue
		}
		if _, peer := w.accepted(number); peer != name {
			t.Errorf("the peer is %v, want %v", peer, name)
		}
	}
}
