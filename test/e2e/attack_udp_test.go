package e2e

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// ask sends a datagram from a namespace and returns the answer, if any.
func (a *arena) ask(ns *testkit.Namespace, to, payload string, wait time.Duration) string {
	a.t.Helper()
	var answer string
	err := ns.Do(func() error {
		c, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte(payload)); err != nil {
			return err
		}
		buf := make([]byte, 64)
		_ = c.SetDeadline(time.Now().Add(wait))
		n, _ := c.Read(buf)
		answer = string(buf[:n])
		return nil
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return answer
}

// A UDP server may answer whoever has sent it something, and send to nobody
// else. A process of the host that asks it is answered too, also one that asks
// over the loopback, which it can if the endpoint is the wildcard.
func TestAttackUDPServer(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	ip4, _ := a.forbidden()
	for _, addr := range []string{hostAddr4, "0.0.0.0"} {
		t.Run(addr, func(t *testing.T) {
			rules := []string{
				"--endpoint", fmt.Sprintf("in type ipv4 addr %s port %d", addr, ingressPort),
				"-i", fmt.Sprintf("0.0.0.0:%d=in", ingressPort),
			}
			args := append([]string{"udp-server", fmt.Sprintf("0.0.0.0:%d", ingressPort)}, ip4...)
			h := hold(t, a.attack("dynamic", rules, args...), "ready")
			at := net.JoinHostPort(hostAddr4, strconv.Itoa(ingressPort))
			asked := []*testkit.Namespace{a.Remote, a.Host}
			to := []string{at, at}
			if addr == "0.0.0.0" {
				asked, to = append(asked, a.Host), append(to, net.JoinHostPort("127.0.0.1", strconv.Itoa(ingressPort)))
			}
			for i, ns := range asked {
				if got := a.ask(ns, to[i], "question", testkit.Patience); got != "answer" {
					t.Errorf("%s asks %s and gets %q", ns.Name(), to[i], got)
				}
			}
			a.ask(a.Remote, at, "end", time.Millisecond)
			// The loopback is the container's own.
			own := func(s string) bool { return strings.HasPrefix(s, "127.") || strings.HasPrefix(s, "0.") }
			for step, results := range steps(strings.Join(h.release(), "\n")) {
				if slices.Contains(ip4, step) && !own(step) && !slices.Equal(results, []string{"EPERM"}) {
					t.Errorf("sendto %s: %v, want EPERM", step, results)
				}
			}
			a.unharmed()
		})
	}
}

// A UDP socket that is connected to a server of the container's own reaches nobody else when the
// server has gone and a service of the host has its port. That of a process of the host does.
func TestAttackOutlivedServer(t *testing.T) {
	t.Parallel()
	published := fmt.Sprintf("0.0.0.0:%d", ingressPort)
	for _, addr := range []string{"0.0.0.0", hostAddr4, "private", "bare"} {
		t.Run(addr, func(t *testing.T) {
			a := newArena(t)
			rules := []string{"--endpoint", fmt.Sprintf("in type ipv4 addr %s port %d", addr, ingressPort), "-i", published + "=in"}
			c, ports := a.bare("udp-outlive", published, fmt.Sprintf("127.0.0.1:%d", ingressPort)), []uint16{ingressPort}
			switch addr {
			case "bare":
			case "private":
				c = a.attack("static", hostFirst(), "udp-outlive", "0.0.0.0:9104", "127.0.0.1:9104")
			default:
				c = a.attack("static", rules, "udp-outlive", published, fmt.Sprintf("127.0.0.1:%d", ingressPort))
			}
			h := hold(t, c, "heard")
			if addr == "private" {
				ports = portNumbers(t, a.hostPorts())
			}
			if len(ports) == 0 {
				t.Fatal("the server has no port of the host")
			}
			fmt.Fprintln(h.stdin)
			h.await("closed")
			var roads []road
			for _, port := range ports {
				a.trapUDP(a.Host, "", port)
				roads = append(roads, road{"udp", fmt.Sprintf("127.0.0.1:%d", port)})
			}
			fmt.Fprintln(h.stdin)
			h.await("send")
			a.follow(roads)
			_, arrived := a.arrived()
			if reached := len(arrived) > 0; reached != (addr == "bare") {
				t.Errorf("a service of the host has heard %q; the program says\n%s", arrived, strings.Join(h.said, "\n"))
			}
			h.release()
		})
	}
}

// A client's socket takes no datagrams at a port that it has chosen.
func TestAttackUDPClientChoosesNoPort(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	out := succeed(t, a.attack("static", minimal(), "udp-range", "40123", allowed4.String()))
	if !strings.Contains(out, "connect: ok") {
		t.Errorf("the client does not work:\n%s", out)
	}
	if strings.Contains(out, "got the port: yes") {
		t.Error("a socket without a rule has the host's UDP port that it asked for by IP_LOCAL_PORT_RANGE")
	}
}

// What no rule names is the container's own, its loopback to begin with.
func TestAttackOwnLoopback(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for _, at := range []string{"127.0.0.1:9094", "[::1]:9094"} {
		out := steps(succeed(t, a.attack("static", minimal(), "udp-own", at)))
		if len(out) != 2 {
			t.Errorf("over %s: %v, want what sendto and receive say", at, out)
		}
		for step, results := range out {
			if !slices.Equal(results, []string{"ok"}) {
				t.Errorf("%s over %s: %v", step, at, results)
			}
		}
	}
}
