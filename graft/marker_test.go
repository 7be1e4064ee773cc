package graft

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Without descriptors, a listener of the container's own namespace pauses, logs that once, and keeps the connection.
func TestPauseWithoutDescriptors(t *testing.T) {
	w := ownWorld(t, ownRule)
	l := w.newOwnListener(w.host, addr("198.51.100.1:80"))
	l.kind, l.view, l.gone = keeperTCP, addr("198.51.100.1:80"), func() {}
	must(t, l.open(w.own))
	must(t, l.listen(5))
	var logged bytes.Buffer
	l.log = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelError}))
	for episode := 1; episode <= 2; episode++ {
		if _, _, err := connect(t, w.own, "198.51.100.1:80"); err != nil {
			t.Fatal(err)
		}
		testkit.WithFiles(t, 0, func() {
			for range 2 {
				began := time.Now()
				if again, took := l.accept(), time.Since(began); !again || took < lackPause {
					t.Errorf("it goes on: %v, after %v; want a pause of %v", again, took, lackPause)
				}
			}
		})
		if n := bytes.Count(logged.Bytes(), []byte("\n")); n != episode {
			t.Errorf("%d times logged, want %d:\n%s", n, episode, logged.Bytes())
		}
		if !l.accept() || l.lacked {
			t.Error("the connection that has waited is not accepted")
		}
		l.leads.Wait()
	}
	l.close()
}
