package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// What is done to a helper. Its answers never come, or come as errors, or it is gone.
var hurts = map[string]func(pid int) error{
	"stop": func(pid int) error { return unix.Kill(pid, unix.SIGSTOP) },
	"kill": func(pid int) error { return unix.Kill(pid, unix.SIGKILL) },
	"starve": func(pid int) error {
		return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: 4096}, nil)
	},
}

// helper waits for a process of a container's, by its name. A gate of the agent's that has been idle
// for a while has none: see findHelper.
func (o *obedient) helper(t *testing.T, name string) (pid int) {
	t.Helper()
	testkit.Eventually(t, func() (err error) {
		pid, err = o.findHelper(t, name)
		return err
	})
	return pid
}

// findHelper looks once for a process of a container's, by its name.
func (o *obedient) findHelper(t *testing.T, name string) (pid int, err error) {
	t.Helper()
	groups, _ := filepath.Glob(filepath.Join(ownCgroup(t), "tsugiki-"+o.name+"*", "keepers"))
	for _, group := range groups {
		for _, pid := range members(group) {
			if comm(pid) == name {
				return pid, nil
			}
		}
	}
	return 0, fmt.Errorf("%s has no %s", o.name, name)
}

// gatePool is the agent's process that keeps gates.
func (n *asked) gatePool(t *testing.T) int {
	t.Helper()
	pid := child(n.cmd.Process.Pid, "tsugiki-pool")
	if pid == 0 {
		t.Fatal("the agent has no gate pool")
	}
	return pid
}

// suffer has helpers needed in each way: by calls, changes of endpoints, a trace, statistics. All of it
// returns; what it says depends on what was done to the helper.
func (n *asked) suffer(t *testing.T, o *obedient) {
	t.Helper()
	for i := range 6 { // more than a keeper has made in advance; nobody waits for the answers here
		_, _ = fmt.Fprintf(o.stdin, "dial d%d tcp %s\n", i, remoteObserver())
	}
	for _, args := range []string{"add x type ipv4 addr 0.0.0.0 port dynamic for ", "del x for "} {
		r := try(t, graftCommand(t, n.w, n.run, args+o.name))
		if r.err != nil && strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("graft %s: %v, printed:\n%s", args, r.err, r.stderr)
		}
	}
	if trace, err := n.http.Get("http://tsugiki/v1/containers/" + o.name + "/trace"); err != nil {
		t.Error(err)
	} else {
		trace.Body.Close()
	}
	_ = n.get(t, "/v1/stats")
	_ = n.get(t, "/metrics")
	if ps := n.ps(); !strings.Contains(ps, "NAME") {
		t.Errorf("tsugiki ps prints\n%s", ps)
	}
}

// Whatever is done to a helper of a container, and whatever is asked of it then: other containers
// are served, start and end, and an agent that is killed is followed by one that serves them.
func TestHelpersAreHurt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	for _, helper := range []string{"gate", "keeper"} {
		for what, hurt := range hurts {
			t.Run(what+" "+helper, func(t *testing.T) {
				n := startBesieged(t, w)
				v := variants[2] // its sockets are swapped, by the keeper
				other := n.obey(t, v.flags(w)...)
				o := n.obey(t, v.flags(w)...)
				var pid int
				testkit.Eventually(t, func() (err error) { // a gate may exit as idle
					o.want(sourceAddr4, "dial first tcp %s", remoteObserver())
					if pid, err = o.findHelper(t, "tsugiki-"+helper); err == nil {
						err = hurt(pid)
					}
					return err
				})
				defer unix.Kill(pid, unix.SIGCONT) // if it is there
				n.suffer(t, o)
				n.goesOn(t, other)
				n.kill()
				n.start()
				n.goesOn(t, other)
				_ = o.Process.Signal(unix.SIGTERM)
				_ = o.Wait() // it ends
				n.goesOn(t, other)
				other.release()
				testkit.Eventually(t, func() error {
					if ps := n.ps(); strings.Contains(ps, "e2e-obey") {
						return fmt.Errorf("the containers are there:\n%s", ps)
					}
					return nil
				})
			})
		}
	}
}

