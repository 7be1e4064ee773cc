package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Servers of containers that have a network of their own, and rules with +own: they are reached at
// the host's address and at the container's.

const ownPort = 8085

var (
	ownAddr = netip.AddrPortFrom(testkit.ContainerAddr4(0), ownPort).String()
	ownURL  = "http://" + ownAddr + "/"
	// publishedURL is where the rules lead.
	publishedURL = fmt.Sprintf("http://%s:%d/", hostAddr4, ownPort)
)

func ownRule(word string) []string {
	return []string{"-i", fmt.Sprintf("0.0.0.0:%d%s=%s:%d", ownPort, word, hostAddr4, ownPort)}
}

// bridged are the variants whose containers have a network of their own.
var bridged = slices.DeleteFunc(slices.Clone(serving), func(v variant) bool { return !v.bridge })

// reachedOwn asks a server at both addresses, the container's from the host, as a kubelet does.
func (w *world) reachedOwn(t *testing.T, form string) {
	t.Helper()
	reached(t, w.srv, []string{publishedURL}, form+remoteAddr4)
	reached(t, w.h, []string{ownURL}, form+testkit.BridgeAddr4.String())
}

// TestServerAtOwnAddress has a static program that waits by epoll. Without +own, nobody listens at the
// container's address.
func TestServerAtOwnAddress(t *testing.T) {
	t.Parallel()
	each(t, bridged, func(t *testing.T, w *world, v variant) {
		for _, at := range []string{"0.0.0.0", "[::]"} {
			o := w.obey(t, t.TempDir(), append(v.flags(w), ownRule("")...)...)
			o.want("listens", "listen l %s:%d", at, ownPort)
			reached(t, w.srv, []string{publishedURL}, remoteAddr4)
			refusedAt(t, w.h, ownAddr)
			o.release()

			o = w.obey(t, t.TempDir(), append(v.flags(w), ownRule("+own")...)...)
			for range 2 { // the second time beside connections of the first, in TIME_WAIT
				o.want("listens", "listen l %s:%d", at, ownPort)
				w.reachedOwn(t, "")
				o.want("closed", "close l")
				ownEnds(t, w)
				refusedAt(t, w.srv, strings.TrimSuffix(strings.TrimPrefix(publishedURL, "http://"), "/"))
			}
			o.release()
		}
	})
}

// ownEnds checks that connections to the container's address are reset, and then refused, once the
// program listens no more.
func ownEnds(t *testing.T, w *world) {
	t.Helper()
	testkit.Eventually(t, func() error {
		return w.h.Do(func() error {
			conn, err := net.DialTimeout("tcp", ownAddr, testkit.Patience)
			if errors.Is(err, unix.ECONNREFUSED) {
				return nil
			}
			if err != nil {
				return err
			}
			defer conn.Close()
			if err := conn.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
				return err
			}
			if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("%d bytes of a server that is closed, %v", n, err)
			}
			return errors.New("connected")
		})
	})
}

// Connections that come to both addresses at once are told apart.
func TestManyAtOwnAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.obey(t, t.TempDir(), append(bridged[0].flags(w), ownRule("+own")...)...)
	o.want("listens", "listen l [::]:%d", ownPort)
	var all sync.WaitGroup
	for _, from := range []struct {
		ns        *testkit.Namespace
		url, peer string
	}{{w.srv, publishedURL, remoteAddr4}, {w.h, publishedURL, hostAddr4}, {w.h, ownURL, testkit.BridgeAddr4.String()}} {
		for range 4 {
			all.Go(func() {
				urls := slices.Repeat([]string{from.url}, 50)
				out := succeed(t, command(t, from.ns, "curl", append([]string{"-sS", "-H", "Connection: close"}, urls...)...))
				if want := strings.Repeat(from.peer+"\n", len(urls)); strings.ReplaceAll(out, "\n\n", "\n") != want {
					t.Errorf("from %s: %q, want %q", from.url, out, want)
				}
			})
		}
	}
	all.Wait()
	o.release()
}

