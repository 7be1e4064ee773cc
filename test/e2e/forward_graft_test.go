package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// A pod has a RuntimeClass that grafts it and a network of tsugiki-cni. Its sockets to where a rule
// leads are the host's, and pass no link of the pod. All others go by the pod's link, directly to
// another pod.
func TestGraftedPodForwards(t *testing.T) {
	t.Parallel()
	for _, m := range podsModes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, engineCase{engine: "cri", pods: &m})
			n.run(t, n.container("grafted", remoteAddr4+"/32", servedPort))
			n.run(t, engines.Container{Name: "plain", Args: engines.Nginx})
			grafted, plain := n.podIP(t, "grafted"), n.podIP(t, "plain")

			before := n.sent(t, grafted)
			n.checkServed(t, "grafted", servedPort)
			url := fmt.Sprintf("http://%s:%d/", remoteAddr4, observerPort)
			o := observe(t, n.srv)
			if body := n.exec(t, "grafted", "wget", "-q", "-O", "-", url); body != sourceAddr4+"\n" {
				t.Errorf("the remote sees %q, want %s", body, sourceAddr4)
			}
			checkAllFrom(t, o.take(), sourceAddr4)
			after := n.sent(t, grafted)
			delete(before, "group") // the kernel looks for IPv6 routers
			delete(after, "group")
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("grafted sockets: what the pod has sent:\n%s", diff)
			}

			for client, server := range map[string]string{"grafted": "plain", "plain": "grafted"} {
				const own = 8090 // no rule leads from here, or to here
				n.exec(t, server, "httpd", "-p", fmt.Sprint(own), "-h", "/srv")
				from, to := grafted, plain
				if client == "plain" {
					from, to = plain, grafted
				}
				before := n.sent(t, from)["direct"]
				testkit.Eventually(t, func() error {
					out, err := n.Exec(client, "wget", "-q", "-O", "-", fmt.Sprintf("http://%s:%d/", to, own))
					if err == nil && out != "hello\n" {
						err = fmt.Errorf("%s at %s: %q", client, server, out)
					}
					return err
				})
				if after := n.sent(t, from)["direct"]; after <= before {
					t.Errorf("%s has sent %d packets directly, then %d", client, before, after)
				}
			}
			n.checkForwardMetrics(t)
			n.checkPacketTrace(t, plain, grafted)
			n.remove(t, "grafted")
			if err := n.Remove("plain"); err != nil {
				t.Error(err)
			}
			if pods := forwardPods(t, n.rig); len(pods) > 0 {
				t.Errorf("pods are left: %+v", pods)
			}
		})
	}
}

// checkForwardMetrics compares the agent's metrics with what the command shows. Packets may come
// between the two.
func (n *node) checkForwardMetrics(t *testing.T) {
	t.Helper()
	pods := forwardPods(t, n.rig)
	metrics := string(n.asked().get(t, "/metrics"))
	for _, line := range []string{`tsugiki_forward_pods{state="on"} 2`, `tsugiki_forward_pods{state="fault"} 0`, `tsugiki_forward_pairs{verdict="slow"} 0`} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("the metrics do not have %s", line)
		}
	}
	for _, p := range pods {
		series := fmt.Sprintf(`tsugiki_forward_packets_total{interface="eth0",network="pods",outcome="direct",pod=%q,reason="direct"} `, p.Container)
		_, behind, _ := strings.Cut(metrics, series)
		var count uint64
		if _, err := fmt.Sscan(behind, &count); err != nil || count < p.Packets["direct"] {
			t.Errorf("%s%d, %v; the command shows %d", series, count, err, p.Packets["direct"])
		}
	}
}

// checkPacketTrace has tsugiki trace print a packet that went directly, and ends it.
func (n *node) checkPacketTrace(t *testing.T, from, to string) {
	t.Helper()
	var pod string
	for _, p := range forwardPods(t, n.rig) {
		if strings.Join(p.Addresses, " ") == from {
			pod = p.Container
		}
	}
	trace := n.rig.Command(timeout(t), tsugiki, "trace", "--packets", "-o", "json", pod)
	out, err := trace.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := trace.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error {
		for _, p := range forwardPods(t, n.rig) {
			if p.Container == pod && p.Traced {
				return nil
			}
		}
		return fmt.Errorf("%s is not traced yet", pod)
	})
	n.exec(t, "plain", "wget", "-q", "-O", "-", fmt.Sprintf("http://%s:8090/", to))
	lines, found := json.NewDecoder(out), false
	for !found {
		var l struct{ Msg, Reason, Protocol, From, To string }
		if err := lines.Decode(&l); err != nil {
			t.Fatalf("no such packet was told of: %v", err)
		}
		found = l.Msg == "direct" && l.Reason == "direct" && l.Protocol == "tcp" && l.To == to+":8090" && strings.HasPrefix(l.From, from+":")
	}
	if err := trace.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	if err := trace.Wait(); err != nil {
		t.Errorf("the trace ended: %v", err)
	}
	for _, p := range forwardPods(t, n.rig) {
		if p.Traced {
			t.Errorf("%s is still traced", p.Container)
		}
	}
}

// podIP is that of a pod's link.
func (n *node) podIP(t *testing.T, name string) string {
	t.Helper()
	ip, err := n.IP(name)
	if err != nil || !strings.HasPrefix(ip, podsSubnet) {
		t.Fatalf("the address of %s is %q, %v", name, ip, err)
	}
	return ip
}

// sent counts what a pod has sent by its link, by reason.
func (n *node) sent(t *testing.T, ip string) map[string]uint64 {
	t.Helper()
	for _, p := range forwardPods(t, n.rig) {
		if strings.Join(p.Addresses, " ") == ip {
			return p.Packets
		}
	}
	t.Fatalf("no pod has the address %s", ip)
	return nil
}
