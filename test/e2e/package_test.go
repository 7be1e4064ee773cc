package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// What is in the Debian package works where it is unpacked, and dpkg removes all of
// it.
func TestDebianPackage(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"dpkg-deb", "dpkg", "objdump"} {
		testkit.Program(t, name)
	}
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	root, err := testkit.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	deb := debOf(t, top.Host, t.TempDir(), "0.1")

	info := succeed(t, command(t, top.Host, "dpkg-deb", "-I", deb))
	for _, re := range []string{`(?m)^ Package: tsugiki$`, `(?m)^ Version: [0-9]`, `(?m)^ Architecture: (amd64|arm64)$`, `(?m)^ Installed-Size: [1-9]`} {
		if !regexp.MustCompile(re).MatchString(info) {
			t.Errorf("no %s in:\n%s", re, info)
		}
	}
	if strings.Contains(info, "Depends:") {
		t.Errorf("static programs depend on nothing:\n%s", info)
	}
	list := succeed(t, command(t, top.Host, "dpkg-deb", "-c", deb))
	for _, path := range []string{
		"bin/tsugiki", "bin/tsugiki-runtime", "bin/tsugiki-log", "lib/tsugiki/tsugiki-keeper", "lib/tsugiki/tsugiki-gate", "lib/tsugiki/tsugiki-launch", "lib/tsugiki/libtsugiki.so", "lib/tsugiki/preload/$LIB/libtsugiki.so",
		"include/tsugiki/graft.h", "share/pkgconfig/tsugiki-graft.pc", "share/man/man1/tsugiki-run.1.gz", "share/man/man5/tsugiki-agent.toml.5.gz", "share/doc/tsugiki/copyright",
		"share/bash-completion/completions/tsugiki", "share/zsh/vendor-completions/_tsugiki", "share/fish/vendor_completions.d/tsugiki.fish",
	} {
		if !regexp.MustCompile(`(?m)^[-l]\S+ root/root .* \./usr/` + regexp.QuoteMeta(path) + `( ->.*)?$`).MatchString(list) {
			t.Errorf("%s is not in the package, as root's:\n%s", path, list)
		}
	}
	for _, path := range slices.Concat(commands(t, root), units, hooks) {
		if !strings.Contains(list, "./usr/"+path+"\n") {
			t.Errorf("%s is not in the package:\n%s", path, list)
		}
	}
	if files := succeed(t, command(t, top.Host, "dpkg-deb", "-I", deb, "conffiles")); files != "/etc/tsugiki/agent.toml\n" {
		t.Errorf("files that are the administrator's: %q", files)
	}

	t.Run("unpacked", func(t *testing.T) {
		tree := t.TempDir()
		succeed(t, command(t, top.Host, "dpkg-deb", "-x", deb, tree))
		bin := filepath.Join(tree, "usr/bin/tsugiki")
		found := findings(t, try(t, command(t, top.Host, bin, "doctor", "-j")))
		for _, name := range []string{"tsugiki-gate", "tsugiki-keeper", "libtsugiki.so"} {
			if !strings.HasPrefix(found[name].Detail, tree) {
				t.Errorf("%s is %s: %s", name, found[name].state(), found[name].Detail)
			}
		}
		succeed(t, command(t, top.Host, bin, "run", "--run-dir", runDir, "--endpoint", outEndpoint, "-e", "0.0.0.0/0=out", "--", "true"))
	})
	t.Run("unit", func(t *testing.T) {
		analyze := testkit.Program(t, "systemd-analyze")
		tree := t.TempDir()
		succeed(t, command(t, top.Host, "dpkg-deb", "-x", deb, tree))
		for _, path := range units {
			unit := filepath.Join(tree, "usr", path)
			content, err := os.ReadFile(unit)
			if err != nil {
				t.Fatal(err)
			}
			// It looks whether there is what the unit starts.
			there := strings.ReplaceAll(string(content), "/usr/bin/", tree+"/usr/bin/")
			if there == string(content) {
				t.Errorf("%s starts nothing of /usr/bin", path)
			}
			if err := os.WriteFile(unit, []byte(there), 0o644); err != nil {
				t.Fatal(err)
			}
			r := try(t, command(t, top.Host, analyze, "--man=no", "--recursive-errors=no", "verify", unit))
			if r.err != nil || r.stdout+r.stderr != "" {
				t.Errorf("%s: %v\n%s%s", path, r.err, r.stdout, r.stderr)
			}
		}
	})
	t.Run("installed and removed", func(t *testing.T) { installAndRemove(t, top.Host, deb) })
}

