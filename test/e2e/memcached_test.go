package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const memcachedPort = 11211

// TestMemcached serves and asks over TCP and UDP.
func TestMemcached(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "memcached")
	number := fmt.Sprint(memcachedPort)
	line := []string{"memcached", "-u", "nobody", "-l", "0.0.0.0", "-p", number, "-U", number}
	client := func(addr string) []string { return []string{python(t), "testdata/memcache.py", addr, number} }
	ports := func(ns *testkit.Namespace) []port {
		return []port{{ns, "tcp", memcachedPort}, {ns, "udp", memcachedPort}}
	}
	eachMode(t, both, func(t *testing.T, w *world, v variant) {
		t.Run("server", func(t *testing.T) {
			serve(t, v.program(t, w, []int{memcachedPort}, line...), ports(w.h)...)
			args := client(hostAddr4)
			if out := succeed(t, command(t, w.srv, args[0], args[1:]...)); out != remoteAddr4+"\n" {
				t.Errorf("the server has the clients %q", out)
			}
		})
		t.Run("client", func(t *testing.T) {
			serve(t, command(t, w.srv, line[0], line[1:]...), ports(w.srv)...)
			if out := v.client(t, w, client(remoteAddr4)...); out != sourceAddr4+"\n" {
				t.Errorf("the server has the clients %q", out)
			}
		})
		t.Run("inside", func(t *testing.T) {
			script := slices.Concat([]string{"sh", "-c", `"$@" & until ` + python(t) + ` testdata/memcache.py 127.0.0.1 ` + number + ` 2>/dev/null; do sleep 0.05; done`, "sh"}, line)
			if out := v.client(t, w, script...); out != "127.0.0.1\n" {
				t.Errorf("the server has the clients %q", out)
			}
		})
	})
}
