package e2e

import (
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Nothing that an attack has sent is on its way any more, when what was sent after it by
// the same road has arrived. A sentinel is a datagram or a connection of the host's own
// that a trap knows by its payload.
//
// What leaves the host by its link, or by its loopback, waits at most twice: for the
// address of a neighbour to be resolved, behind what else waits for that, and in the
// queue of received packets of the CPU that has sent it, or that has got the answer about
// the neighbour. So sentinels go to each of the remote's addresses, from each CPU, and
// when they have arrived all of this goes to each trap once more. A connection is
// accepted after those whose handshake was under way on the same CPU, of which each step is
// queued there.
const sentinel = "sentinel "

// road is where sentinels are sent.
type road struct{ network, to string }

// roads are those to each address that leads to a trap, and to each trap.
func (a *arena) roads() (datagrams, connections []road) {
	for _, to := range []string{
		allowed4.String(), allowed6.String(),
		fmt.Sprintf("%s:%d", remoteAddr4, secretPort), fmt.Sprintf("%s:%d", hostAddr4, secretPort),
		fmt.Sprintf("%s:%d", otherRemote4, allowedPort), fmt.Sprintf("[%s]:%d", otherRemote6, allowedPort),
		fmt.Sprintf("%s:%d", otherLinkLocal, secretPort), fmt.Sprintf("[%s%%%d]:%d", a.remote, a.index, secretPort),
	} {
		datagrams = append(datagrams, road{"udp", to})
	}
	for _, to := range []string{
		allowed4.String(), fmt.Sprintf("%s:%d", remoteAddr4, secretPort), fmt.Sprintf("%s:%d", hostAddr4, secretPort),
	} {
		connections = append(connections, road{"tcp", to})
	}
	return datagrams, connections
}

// settle waits until all that was sent by now has arrived, if it does, and was noted.
func (a *arena) settle() {
	a.t.Helper()
	datagrams, connections := a.roads()
	for _, roads := range [][]road{datagrams, datagrams, connections} {
		a.follow(roads)
	}
	testkit.Eventually(a.t, func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.reading > 0 {
			return fmt.Errorf("%d connections are still read from", a.reading)
		}
		return nil
	})
}

// follow sends a sentinel by each road from each CPU, and waits until all have come. A
// datagram that a trap had no room for is sent again.
func (a *arena) follow(roads []road) {
	a.t.Helper()
	cpus := a.cpus()
	a.rounds++
	testkit.Eventually(a.t, func() error {
		var missing []string
		for _, cpu := range cpus {
			for _, r := range roads {
				text := fmt.Sprintf("%s%d from CPU %d to %s %s", sentinel, a.rounds, cpu, r.network, r.to)
				if a.came(text) {
					continue
				}
				missing = append(missing, text)
				if r.network == "tcp" && a.sent[text] {
					continue
				}
				a.sent[text] = true
				if err := a.sendFrom(cpu, r, text); err != nil {
					a.t.Fatalf("send %s: %v", text, err)
				}
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("did not arrive: %s", strings.Join(missing, ", "))
		}
		return nil
	})
}

func (a *arena) came(text string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sentinels[text]
}

// cpus are those that the test, and so the attack, may run on.
func (a *arena) cpus() []int {
	a.t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		a.t.Fatal(err)
	}
	var cpus []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// sendFrom sends a text from a CPU of the host, on which the thread stays that ends with
// Do.
func (a *arena) sendFrom(cpu int, r road, text string) error {
	return a.Host.Do(func() error {
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
		c, err := net.Dial(r.network, r.to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(text))
		return err
	})
}
