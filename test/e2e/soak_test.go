package e2e

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

var soak = flag.Int("soak", testkit.Times(1000, 100000), "connections of TestSoak")

// soakRun is how many connections one run of the load generator makes, at most: each run
// has the one patience.
const soakRun = 1000

// usage is what a process holds.
type usage struct {
	name  string
	files int
	rss   int // in KiB
}

// usages are those of tsugiki itself, of its helpers, of nginx and its workers.
func usages(t *testing.T, supervisor int, cgroup string) map[int]usage {
	t.Helper()
	pids := []int{supervisor}
	for _, group := range []string{"programs", "keepers"} {
		pids = append(pids, members(filepath.Join(cgroup, group))...)
	}
	all := map[int]usage{}
	for _, pid := range pids {
		open, err := testkit.ProcessUsage(pid)
		if err != nil {
			t.Fatal(err)
		}
		all[pid] = usage{comm(pid), open.FDs, rss(t, pid)}
	}
	return all
}

// spareFiles are those that a process that leaks none may have at one time and not
// at another: a connection on its way out, and 48 sockets that were made in
// advance.
const spareFiles = 2 + 48

// growth is by how much, in KiB, a process may grow that leaks nothing: one in
// Go as its garbage collector pleases.
func growth(name string) int {
	if name == "tsugiki" {
		return 8 << 10
	}
	return 512
}

// makeRequests has the remote make that many short connections to the grafted nginx.
func makeRequests(t *testing.T, w *world, requests int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	out := succeed(t, commandIn(ctx, t, w.srv, "ab", "-q", "-n", strconv.Itoa(requests), "-c", "8", fmt.Sprintf("http://%s:8080/", hostAddr4)))
	if !regexp.MustCompile(`Complete requests: +`+strconv.Itoa(requests)+`\n`).MatchString(out) ||
		!strings.Contains(out, "Failed requests:        0\n") || strings.Contains(out, "Non-2xx") {
		t.Fatalf("ab printed:\n%s", out)
	}
}

// TestSoak makes many short connections through a grafted nginx, each of which
// makes it connect to the remote. None may fail, and nothing may grow after the
// first fifth. "make soak" has it make 100000.
func TestSoak(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "nginx")
	testkit.Program(t, "ab")
	eachMode(t, both, func(t *testing.T, w *world, v variant) {
		for _, ns := range []*testkit.Namespace{w.h, w.srv} {
			// A port whose last connection has just ended can be used again.
			for name, value := range map[string]string{"net.ipv4.tcp_tw_reuse": "1", "net.ipv4.ip_local_port_range": "10000 65000"} {
				if err := ns.SetSysctl(name, value); err != nil {
					t.Fatal(err)
				}
			}
		}
		ctx := t.Context()
		upstream := newNginx(t, "listen 9090;", "access_log off;")
		up := upstream.line()
		serve(t, commandIn(ctx, t, w.srv, up[0], up[1:]...), port{w.srv, "tcp", 9090})
		n := newNginx(t, "listen 8080;", "access_log off;", "location / { proxy_pass http://"+remoteAddr4+":9090; }")
		name := uniqueName("soak")
		args := slices.Concat([]string{"run", "--run-dir", runDir, "--name", name}, v.flags(w), ingress(8080), []string{"--"}, n.line())
		nginx := serve(t, commandIn(ctx, t, w.h, tsugiki, args...), port{w.h, "tcp", 8080})
		cgroup := filepath.Join(ownCgroup(t), "tsugiki-"+name)
		var before map[int]usage
		fifth := *soak / 5
		for made := 0; made < *soak; {
			requests := min(soakRun, fifth)
			makeRequests(t, w, requests)
			if made += requests; before == nil && made >= fifth { // all there is has been used
				before = usages(t, nginx.Process.Pid, cgroup)
			}
		}
		after := usages(t, nginx.Process.Pid, cgroup)
		if len(before) < 6 { // tsugiki, gate, keeper, nginx and two workers
			t.Errorf("found only %v", before)
		}
		for pid, was := range before {
			is := after[pid]
			t.Logf("%-16s %3d files, then %3d; %6d KiB, then %6d", was.name, was.files, is.files, was.rss, is.rss)
			if is.name != was.name {
				t.Errorf("%s ended", was.name)
			}
			if is.files > was.files+spareFiles {
				t.Errorf("%s had %d files after a fifth of the connections, and %d at the end", was.name, was.files, is.files)
			}
			if is.rss > was.rss+growth(was.name) {
				t.Errorf("%s had %d KiB after a fifth of the connections, and %d at the end", was.name, was.rss, is.rss)
			}
		}
		n.checkErrors(t)
		upstream.checkErrors(t)
	})
}
