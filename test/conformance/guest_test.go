package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/uml"
)

// guestJobs is how many cases of a guest run at once.
const guestJobs = 12

// TestGuest runs the cases in a virtual machine, whose TCP sockets are the host's and whose datagrams leave
// by the host. The reference is a bare host. guestLeftOut says which are left out, and why.
func TestGuest(t *testing.T) {
	if !testkit.Soaking() {
		t.Skip("make soak runs it")
	}
	probes := buildProbes(t)
	cases := slices.DeleteFunc(listCases(t, probes["static"]), func(c probeCase) bool { return leftOut(c.name) != "" })
	want := bareRun(t, probes["static"], cases)(t)
	got := runInGuest(t, probes["static"], cases)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			compare(t, guestDifferences[c.name], want[c.name], got[c.name])
		})
	}
}

// leftOut says why a case makes no sense in a guest; "" if it does.
func leftOut(name string) string {
	for prefix, why := range guestLeftOut {
		if strings.HasPrefix(name, prefix) {
			return why
		}
	}
	return ""
}

// runInGuest boots a guest that runs all cases, and prints what they have printed.
func runInGuest(t *testing.T, probe string, cases []probeCase) map[string]result {
	t.Helper()
	top := testkit.Build(t, testkit.Options{})
	startPeer(t, top)
	var todo strings.Builder
	for _, c := range cases {
		fmt.Fprintln(&todo, c.name, c.port)
	}
	args := append([]string{"/out", fmt.Sprint(guestJobs), "warm=0", fmt.Sprint("patience=", testkit.Patience.Milliseconds())}, peerArgs()...)
	script := fmt.Sprintf(`
mkdir /out
tsugiki guest run -- /bin/probe suite %s < /todo
for f in /out/*; do echo "@file ${f#/out/}"; cat $f; done
echo @end
`, strings.Join(args, " "))
	flags := slices.Concat([]string{
		"--endpoint", "out type ipv4 addr 0.0.0.0 port dynamic",
		"--endpoint", "out6 type ipv6 addr :: port dynamic",
		"--endpoint", "in type ipv4 addr 0.0.0.0 port dynamic",
		"--endpoint", "in6 type ipv6 addr :: port dynamic",
	}, ingress(true), everything)
	g := uml.Boot(t, top.Host, uml.Options{
		Script: script, Flags: flags, IPv6: true, Files: map[string]string{"bin/probe": probe}, Texts: map[string]string{"todo": todo.String()},
	})
	statuses, files, file := map[string]string{}, map[string][]line{}, ""
	for {
		text, open := g.Next()
		if !open {
			t.Fatal("the guest has ended before its cases")
		}
		if text == "@end" {
			break
		}
		if name, is := strings.CutPrefix(text, "@file "); is {
			file = name
		} else if file != "" {
			files[file] = append(files[file], line(text))
		} else if name, status, is := strings.Cut(text, " "); is {
			statuses[name] = status
		}
	}
	results := map[string]result{}
	for _, c := range cases {
		r := result{Status: statuses[c.name], Output: files[c.name+".out"]}
		if r.Status == "" {
			r.Status = "no end in sight"
		}
		for _, l := range files[c.name+".err"] {
			r.stderr += string(l) + "\n"
		}
		results[c.name] = r
	}
	return results
}