// goesOn checks that a container works, and that others start and end.
func (n *asked) goesOn(t *testing.T, other *obedient) {
	t.Helper()
	other.want(sourceAddr4, "dial a tcp %s", remoteObserver())
	other.want(sourceAddr4, "dial b udp %s", remoteObserver())
	other.want(sourceAddr6, "dial c tcp [%s]:%d", remoteAddr6, observerPort)
	other.want("listens", "listen l 127.0.0.1:0")
	other.want("closed", "close l")
	next := n.obey(t, variants[2].flags(n.w)...)
	next.want(sourceAddr4, "dial a tcp %s", remoteObserver())
	next.graft("del out")
	next.want(hostAddr4, "dial a tcp %s", remoteObserver())
	next.release()
}

// The gate pool keeps idle gates for all containers. While it is stopped no container starts, and who wants
// one is told; those that are there go on. The next agent has another.
func TestGatePoolIsHurt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	v := variants[2]
	for what, hurt := range hurts {
		t.Run(what, func(t *testing.T) {
			n := startBesieged(t, w)
			other := n.obey(t, v.flags(w)...)
			pid := n.gatePool(t)
			if err := hurt(pid); err != nil {
				t.Fatal(err)
			}
			defer unix.Kill(pid, unix.SIGCONT) // if it is there
			other.want(sourceAddr4, "dial a tcp %s", remoteObserver())
			if what != "kill" { // or another is started for it
				r := try(t, n.graft(append(v.flags(w), "--", "true")...))
				if exitStatus(r.err) != 1 || strings.Count(r.stderr, "\n") != 1 {
					t.Errorf("tsugiki run: %v, printed:\n%s", r.err, r.stderr)
				}
			}
			n.suffer(t, other)
			n.kill()
			n.start()
			n.goesOn(t, n.obey(t, v.flags(w)...))
			_ = other.Process.Signal(unix.SIGTERM)
			_ = other.Wait() // it ends
		})
	}
}

// A keeper that does not answer is killed, and another does its work. What a call got that waited
// for it is the container's own affair.
func TestStoppedKeeperIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startBesieged(t, w)
	o := n.obey(t, variants[2].flags(w)...)
	o.want(sourceAddr4, "dial first tcp %s", remoteObserver())
	pid := o.helper(t, "tsugiki-keeper")
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(pid, unix.SIGCONT)   // if it is there
	testkit.Eventually(t, func() error { // some sockets were made in advance
		o.do("dial x tcp %s", remoteObserver())
		if comm(pid) == "tsugiki-keeper" {
			return errors.New("the keeper that does not answer is there")
		}
		return nil
	})
	for range 8 {
		o.want(sourceAddr4, "dial x tcp %s", remoteObserver())
	}
	o.release()
}

// stopGate stops the gate's process. One that has been idle for a while may be about to exit instead,
// and has another in its place when there is a call again.
func (o *obedient) stopGate(t *testing.T) (pid int) {
	t.Helper()
	testkit.Eventually(t, func() (err error) {
		o.want(sourceAddr4, "dial awake tcp %s", remoteObserver())
		pid, err = o.stopGateNow(t)
		return err
	})
	return pid
}

// stopGateNow stops the gate's process, or says that it has exited.
func (o *obedient) stopGateNow(t *testing.T) (pid int, err error) {
	t.Helper()
	if pid, err = o.findHelper(t, "tsugiki-gate"); err != nil {
		return 0, err
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return 0, err
	}
	for s := state(pid); s != 'T'; s = state(pid) {
		if s == 0 {
			return 0, errors.New("the gate has exited")
		}
	}
	return pid, nil
}

// A gate that was stopped follows what has been ordered meanwhile: the last of each kind.
func TestStoppedGateFollows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	for _, v := range variants {
		own := map[bool]string{false: "ENETUNREACH", true: hostAddr4}[v.bridge]
		t.Run(v.name, func(t *testing.T) {
			n := startBesieged(t, w)
			o := n.obey(t, v.flags(w)...)
			for _, network := range []string{"tcp", "udp"} {
				o.want(sourceAddr4, "dial a %s %s", network, remoteObserver())
				pid := o.stopGate(t)
				defer unix.Kill(pid, unix.SIGCONT) // if it is there
				for range 3 {
					o.graft("del out")
					o.graft("add out type ipv4 addr " + sourceAddr4 + " port dynamic")
				}
				o.graft("del out")
				if err := unix.Kill(pid, unix.SIGCONT); err != nil {
					t.Fatal(err)
				}
				testkit.Eventually(t, func() error { // it hears of that while it answers calls
					if got := o.do("dial b %s %s", network, remoteObserver()); got != own {
						return fmt.Errorf("a connection to what was deleted: %s, want %s", got, own)
					}
					return nil
				})
				o.graft("add out type ipv4 addr " + sourceAddr4 + " port dynamic")
				o.want(sourceAddr4, "dial c %s %s", network, remoteObserver())
			}
			o.release()
		})
	}
}

