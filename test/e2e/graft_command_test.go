package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The command tsugiki graft: what it shows, refuses and changes.

func TestGraftShow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	o := w.obey(t, dir,
		"--endpoint", "out type ipv4 addr 0.0.0.0 port dynamic", "--endpoint", "in type ipv6 addr :: port 8000-8009",
		"--endpoint", "un type unix path /run/some.sock netns "+w.srv.Path(),
		"-i", "[::]:8000-8003=in", "-e", "10.0.0.0/8=out", "-e", "192.0.2.1:80=out")
	want := "in type ipv6 addr :: port 8000-8009\nout type ipv4 addr 0.0.0.0 port dynamic\nun type unix path /run/some.sock netns " + w.srv.Path() + "\n"
	// Without a name, it is the only one.
	if got := succeed(t, graftCommand(t, w, dir, "show")); got != want {
		t.Errorf("show printed\n%s, want\n%s", got, want)
	}
	var got []map[string]any
	if err := json.Unmarshal([]byte(o.graft("show -j")), &got); err != nil {
		t.Fatal(err)
	}
	object := func(name, typ, addr, port, path, netns string, rules ...any) map[string]any {
		return map[string]any{
			"container": o.name, "name": name, "type": typ, "addr": addr, "port": port, "path": path, "netns": netns, "nameable": false,
			"rules": append([]any{}, rules...),
		}
	}
	if diff := cmp.Diff([]map[string]any{
		object("in", "ipv6", "::", "8000-8009", "", "", "-i [::]:8000-8003=in"),
		object("out", "ipv4", "0.0.0.0", "dynamic", "", "", "-e 10.0.0.0/8=out", "-e 192.0.2.1/32:80=out"),
		object("un", "unix", "", "", "/run/some.sock", w.srv.Path()),
	}, got); diff != "" {
		t.Errorf("show -j, - is wanted:\n%s", diff)
	}
	// What is shown can be added.
	for l := range strings.Lines(want) {
		name, _, _ := strings.Cut(l, " ")
		o.graft("del " + name)
		o.graft("add " + strings.TrimSpace(l))
	}
	if got := o.graft("show"); got != want {
		t.Errorf("after all was deleted and added, show printed\n%s, want\n%s", got, want)
	}
	for _, name := range []string{"in", "out", "un"} {
		o.graft("del " + name)
	}
	if text, array := o.graft("show"), o.graft("show -j"); text != "" || array != "[]\n" {
		t.Errorf("without endpoints, show printed %q, and as JSON %q", text, array)
	}
	o.release()
}

func TestGraftRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	one := w.obey(t, dir, with("-e", "0.0.0.0/0=out", "-i", "0.0.0.0:80=web", "-i", "0.0.0.0:8000-8009=few", "-i", "127.0.0.1:9=un")...)
	serve(t, command(t, w.h, static(t, "serve"), "tcp4://:4444"), port{w.h, "tcp4", 4444})
	check := func(args string, status int, says ...string) {
		t.Helper()
		t.Run(args, func(t *testing.T) {
			before := one.graft("show -j")
			refusal{status: status, says: says}.judge(t, try(t, graftCommand(t, w, dir, args)), "")
			if after := one.graft("show -j"); after != before {
				t.Errorf("the endpoints have changed to %s", after)
			}
		})
	}
	check("", 2, "add, del, set, show or explain")
	check("list", 2, "list", "add, del, set, show and explain")
	check("add", 2, "NAME type")
	check("add x", 2, "type")
	check("add x type ipv4 addr 0.0.0.0 port dynamic for", 2, "for.*container")
	check("add x type ipv4 addr 0.0.0.0 port dynamic for ../x", 2, "name")
	check("add x type ipv4 addr 0.0.0.0 port dynamic for a b", 2, "for")
	check("add .. type ipv4 addr 0.0.0.0 port dynamic", 2, "name")
	check("del", 2, "NAME")
	check("del a b", 2, "NAME")
	check("set", 2, "-i and -e", "loses all others")
	check("set out", 2, "set")
	check("set -e 0.0.0.0/0=nope", 1, "nope")
	check("set -i 0.0.0.0:80=203.0.113.99", 1, "no address 203.0.113.99")
	check("show it", 2, "show")
	check("show --bogus", 2, "bogus")
	check("show for nobody", 1, "nobody", "there is "+one.name)
	check("del nope", 1, "nope", "there is few, out")
	check("add out type ipv4 addr 0.0.0.0 port dynamic", 1, "there is an endpoint of that name", "delete")
	check("add x type ipv4 addr 203.0.113.99 port dynamic", 1, "no address 203.0.113.99")
	check("add x type ipv4 addr 0.0.0.0 port dynamic netns /no/such", 1, "/no/such")

	for _, name := range []string{"out", "web", "few", "un"} {
		one.graft("del " + name)
	}
	check("add out type ipv6 addr :: port dynamic", 1, "-e.*0.0.0.0/0=out", "ipv6")
	check("add out type ipv4 addr 0.0.0.0 port 1-2", 1, "dynamic")
	check("add web type ipv4 addr 0.0.0.0 port 4444", 1, "TCP port 4444.*taken")
	check("add few type ipv4 addr 0.0.0.0 port 8000-8005", 1, "8000-8005")
	check("add few type unix path /x", 1, "10 ports")

	two := w.obey(t, dir, with()...)
	check("show", 1, one.name, two.name, "for")
	check("del out", 1, one.name, two.name, "for")
	two.graft("del out")
	if text := one.graft("show"); text != sixEndpoint+"\n" {
		t.Errorf("of the first container is left %s", text)
	}
	two.release()
	one.release()
	refusal{status: 1, says: []string{"no container is running", "run-dir"}}.judge(t, try(t, graftCommand(t, w, dir, "show")), "")
	refusal{status: 1, says: []string{one.name, "not known", "agent is not running"}}.judge(t, try(t, graftCommand(t, w, dir, "show for "+one.name)), "")
	refusal{status: 1, says: []string{"no container is running"}}.judge(t, try(t, graftCommand(t, w, dir+"/none", "show")), "")
}

