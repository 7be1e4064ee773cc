package e2e

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// helperFiles is the limit of an agent's files, and of its helpers': so that what is in flight beyond
// it is nothing to others on this machine, who have more.
const helperFiles = 4096

// Descriptors that are in messages count against the user that has sent them, all over the machine.
// A container that has too many takes nothing from other containers of its user: those that are
// there make sockets, others start, and the next agent takes over both.
func TestDescriptorsInFlight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	for user, flags := range map[string][]string{"root": nil, "other": {"-u", "61234:61234"}} {
		for _, v := range []variant{variants[0], variants[2]} { // sockets of the gate, and of the keeper
			t.Run(user+" "+v.name, func(t *testing.T) {
				n := startBesieged(t, w)
				limit := &unix.Rlimit{Cur: helperFiles, Max: helperFiles}
				if err := unix.Prlimit(n.cmd.Process.Pid, unix.RLIMIT_NOFILE, limit, nil); err != nil {
					t.Fatal(err)
				}
				run := slices.Concat(v.flags(w), flags)
				before := n.obey(t, run...)
				args := slices.Concat(run, []string{"--", attackProgram(t, "static"), "in-flight", fmt.Sprint(helperFiles + 300)})
				a := hold(t, n.graft(args...), "in flight: ok")
				works := func(o *obedient) {
					t.Helper()
					for range 20 {
						o.want(sourceAddr4, "dial a tcp %s", remoteObserver())
						o.want(sourceAddr4, "dial b udp %s", remoteObserver())
						o.want(sourceAddr6, "dial c tcp [%s]:%d", remoteAddr6, observerPort)
						o.want(sourceAddr6, "dial d udp [%s]:%d", remoteAddr6, observerPort)
						o.want("ECONNREFUSED", "dial e tcp 127.0.0.1:9")
					}
				}
				works(before)
				after := n.obey(t, run...)
				works(after)
				n.kill()
				n.start()
				works(before)
				works(after)
				works(n.obey(t, run...))
				a.release()
				before.release()
				after.release()
			})
		}
	}
}
