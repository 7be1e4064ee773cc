package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