// Processes that wait in accept(2) on one listener, in each mode, share what comes to both addresses.
func TestPreforkAtOwnAddress(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "python3")
	w := newWorld(t)
	for _, m := range modes {
		v := variant{name: m.name, bridge: true, egress: everything, mode: m}
		t.Run(m.name, func(t *testing.T) {
			flags := append(ownRule("+own"), "--", "python3", "testdata/prefork/prefork.py", fmt.Sprint(ownPort), "3")
			s := serve(t, v.run(t, w, flags...), port{w.h, "tcp", ownPort})
			for range 5 {
				for _, from := range []struct {
					ns       *testkit.Namespace
					to, peer string
				}{
					{w.srv, fmt.Sprintf("%s:%d", hostAddr4, ownPort), remoteAddr4},
					{w.h, ownAddr, testkit.BridgeAddr4.String()},
				} {
					if got := told(t, from.ns, from.to); got != from.peer+" "+from.peer+"\n" {
						t.Errorf("%s says %q, want %s", from.to, got, from.peer)
					}
				}
			}
			s.stop(t)
		})
	}
}

// told is what a server says to who connects.
func told(t *testing.T, ns *testkit.Namespace, to string) string {
	t.Helper()
	var text []byte
	if err := ns.Do(func() error {
		conn, err := net.DialTimeout("tcp", to, testkit.Patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
			return err
		}
		text, err = io.ReadAll(conn)
		return err
	}); err != nil {
		t.Error(err)
	}
	return string(text)
}

// While no agent runs, the server's accept(2) waits. The next agent serves both addresses again.
func TestOwnAddressOutlivesAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := startBesieged(t, w)
	for name, args := range map[string][]string{
		"epoll":  {static(t, "serve"), fmt.Sprintf("tcp://0.0.0.0:%d", ownPort)},
		"accept": {"busybox", "httpd", "-f", "-p", fmt.Sprint(ownPort), "-h", "testdata/prefork"},
	} {
		t.Run(name, func(t *testing.T) {
			flags := slices.Concat(bridged[0].flags(w), ownRule("+own"), []string{"--"}, args)
			s := serve(t, n.graft(flags...), port{w.h, "tcp", ownPort})
			urls := []string{publishedURL + "prefork.py", ownURL + "prefork.py"}
			curl(t, w.srv, urls[0])
			curl(t, w.h, urls[1])
			for _, end := range []func(){n.kill, n.stop} {
				end()
				refusedAt(t, w.h, ownAddr)
				waiting := start(t, command(t, w.srv, "curl", "-sS", "-f", urls[0]))
				n.start()
				curl(t, w.h, urls[1])
				if <-waiting.ended; !waiting.ProcessState.Success() {
					t.Errorf("who came while the agent was away: %v\n%s", waiting.ProcessState, waiting.output)
				}
			}
			s.stop(t)
		})
	}
}

// A program that accepts nothing has the agent keep a few connections, and nothing of others'.
func TestAttackOwnAddress(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "python3")
	w := newWorld(t)
	observe(t, w.srv)
	n := startBesieged(t, w)
	before := n.warm(t)
	flags := slices.Concat(bridged[0].flags(w), ownRule("+own"), []string{"--", "python3", "testdata/prefork/prefork.py", fmt.Sprint(ownPort), "0"})
	s := serve(t, n.graft(flags...), port{w.h, "tcp", ownPort})
	o := n.obey(t, append(bridged[0].flags(w), "-i", fmt.Sprintf("0.0.0.0:%d+own=%s", ownPort+1, hostAddr4))...)
	o.want("listens", "listen l 0.0.0.0:%d", ownPort+1)
	other := []string{fmt.Sprintf("http://%s:%d/", testkit.ContainerAddr4(0), ownPort+1)}
	reached(t, w.h, other, testkit.BridgeAddr4.String())
	files := n.files(t)
	const callers, kept, slack = 200, 32, 10 // kept is markersMax of package graft
	var conns []net.Conn
	if err := w.h.Do(func() error {
		for range callers {
			conn, err := net.DialTimeout("tcp", ownAddr, testkit.Patience)
			if err != nil {
				return err
			}
			conns = append(conns, conn)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	reached(t, w.h, other, testkit.BridgeAddr4.String())
	if now := n.files(t); now > files+2*kept+slack {
		t.Errorf("the agent has %d files open for %d callers, and had %d", now, callers, files)
	}
	o.release()
	s.stop(t)
	for _, conn := range conns {
		conn.Close()
	}
	n.unharmed(t, before)
}