// units are those of systemd, below /usr.
var units = []string{"lib/systemd/system/tsugiki.service", "lib/systemd/system/tsugiki-offload.service", "lib/systemd/system/tsugiki-dpu-agent.service", "lib/systemd/system/tsugiki-guest@.service"}

// hooks are those of initramfs-tools, below /usr.
var hooks = []string{"share/initramfs-tools/hooks/tsugiki", "share/initramfs-tools/scripts/init-premount/tsugiki"}

// commands are the programs that users call, as they are installed.
func commands(t *testing.T, root string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, "cmd"))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, "bin/"+e.Name())
	}
	return list
}

// installAndRemove installs the package in a root of its own, over itself too, and
// removes and purges it. Its scripts run outside of that root, and know it.
func installAndRemove(t *testing.T, host *testkit.Namespace, deb string) {
	tree := t.TempDir()
	if err := os.MkdirAll(filepath.Join(tree, "var/lib/dpkg/info"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, db := range []string{"status", "available"} {
		writeFile(t, filepath.Join(tree, "var/lib/dpkg", db), "")
	}
	dpkg := func(args ...string) string {
		t.Helper()
		flags := []string{"--root=" + tree, "--log=/dev/null", "--force-script-chrootless", "--force-confold"}
		return succeed(t, command(t, host, "dpkg", append(flags, args...)...))
	}
	there := func(want bool, paths ...string) {
		t.Helper()
		for _, path := range paths {
			if _, err := os.Lstat(filepath.Join(tree, path)); (err == nil) != want {
				t.Errorf("%s: %v, want it there: %v", path, err, want)
			}
		}
	}
	const gate, conf, state = "usr/lib/tsugiki/tsugiki-gate", "etc/tsugiki/agent.toml", "var/lib/tsugiki/state"
	const enabled, running = "etc/systemd/system/multi-user.target.wants/tsugiki.service", "run/tsugiki/c.json"

	dpkg("-i", deb)
	if out := dpkg("--verify", "tsugiki"); out != "" {
		t.Errorf("not as packaged:\n%s", out)
	}
	const ofDPU = "etc/systemd/system/multi-user.target.wants/tsugiki-"
	there(true, gate, conf, enabled, ofDPU+"offload.service", ofDPU+"dpu-agent.service")

	// What the administrator and the agent have written survives all but a purge.
	writeFile(t, filepath.Join(tree, conf), "run_dir = \"/changed\"\n")
	writeFile(t, filepath.Join(tree, state), "")
	writeFile(t, filepath.Join(tree, running), "")
	if err := os.Remove(filepath.Join(tree, enabled)); err != nil {
		t.Fatal(err)
	}
	dpkg("-i", deb)
	there(true, gate, state, running)
	there(false, enabled)
	dpkg("--remove", "tsugiki")
	there(false, gate)
	there(true, state, running)
	if content, err := os.ReadFile(filepath.Join(tree, conf)); err != nil || !strings.Contains(string(content), "changed") {
		t.Errorf("the configuration is %q: %v", content, err)
	}
	dpkg("-i", deb)
	dpkg("--purge", "tsugiki")
	there(true, running) // gates wait there
	left := succeed(t, command(t, host, "find", tree, "-path", filepath.Join(tree, "var/lib/dpkg"), "-prune", "-o", "-type", "f", "-print", "-o", "-name", "*tsugiki*", "-print"))
	if want := filepath.Dir(filepath.Join(tree, running)) + "\n" + filepath.Join(tree, running) + "\n"; left != want {
		t.Errorf("left behind:\n%s", left)
	}
}

// writeFile writes a file, in a folder that it makes if need be.
func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
