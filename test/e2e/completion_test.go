package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// completions are what a shell offers for the last of the words: of what tsugiki
// says, that which begins so.
func completions(t *testing.T, host *testkit.Namespace, words ...string) []string {
	t.Helper()
	out := succeed(t, command(t, host, tsugiki, append([]string{"__complete"}, words...)...))
	var list []string
	for l := range strings.Lines(out) {
		if word, _, _ := strings.Cut(strings.TrimSpace(l), "\t"); !strings.HasPrefix(word, ":") && strings.HasPrefix(word, words[len(words)-1]) {
			list = append(list, word)
		}
	}
	slices.Sort(list)
	return list
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	dir, name := t.TempDir(), uniqueName("complete")
	running := hold(t, command(t, top.Host, tsugiki, "run", "--run-dir", dir, "--name", name,
		"--endpoint", outEndpoint, "--endpoint", sixEndpoint, "--", "sh", "-c", "echo ready; cat"), "ready")
	defer running.release()
	for _, tt := range []struct{ words, want string }{
		{"run --mode |", "auto preload seccomp"},
		{"run --mode pre|", "preload"},
		{"run --netns ne|", "new"},
		{"graft |", "add del explain set show"},
		{"graft del --run-dir DIR |", "out six"},
		{"graft del --run-dir DIR o|", "out"},
		{"graft del --run-dir DIR out |", "for"},
		{"graft del --run-dir DIR out for |", name},
		{"graft del --run-dir DIR out for " + name + " |", ""},
		{"graft show --run-dir DIR for |", name},
		{"graft add --run-dir DIR web |", "addr for nameable netns path port type"},
		{"graft add --run-dir DIR web type |", "ipv4 ipv6 unix"},
		{"graft add --run-dir DIR web type ipv4 |", "addr for nameable netns path port"},
		{"graft add --run-dir DIR web type ipv4 port d|", "dynamic"},
		{"graft add --run-dir DIR web type ipv4 for |", name},
		{"completion |", "bash fish zsh"},
	} {
		words := strings.Fields(strings.TrimSuffix(tt.words, "|"))
		if strings.HasSuffix(tt.words, " |") {
			words = append(words, "")
		}
		for i, w := range words {
			words[i] = strings.Replace(w, "DIR", dir, 1)
		}
		if got := strings.Join(completions(t, top.Host, words...), " "); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.words, got, tt.want)
		}
	}
	for flag, says := range map[string]string{"-i": "ADDR:PORT[-PORT][/tcp|/udp][+own][+from:PREFIX]=ENDPOINT", "-e": "PREFIX[:PORT[-PORT]]=ENDPOINT"} {
		if out := succeed(t, command(t, top.Host, tsugiki, "__complete", "run", flag, "")); !strings.Contains(out, says) {
			t.Errorf("help for %s: %q", flag, out)
		}
	}
	if got := completions(t, top.Host, ""); !slices.Equal(got, []string{"agent", "charge", "completion", "denials", "density", "doctor", "dpu-agent", "forward", "graft", "guest", "help", "inspect", "offload", "ps", "run", "setup", "top", "trace", "translate"}) {
		t.Errorf("commands: %v", got)
	}
}

func TestCompletionOfContainers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := startAgent(t, w)
	o := n.obey(t, variants[0].flags(w)...)
	for words, want := range map[string][]string{o.name[:5]: {o.name}, "": {o.name}, "x": nil} {
		if got := completions(t, w.h, "trace", "--agent", n.socket(), words); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", words, got, want)
		}
	}
	if got := completions(t, w.h, "trace", "--agent", n.socket(), o.name, ""); len(got) > 0 {
		t.Errorf("after a container: %q", got)
	}
	if got := completions(t, w.h, "trace", "--agent", "/nonexistent/agent.sock", ""); len(got) > 0 {
		t.Errorf("without an agent: %q", got)
	}
	o.release()
}
