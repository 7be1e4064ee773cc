package e2e

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

var loopKills = flag.Int("loop-kills", testkit.Times(6, 1000), "how often TestOwnLoopbackOutlivesAgents kills the agent")

// load is a container under loop-load of testdata/attack, which ends at the first call that fails.
type load struct {
	*held
	rounds atomic.Int64
	ended  chan struct{}
}

func (d *daemon) load(t *testing.T, args ...string) *load {
	t.Helper()
	l := &load{held: hold(t, d.graft(args...), "rounds: "), ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		for l.lines.Scan() {
			if strings.HasPrefix(l.lines.Text(), "rounds: ") {
				l.rounds.Add(1)
			} else {
				fmt.Fprintln(l.stderr, l.lines.Text())
			}
		}
	}()
	return l
}

// goesRound waits until the load has gone round once more, from the beginning to the end.
func (l *load) goesRound() {
	l.t.Helper()
	before := l.rounds.Load()
	testkit.Eventually(l.t, func() error {
		select {
		case <-l.ended:
			l.t.Fatalf("%s has ended:\n%s", line(l.Cmd), l.stderr)
		default:
		}
		if l.rounds.Load() < before+2 {
			return errors.New("the load does not go on")
		}
		return nil
	})
}

// An agent that is killed again and again, under load on the containers' own loopbacks: no call of
// their servers and clients fails. Each agent is killed when each container has gone round since it
// was started, and the next one is started without a wait for that.
func TestOwnLoopbackOutlivesAgents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	d.ctx = unlimited(t)
	var loads []*load
	for _, v := range both {
		for mode, build := range map[string]string{"auto": "dynamic", "seccomp": "static"} {
			args := slices.Concat(v.flags(w), []string{"--mode", mode, "--", attackProgram(t, build), "loop-load", "127.0.0.1:0"})
			for i, addr := range []string{"127.0.0.1", "127.0.0.53", "0.0.0.0", "[::1]", "[::]"} { // two containers have one namespace
				args = append(args, fmt.Sprintf("%s:%d", addr, 9100+100*len(loads)+max(i, 1)))
			}
			loads = append(loads, d.load(t, args...))
		}
	}
	for range *loopKills {
		d.kill()
		d.start()
		for _, l := range loads {
			l.goesRound()
		}
	}
	for _, l := range loads {
		_ = l.stdin.Close()
		<-l.ended
		if err := l.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", line(l.Cmd), err, l.stderr)
		}
		checkLog(t, l.Cmd, l.stderr.String())
	}
}
