package e2e

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A listener of both families, and rules that have an address of the host's for each.

const familiesPort = 3000

// familyRules lead to both addresses, at different ports.
func familyRules(addr4, addr6 string) []string {
	return []string{
		"-i", fmt.Sprintf("0.0.0.0:%d=%s:%d", familiesPort, addr4, familiesPort),
		"-i", fmt.Sprintf("[::]:%d=[%s]:%d", familiesPort, addr6, familiesPort+1),
	}
}

func familyURLs(addr4, addr6 string) []string {
	return []string{fmt.Sprintf("http://%s:%d/", addr4, familiesPort), fmt.Sprintf("http://[%s]:%d/", addr6, familiesPort+1)}
}

// reached asks a server from a namespace at both addresses. It answers with those of the peer.
func reached(t *testing.T, ns *testkit.Namespace, urls []string, peers ...string) {
	t.Helper()
	for i, url := range urls {
		if got := strings.TrimSpace(curl(t, ns, "-g", url)); got != peers[i] {
			t.Errorf("%s: its peer is %s, want %s", url, got, peers[i])
		}
	}
}

// refusedAt checks that nobody listens at both addresses.
func refusedAt(t *testing.T, ns *testkit.Namespace, addrs ...string) {
	t.Helper()
	for _, addr := range addrs {
		err := ns.Do(func() error {
			conn, err := net.DialTimeout("tcp", addr, testkit.Patience)
			if err == nil {
				conn.Close()
			}
			return err
		})
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("connect to %s: %v, want %v", addr, err, unix.ECONNREFUSED)
		}
	}
}

func TestServerOfBothFamilies(t *testing.T) {
	t.Parallel()
	urls := familyURLs(hostAddr4, hostAddr6)
	second := fmt.Sprintf("[%s]:%d", hostAddr6, familiesPort+1)
	each(t, serving, func(t *testing.T, w *world, v variant) {
		own4, own6 := "127.0.0.1", "::1"
		if v.bridge { // its loopback is in its own namespace, the server is not
			own4, own6 = hostAddr4, hostAddr6
		}
		o := w.obey(t, t.TempDir(), append(v.flags(w), familyRules(hostAddr4, hostAddr6)...)...)
		// Another container has the same ports of other addresses.
		p := w.obey(t, t.TempDir(), append(v.flags(w), familyRules(sourceAddr4, sourceAddr6)...)...)
		for range 2 { // the second time beside connections of the first, in TIME_WAIT
			o.want("listens", "listen l [::]:%d", familiesPort)
			p.want("listens", "listen l [::]:%d", familiesPort)
			reached(t, w.srv, urls, remoteAddr4, remoteAddr6)
			reached(t, w.srv, familyURLs(sourceAddr4, sourceAddr6), remoteAddr4, remoteAddr6)
			reached(t, w.h, urls, hostAddr4, hostAddr6)
			o.want(own4, "dial a tcp 127.0.0.1:%d", familiesPort)
			o.want(own6, "dial b tcp [::1]:%d", familiesPort)
			if err := w.h.Do(func() error {
				l, err := net.Listen("tcp", second)
				if err == nil {
					l.Close()
				}
				return err
			}); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("a process of the host listens at %s: %v", second, err)
			}
			o.want("closed", "close a")
			o.want("closed", "close b")
			o.want("closed", "close l")
			refusedAt(t, w.srv, fmt.Sprintf("%s:%d", hostAddr4, familiesPort), second)
			reached(t, w.srv, familyURLs(sourceAddr4, sourceAddr6), remoteAddr4, remoteAddr6)
			p.want("closed", "close l")
		}
		o.release()
		p.release()
	})
}

// One rule can be for both.
func TestRuleOfBothFamilies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.obey(t, t.TempDir(), "--netns", "new", "--endpoint", "web type ip addr "+hostAddr4+" addr6 "+hostAddr6+" port 3000", "-i", ":80=web")
	o.want("listens", "listen l [::]:80")
	reached(t, w.srv, []string{"http://" + hostAddr4 + ":3000/", "http://[" + hostAddr6 + "]:3000/"}, remoteAddr4, remoteAddr6)
	o.release()
}

// A port of the host's that somebody has is not the container's, for either family.
func TestServerOfBothFamiliesIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.obey(t, t.TempDir(), append(variants[0].flags(w), familyRules(hostAddr4, hostAddr6)...)...)
	for _, taken := range []string{fmt.Sprintf("%s:%d", hostAddr4, familiesPort), fmt.Sprintf("[%s]:%d", hostAddr6, familiesPort+1)} {
		var l net.Listener
		listenAgain(t, w.h, func() (err error) {
			l, err = net.Listen("tcp", taken)
			return err
		})
		o.want("EADDRINUSE", "listen l [::]:%d", familiesPort)
		l.Close()
	}
	testkit.Eventually(t, func() error { // children that are being started have copies of the listeners
		if got := o.do("listen l [::]:%d", familiesPort); got != "listens" {
			return errors.New(got)
		}
		return nil
	})
	reached(t, w.srv, familyURLs(hostAddr4, hostAddr6), remoteAddr4, remoteAddr6)
	o.release()
}

// Programs of node that listen on all addresses see who asks, in the form that sockets of both
// families have.
func TestNodeServesBothFamilies(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "node")
	each(t, serving[:2], func(t *testing.T, w *world, v variant) {
		for _, what := range []string{"serve", "cluster"} {
			t.Run(what, func(t *testing.T) {
				flags := append(familyRules(hostAddr4, hostAddr6), "--", "node", "testdata/runtimes/net.js", what, fmt.Sprint(familiesPort))
				s := serve(t, v.run(t, w, flags...), port{w.h, "tcp", familiesPort})
				reached(t, w.srv, familyURLs(hostAddr4, hostAddr6), "::ffff:"+remoteAddr4, remoteAddr6)
				s.stop(t)
			})
		}
	})
}

// The next agent serves them too, also a server that was bound under the one before, and listens under the next.
func TestServerOfBothFamiliesOutlivesAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, v := range []variant{variants[0], variants[2]} {
		for _, listens := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, listens %v", v.name, listens), func(t *testing.T) {
				n := startBesieged(t, w)
				o := n.obey(t, append(v.flags(w), familyRules(hostAddr4, hostAddr6)...)...)
				if listens {
					o.want("listens", "listen l [::]:%d", familiesPort)
				} else {
					o.want("bound", "bind l %d", familiesPort)
				}
				n.kill()
				n.start()
				if !listens {
					o.want("listens", "listen l")
				}
				reached(t, w.srv, familyURLs(hostAddr4, hostAddr6), remoteAddr4, remoteAddr6)
				o.release()
			})
		}
	}
}
