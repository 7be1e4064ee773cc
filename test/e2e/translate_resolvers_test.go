package e2e

import (
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// A translated container that runs asks other resolvers once it is given them, also with the next agent.
func TestTranslatedResolversChange(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	var mu sync.Mutex
	asked := make(map[string]bool) // guarded by mu; the proxy may ask for a name again
	hostileUpstream(t, w.srv, 60, func(name string) []netip.Addr {
		if !strings.HasSuffix(name, ".moved.example.") {
			return nil // the network has no NAT64
		}
		mu.Lock()
		defer mu.Unlock()
		asked[name] = true
		return []netip.Addr{netip.MustParseAddr("2001:db8:77::1")}
	})
	d := startDaemon(t, w.h)
	o := w.translatedBy(t, d)
	o.want(virtualAddr4, "name(%q)", serverName)
	c := o.ruledBy()
	rules, err := c.Rules()
	if err != nil {
		t.Fatal(err)
	}
	rules.Translate.DNS = []string{addrPort(remoteAddr6, hostilePort)}
	if changed, err := c.SetRules(rules); err != nil || len(changed.Withdrawn)+len(changed.Moved) > 0 {
		t.Fatalf("%+v, %v", changed, err)
	}
	o.want("198.18.0.2", "name('a.moved.example')")
	d.kill()
	d.start()
	o.want("198.18.0.2", "name('b.moved.example')")
	mu.Lock()
	if len(asked) != 2 {
		t.Errorf("the other resolver was asked for %v, want 2 names", asked)
	}
	mu.Unlock()
	if shown, err := c.Rules(); err != nil || len(shown.Translate.DNS) != 1 || shown.Translate.DNS[0] != rules.Translate.DNS[0] {
		t.Errorf("rules after the restart: %+v, %v", shown, err)
	}
	o.release()
}
