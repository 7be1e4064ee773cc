package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/config"
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
		{"graft |", "add del show"},
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
	for flag, says := range map[string]string{"-i": "ADDR:PORT[-PORT]=ENDPOINT", "-e": "PREFIX[:PORT[-PORT]]=ENDPOINT"} {
		if out := succeed(t, command(t, top.Host, tsugiki, "__complete", "run", flag, "")); !strings.Contains(out, says) {
			t.Errorf("help for %s: %q", flag, out)
		}
	}
	if got := completions(t, top.Host, ""); !slices.Equal(got, []string{"agent", "charge", "completion", "density", "doctor", "graft", "help", "ps", "run", "top", "trace"}) {
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

func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	for shell, begins := range map[string]string{"bash": "# bash completion", "zsh": "#compdef tsugiki", "fish": "# fish completion"} {
		if out := succeed(t, command(t, top.Host, tsugiki, "completion", shell)); !strings.HasPrefix(out, begins) {
			t.Errorf("%s: the script begins with %.60q", shell, out)
		}
	}
	out := succeed(t, command(t, top.Host, "bash", "-c", `source <("$1" completion bash) && complete -p tsugiki`, "bash", tsugiki))
	if !strings.Contains(out, "tsugiki") {
		t.Errorf("in bash: %q", out)
	}
	got := try(t, command(t, top.Host, tsugiki, "completion", "tcsh"))
	if exitStatus(got.err) != 2 || !strings.Contains(got.stderr, "bash|zsh|fish") {
		t.Errorf("tcsh: %v %q", got.err, got.stderr)
	}
}

// Each command has a page that man(1) has nothing to say against, and so has the
// configuration.
func TestManualPages(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "man")
	dir := t.TempDir()
	if out, err := exec.Command(tsugiki, "manpages", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	pages := map[string][]string{ // and what they have to say
		"tsugiki.1":                 {"COMMANDS", "tsugiki-doctor(1)"},
		"tsugiki-run.1":             {"OPTIONS", "-i ADDR:PORT[-PORT]=HOST[:PORT]", "-e, --egress VALUE", "NAME type unix path PATH", `-e 0.0.0.0/0=out -- curl`},
		"tsugiki-graft.1":           {"tsugiki graft add NAME type TYPE ... [for CONTAINER]", "tsugiki-graft-show(1)"},
		"tsugiki-graft-add.1":       {"NAME type unix path PATH", "--run-dir VALUE"},
		"tsugiki-graft-del.1":       {"tsugiki graft del out for web-1"},
		"tsugiki-graft-show.1":      {"-j, --json"},
		"tsugiki-agent.1":           {"Nothing ends with it", "--config VALUE"},
		"tsugiki-ps.1":              {"-j, --json", "--agent VALUE"},
		"tsugiki-doctor.1":          {"-j, --json", "exit status"},
		"tsugiki-completion.1":      {"bash|zsh|fish"},
		"tsugiki-trace.1":           {"tsugiki trace [-j] CONTAINER", "time, level, msg, container and pid", "--agent VALUE"},
		"tsugiki-charge.1":          {"tsugiki-charge-attach(1)", "the path of its cgroup"},
		"tsugiki-charge-add.1":      {"CONTAINER|CGROUP DURATION", "1500us", "--source VALUE", "--agent VALUE"},
		"tsugiki-charge-attach.1":   {"--shared --helper PID", "--by VALUE", "--to VALUE"},
		"tsugiki-charge-detach.1":   {"charge show has the ids"},
		"tsugiki-charge-show.1":     {"THROTTLED", "--over VALUE", "-j, --json"},
		"tsugiki-density.1":         {"tsugiki-density-run(1)"},
		"tsugiki-density-run.1":     {"--figure VALUE", "--max VALUE", "--resume"},
		"tsugiki-density-compare.1": {"compare", "-j, --json", "-o, --output"},
		"tsugiki-density-report.1":  {"report DIR", "results.json"},
		"tsugiki-top.1":             {"tsugiki top [-n N] [-d SECONDS] | -j", "q or Ctrl-C", "-d, --delay VALUE"},
		"tsugiki-agent.toml.5": append(configKeys(),
			"[log]", "[[container]]", "/etc/tsugiki/agent.toml", "The default is /run/tsugiki.", `match = "web-*"`, "tsugiki-run(1)"),
	}
	files, err := filepath.Glob(filepath.Join(dir, "man[15]", "*.[15]"))
	if err != nil || len(files) != len(pages) {
		t.Errorf("pages: %v %v", files, err)
	}
	for file, says := range pages {
		section := strings.TrimPrefix(filepath.Ext(file), ".")
		name := strings.TrimSuffix(file, "."+section)
		var text, warnings bytes.Buffer
		c := exec.CommandContext(timeout(t), "man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", filepath.Join(dir, "man"+section, file))
		c.Env = append(os.Environ(), "MANWIDTH=200", "LC_ALL=C.UTF-8", "MANROFFOPT=-c")
		c.Stdout, c.Stderr = &text, &warnings
		if err := c.Run(); err != nil || warnings.Len() > 0 {
			t.Errorf("%s: %v\n%s", name, err, &warnings)
		}
		plain := regexp.MustCompile(`.\x08|\x1b\[[0-9;]*m`).ReplaceAllString(text.String(), "")
		plain = strings.Join(strings.Fields(plain), " ")
		for _, s := range append(says, "NAME", "SYNOPSIS", "DESCRIPTION", name+" - ") {
			if !strings.Contains(plain, s) {
				t.Errorf("%s does not say %q:\n%s", name, s, plain)
			}
		}
	}
}

// configKeys are the keys of the configuration, as its page has them.
func configKeys() []string {
	var list []string
	for _, k := range config.Keys() {
		list = append(list, k.Name+" = "+k.Kind)
	}
	return list
}