// Of many who add one name, one does; and who adds others is not in the way.
func TestGraftConcurrently(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	o := w.obey(t, t.TempDir(), variants[1].flags(w)...)
	o.graft("del out")
	const each = 8
	results := make([]error, 2*each)
	var group sync.WaitGroup
	for i := range results {
		name := "out"
		if i >= each {
			name = fmt.Sprintf("other%d", i)
		}
		c := graftCommand(t, w, o.runDir, "add "+name+" type ipv4 addr "+sourceAddr4+" port dynamic")
		group.Add(1)
		go func() {
			defer group.Done()
			results[i] = c.Run()
		}()
	}
	// Meanwhile, a client has the one address or the other.
	for i := range 20 {
		if got := o.do("dial %d tcp %s", i, remoteObserver()); got != sourceAddr4 && got != hostAddr4 {
			t.Errorf("dial: %s", got)
		}
	}
	group.Wait()
	added := func(results []error) int {
		return len(slices.DeleteFunc(slices.Clone(results), func(err error) bool { return err != nil }))
	}
	if n := added(results[:each]); n != 1 {
		t.Errorf("one name was added %d times: %v", n, results[:each])
	}
	if n := added(results[each:]); n != each {
		t.Errorf("of %d other names %d were added: %v", each, n, results[each:])
	}
	if n := strings.Count(o.graft("show"), "\n"); n != each+2 {
		t.Errorf("there are %d endpoints, want %d", n, each+2)
	}
	o.want(sourceAddr4, "dial last tcp %s", remoteObserver())
	o.release()
}

// A killed owner is not running, and its socket goes at the next start.
func TestGraftAfterKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// Longer than what fits into a struct sockaddr_un.
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 120))
	o := w.obey(t, dir, variants[0].flags(w)...)
	o.graft("show")
	socket := filepath.Join(dir, o.name+".sock")
	info, err := os.Stat(socket)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	_ = o.Process.Kill()
	_ = o.Wait()
	if !exists(socket) {
		t.Fatal("the socket went with its owner; this test is about one that does not")
	}
	refusal{status: 1, says: []string{"no container is running"}}.judge(t, try(t, graftCommand(t, w, dir, "show")), "")
	succeed(t, command(t, w.h, tsugiki, "run", "--run-dir", dir, "--", "true"))
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("after the next start: %v %v", left, err)
	}
}

// A program of a container may be root and have the host's files, and still cannot
// change what it may reach.
func TestGraftFromWithin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	for _, prefix := range [][]string{nil, {"unshare", "--user", "--map-root-user"}} {
		program := append(prefix, tsugiki, "graft", "--run-dir", dir, "del", "out")
		args := append([]string{"run", "--run-dir", dir}, variants[0].flags(w)...)
		r := try(t, command(t, w.h, tsugiki, append(append(args, "--"), program...)...))
		if exitStatus(r.err) != 1 || !strings.Contains(r.stderr, "may not change endpoints; it needs CAP_NET_ADMIN") {
			t.Errorf("%v: %v\n%s", program, r.err, r.stderr)
		}
	}
}
