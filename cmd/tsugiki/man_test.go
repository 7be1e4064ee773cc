package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/config"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// man(1) shows the page of each command, and of the configuration, without a warning.
func TestManualPages(t *testing.T) {
	testkit.Program(t, "man")
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	dir := t.TempDir()
	if out, err := exec.Command("tsugiki", "manpages", dir).CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v %s", err, out)
	}
	pages := map[string][]string{ // each with texts that it has
		"tsugiki.1":                 {"COMMANDS", "tsugiki-doctor(1)"},
		"tsugiki-run.1":             {"OPTIONS", "-i ADDR:PORT[-PORT]=HOST[:PORT]", "-e, --egress VALUE", "NAME type unix path PATH", `-e 0.0.0.0/0=out -- curl`},
		"tsugiki-graft.1":           {"tsugiki graft add NAME type TYPE ... [for CONTAINER]", "tsugiki-graft-show(1)"},
		"tsugiki-graft-add.1":       {"NAME type unix path PATH", "--run-dir VALUE"},
		"tsugiki-graft-del.1":       {"tsugiki graft del e-1 for web-1"},
		"tsugiki-graft-explain.1":   {"CONTAINER [connect|bind ADDR:PORT[/tcp|/udp]]", "-o, --output VALUE"},
		"tsugiki-graft-set.1":       {"set [--endpoint DEFINITION]... [-i RULE]... [-e RULE]... [for CONTAINER]", "--run-dir VALUE"},
		"tsugiki-graft-show.1":      {"-j, --json"},
		"tsugiki-agent.1":           {"containers and their connections continue", "--config VALUE"},
		"tsugiki-inspect.1":         {"-o, --output VALUE", "CONTAINER"},
		"tsugiki-ps.1":              {"-j, --json", "--agent VALUE"},
		"tsugiki-denials.1":         {"-o, --output VALUE", "tsugiki graft explain web-1"},
		"tsugiki-doctor.1":          {"-j, --json", "exit status"},
		"tsugiki-completion.1":      {"bash|zsh|fish"},
		"tsugiki-trace.1":           {"tsugiki trace [-o json] [--packets] CONTAINER", "time, level, msg, container and pid", "--agent VALUE"},
		"tsugiki-charge.1":          {"tsugiki-charge-attach(1)", "the path of its cgroup"},
		"tsugiki-charge-add.1":      {"CONTAINER|CGROUP DURATION", "1500us", "--source VALUE", "--agent VALUE"},
		"tsugiki-charge-attach.1":   {"--shared --helper PID", "--by VALUE", "--to VALUE"},
		"tsugiki-charge-detach.1":   {"tsugiki charge show prints the ids"},
		"tsugiki-charge-show.1":     {"THROTTLED", "--over VALUE", "-j, --json"},
		"tsugiki-density.1":         {"tsugiki-density-run(1)"},
		"tsugiki-density-run.1":     {"--figure VALUE", "--max VALUE", "--resume"},
		"tsugiki-density-compare.1": {"compare", "-j, --json", "-o, --output"},
		"tsugiki-density-report.1":  {"report DIR", "results.json"},
		"tsugiki-forward.1":         {"tsugiki-forward-show(1)", "tsugiki-cni"},
		"tsugiki-forward-show.1":    {"show [-o FORMAT]", "verdict"},
		"tsugiki-forward-on.1":      {"on POD"},
		"tsugiki-forward-off.1":     {"off POD"},
		"tsugiki-forward-pair.1":    {"pair POD POD VERDICT", "default"},
		"tsugiki-guest.1":           {"tsugiki-guest-attach(1)", "tsugiki-guest-run(1)"},
		"tsugiki-guest-attach.1":    {"--vsock PATH|hybrid:PATH|CID --name VM", "--cid VALUE", "--translate", "vhost-user-vsock"},
		"tsugiki-guest-run.1":       {"COMMAND [ARG...]", "guest attach"},
		"tsugiki-translate.1":       {"tsugiki-translate-show(1)", "virtual IPv4 addresses"},
		"tsugiki-translate-show.1":  {"show [-o FORMAT] [CONTAINER]", "resolvers"},
		"tsugiki-translate-flush.1": {"flush CONTAINER"},
		"tsugiki-offload.1":         {"tsugiki offload", "/etc/tsugiki/offload.toml", "SIGHUP", "--check-config"},
		"tsugiki-dpu-agent.1":       {"--listen ENDPOINT", "TLS needs --credentials", "--emulate-vfs"},
		"tsugiki-setup.1":           {"containerd|crio|docker|podman", "--undo", "-y, --yes"},
		"tsugiki-top.1":             {"tsugiki top [-n N] [-d SECONDS] | -o json|yaml", "q or Ctrl-C", "-d, --delay VALUE"},
		"tsugiki-runtime.1":         {"ENVIRONMENT", "TSUGIKI_OCI_RUNTIME", "FILES", "tsugiki.dev/ingress rules for"},
		"tsugiki-log.1":             {"OPTIONS", "max-size=NUMBER[k|m|g] begin", "tsugiki(1)"},
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
		c := exec.CommandContext(ctx, "man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", filepath.Join(dir, "man"+section, file))
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

// configKeys returns the keys of the configuration as its page shows them.
func configKeys() []string {
	var list []string
	for _, k := range config.Keys() {
		list = append(list, k.Name+" = "+k.Kind)
	}
	return list
}
