package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// What is in the Debian package works where it is unpacked, and dpkg removes all of
// it.
func TestDebianPackage(t *testing.T) {
	for _, name := range []string{"dpkg-deb", "dpkg", "objdump"} {
		testkit.Program(t, name)
	}
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	root, err := testkit.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // it compresses
	defer cancel()
	build := commandIn(ctx, t, top.Host, filepath.Join(root, "packaging/deb/build.sh"), filepath.Dir(tsugiki), t.TempDir(), "0.1")
	build.Env = append(os.Environ(), "DEB_COMPRESSION=gzip") // the fastest
	out := succeed(t, build)
	deb := strings.TrimSpace(out)

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
		"bin/tsugiki", "lib/tsugiki/tsugiki-keeper", "lib/tsugiki/tsugiki-gate", "lib/tsugiki/libtsugiki.so", "lib/tsugiki/preload/$LIB/libtsugiki.so",
		"include/tsugiki/graft.h", "lib/pkgconfig/tsugiki-graft.pc", "share/man/man1/tsugiki-run.1.gz", "share/doc/tsugiki/copyright",
		"share/bash-completion/completions/tsugiki", "share/zsh/vendor-completions/_tsugiki", "share/fish/vendor_completions.d/tsugiki.fish",
	} {
		if !regexp.MustCompile(`(?m)^[-l]\S+ root/root .* \./usr/` + regexp.QuoteMeta(path) + `( ->.*)?$`).MatchString(list) {
			t.Errorf("%s is not in the package, as root's:\n%s", path, list)
		}
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
	t.Run("installed and removed", func(t *testing.T) {
		tree := t.TempDir()
		if err := os.MkdirAll(filepath.Join(tree, "var/lib/dpkg/info"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, db := range []string{"status", "available"} {
			if err := os.WriteFile(filepath.Join(tree, "var/lib/dpkg", db), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		dpkg := func(args ...string) string {
			return succeed(t, command(t, top.Host, "dpkg", append([]string{"--root=" + tree, "--log=/dev/null"}, args...)...))
		}
		dpkg("-i", deb)
		if out := dpkg("--verify", "tsugiki"); out != "" {
			t.Errorf("not as packaged:\n%s", out)
		}
		if _, err := os.Stat(filepath.Join(tree, "usr/lib/tsugiki/tsugiki-gate")); err != nil {
			t.Error(err)
		}
		dpkg("--purge", "tsugiki")
		left := succeed(t, command(t, top.Host, "find", tree, "-mindepth", "1", "-path", filepath.Join(tree, "var"), "-prune", "-o", "-mindepth", "1", "-print"))
		if left != "" {
			t.Errorf("left behind:\n%s", left)
		}
	})
}