// An agent that starts takes over a container whose gate is stopped once that goes on.
func TestStoppedGateIsTakenOverLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startBesieged(t, w)
	o := n.obey(t, variants[2].flags(w)...)
	n.kill()
	// Stopped after that: with the agent the gate's process group is orphaned, and the kernel
	// continues what is stopped in such a group. While a call waits the gate does not exit.
	o.begin("dial b tcp %s", remoteObserver())
	var pid int
	testkit.Eventually(t, func() (err error) {
		pid, err = o.stopGateNow(t)
		return err
	})
	defer unix.Kill(pid, unix.SIGCONT) // if it is there
	n.start()
	n.log.await(t, "a gate does not answer")
	if ps := n.ps(); !strings.Contains(ps, o.name) {
		t.Errorf("tsugiki ps does not list the container:\n%s", ps)
	}
	r := try(t, n.graft("--name", o.name, "-e", "0.0.0.0/0=0.0.0.0", "--", "true"))
	if exitStatus(r.err) != 1 || !strings.Contains(r.stderr, "a container "+o.name+" runs") {
		t.Errorf("its name was given to another: %v, printed:\n%s", r.err, r.stderr)
	}
	o.graft("add other type ipv4 addr 0.0.0.0 port dynamic")
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := o.answer(); got != sourceAddr4 {
		t.Errorf("the call that has waited for the agent: %s, want %s", got, sourceAddr4)
	}
	o.graft("del out")
	o.want(hostAddr4, "dial c tcp %s", remoteObserver())
	o.release()
}

// An agent whose files somebody takes has them again, or ends with a line that says why, so that
// another is started. Its containers go on.
func TestAgentIsStarved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	for name, limit := range map[string]unix.Rlimit{"soft": {Cur: 3, Max: 4096}, "hard": {Cur: 3, Max: 3}} {
		t.Run(name, func(t *testing.T) {
			n := startBesieged(t, w)
			o := n.obey(t, variants[2].flags(w)...)
			o.want(sourceAddr4, "dial a tcp %s", remoteObserver())
			if err := unix.Prlimit(n.cmd.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
				t.Fatal(err)
			}
			r := try(t, n.command(t, "ps"))
			n.log.await(t, "lowered the limit of open files")
			if name == "soft" && r.err != nil {
				t.Errorf("tsugiki ps: %v, printed:\n%s", r.err, r.stderr)
			}
			if r.err != nil { // without CAP_SYS_RESOURCE
				if err := n.cmd.Wait(); exitStatus(err) != 1 {
					t.Errorf("the agent ended with %v", err)
				}
				n.start()
			}
			o.want(sourceAddr4, "dial b tcp %s", remoteObserver())
			n.goesOn(t, o)
			o.release()
		})
	}
}

// Who loses his program because its gate was killed is told so, with an agent as without one.
func TestKilledGateIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	for name, start := range map[string]func(t *testing.T) *obedient{
		"agent": func(t *testing.T) *obedient { return startBesieged(t, w).obey(t, variants[0].flags(w)...) },
		"following": func(t *testing.T) *obedient {
			return startBesieged(t, w).obey(t, append(variants[0].flags(w), "-v")...)
		},
		"alone": func(t *testing.T) *obedient { return w.obey(t, t.TempDir(), variants[0].flags(w)...) },
	} {
		t.Run(name, func(t *testing.T) {
			o := start(t)
			testkit.Eventually(t, func() error { // a gate may exit as idle
				o.want(sourceAddr4, "dial a tcp %s", remoteObserver())
				pid, err := o.findHelper(t, "tsugiki-gate")
				if err == nil {
					err = unix.Kill(pid, unix.SIGKILL)
				}
				return err
			})
			if err := o.Wait(); exitStatus(err) != -1 {
				t.Errorf("it ended with %v, want what ended its program", err)
			}
			if n := strings.Count(o.stderr.String(), "the gate was killed"); n != 1 {
				t.Errorf("it says %d times that its gate was killed:\n%s", n, o.stderr)
			}
		})
	}
}
