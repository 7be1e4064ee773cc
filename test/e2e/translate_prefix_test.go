package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A container may have another pool: names, peers of TCP and UDP, and hosts that ask its UDP server are
// of that, and the default pool is nobody's.
func TestTranslatedPrefix(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	observe(t, w.srv)
	echo := echoStreams(t, w.srv)
	d := startDaemon(t, w.h)
	const published, first = 8000, "10.18.0.1"
	at := netip.AddrPortFrom(netip.MustParseAddr(sourceAddr6), published)
	o := w.translatedBy(t, d, "--pool", "10.18.0.0/15", "-i", fmt.Sprintf("0.0.0.0:%d=%s", published, at))
	o.want("done", "p = datagrams(); p.bind(('0.0.0.0', %d)); threading.Thread(target=serve, args=(p,), daemon=True).start()", published)
	for range 2 {
		o.want(first, "name(%q)", serverName)
		o.want("done", "s = stream((%q, %d))", first, echo)
		o.want("?", "ask(s)")
		o.want(fmt.Sprintf("('%s', %d)", first, echo), "s.getpeername()")
		o.want("done", "u = datagrams(); u.connect((%q, %d))", first, observerPort)
		o.want(sourceAddr6, "ask(u)")
		o.want(fmt.Sprintf("('%s', %d)", first, observerPort), "u.getpeername()")
		o.want("EPERM", "failed(ask, datagrams(), (%q, %d))", virtualAddr4, observerPort) // no rule covers it
		o.want("ENETUNREACH", "failed(ask, datagrams(), ('127.18.0.1', %d))", observerPort)
		for ns, prefix := range map[*testkit.Namespace]string{w.srv: first, w.h: "10.19."} {
			if peer := askUDP(t, dialUDP(t, ns, at), "?"); !strings.HasPrefix(peer, prefix) {
				t.Errorf("the server has seen %s, want one of %s", peer, prefix)
			}
		}
		d.kill()
		d.start()
	}
	o.release()
	for _, pool := range []string{"198.18.0.0/16", "10.0.0.0/15", "::/15"} {
		r := try(t, w.translated(t, "--pool", pool, "--", "true"))
		if exitStatus(r.err) != 2 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, fmt.Sprintf("bad pool %q", pool)) {
			t.Errorf("%s: %v: %s", pool, r.err, r.stderr)
		}
	}
}
