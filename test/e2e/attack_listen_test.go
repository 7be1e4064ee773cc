package e2e

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

var ingressAddr = net.JoinHostPort(hostAddr4, strconv.Itoa(ingressPort))

// dialIngress connects from the remote to where the container may listen.
func (a *arena) dialIngress() {
	a.t.Helper()
	err := a.Remote.Do(func() error {
		c, err := net.DialTimeout("tcp", ingressAddr, testkit.Patience)
		if err == nil {
			a.t.Cleanup(func() { c.Close() })
		}
		return err
	})
	// The attack resets the connection as soon as it has it.
	if err != nil && !errors.Is(err, unix.ECONNRESET) {
		a.t.Fatal(err)
	}
}

// An accepted socket has its listener's rule but not its port: it cannot be made
// a listener of its own.
func TestAttackListenOnAcceptedSocket(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	h := hold(t, a.attack("static", withIngress(), "accepted", fmt.Sprintf("0.0.0.0:%d", ingressPort)), "ready")
	a.dialIngress()
	h.await("hold")
	a.noListeners()
	h.release()
}

// Nor can a listener that was disconnected get another port than its own.
func TestAttackListenAgain(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	rules := append(withIngress(),
		"--endpoint", "any type ipv4 addr 0.0.0.0 port dynamic", "-i", "0.0.0.0:0=any")
	h := hold(t, a.attack("static", rules, "relisten", fmt.Sprintf("0.0.0.0:%d", ingressPort)), "hold")
	a.noListeners()
	h.release()
}

// Two calls of bind(2) at once on one socket do not lend each other their rule.
func TestAttackListenWhileBindRaces(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	c := a.attack("static", withIngress(), "three", fmt.Sprintf("0.0.0.0:%d", ingressPort), "6")
	h := hold(t, c, "hold")
	a.noListeners()
	h.release()
}

// A listener that comes about by putting a TCP socket in the place of a unix one
// is out of reach from its first moment, also for somebody who tries to connect
// all the time and is told the port. A handshake may succeed, but then nothing is
// said. The program goes on until it has made as many such listeners as it is told.
func TestAttackListenBySwap(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	accomplice := hold(t, command(t, a.Remote, attackProgram(t, "static"), "flood", secretAt(hostAddr4)), "ready")
	h := hold(t, a.attack("static", minimal(), "swapped", strconv.Itoa(testkit.Times(100, 1000))), "port")
	for h.said[len(h.said)-1] != "hold: ok" {
		if port, ok := strings.CutPrefix(h.said[len(h.said)-1], "port: "); ok {
			fmt.Fprintln(accomplice.stdin, port)
		}
		h.await("")
	}
	fmt.Fprintln(accomplice.stdin, 0)
	// What was said comes before the sentinels: the accomplice's own, and those of the host.
	accomplice.await("hold")
	a.settle()
	a.noListeners()
	for _, said := range [][]string{h.release(), accomplice.release()} {
		if said = said[len(said)-2:]; said[1] != "heard: 0" {
			t.Errorf("by listeners that no rule allows, something was said: %q", said)
		}
		t.Log(said)
	}
}

// The ABIs that are not the supervisor's main business listen in the
// container's own namespace, or not at all.
func TestAttackListenByOtherABIs(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for _, at := range []string{"0.0.0.0:9092", hostAddr4 + ":9092", "127.0.0.1:9092"} {
		h := hold(t, a.attack("static", withIngress(), "abi-listen", at), "hold")
		a.noListeners()
		if a.taken("tcp", 9092) {
			t.Errorf("bind %s: the container has the host's port 9092", at)
		}
		h.release()
	}
}

// Without a rule for a port the container does not get it on the host, whatever
// address it names, and whatever it does afterwards.
func TestAttackBindTakesNoPorts(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	var at []string
	for i, addr := range []string{
		"0.0.0.0", "127.0.0.1", hostAddr4, linkLocal4, "203.0.113.7", "[::]", "[::1]", "[" + hostAddr6 + "]",
		"[::ffff:0.0.0.0]", "[::ffff:127.0.0.1]",
	} {
		at = append(at, fmt.Sprintf("%s:%d", addr, 9100+i), fmt.Sprintf("%s:%d", addr, 600+i))
	}
	check := func(t *testing.T) {
		t.Helper()
		for i := range 10 {
			for _, port := range []int{9100 + i, 600 + i} {
				for _, network := range []string{"tcp", "udp"} {
					if a.taken(network, uint16(port)) {
						t.Errorf("the container has the host's %s port %d", network, port)
					}
				}
			}
		}
		a.noListeners()
	}
	t.Run("bind", func(t *testing.T) {
		h := hold(t, a.attack("static", withIngress(), append([]string{"bind"}, at...)...), "hold")
		check(t)
		h.release()
	})
	// Bound at home, then moved to the host by where they connect to.
	t.Run("bind and connect", func(t *testing.T) {
		own := slices.DeleteFunc(slices.Clone(at), func(s string) bool { return strings.HasPrefix(s, "[") })
		h := hold(t, a.attack("static", withIngress(), append([]string{"borrow", allowed4.String()}, own...)...), "hold")
		check(t)
		a.noDatagrams(9100)
		h.release()
	})
}

// noDatagrams fails the test if a UDP socket of the host takes what the remote
// sends to a port: the kernel answers with an error where there is none.
func (a *arena) noDatagrams(port int) {
	a.t.Helper()
	err := a.Remote.Do(func() error {
		c, err := net.Dial("udp4", net.JoinHostPort(hostAddr4, strconv.Itoa(port)))
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(testkit.Patience))
		if _, err := c.Write([]byte("unasked")); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 1))
		return err
	})
	if err == nil || !strings.Contains(err.Error(), unix.ECONNREFUSED.Error()) {
		a.t.Errorf("datagrams to the host's port %d are taken by somebody: %v", port, err)
	}
}
