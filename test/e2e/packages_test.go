package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The packages of all formats have the same programs, rpm removes all of its own, and make
// uninstall removes all that make install has put there.
func TestPackages(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"rpm", "tar", "make", "dpkg-deb"} {
		testkit.Program(t, name)
	}
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	root, err := testkit.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Dir(tsugiki)
	ctx, cancel := context.WithTimeout(t.Context(), programPatience) // it compresses
	defer cancel()
	build := commandIn(ctx, t, top.Host, filepath.Join(root, "packaging/build.sh"), bin, t.TempDir(), "0.1")
	build.Env = append(os.Environ(), "DEB_COMPRESSION=none")
	files := strings.Fields(succeed(t, build))
	if len(files) != 3 {
		t.Fatalf("packages: %q", files)
	}
	deb, tarball, rpm := files[0], files[1], files[2]

	inRPM := strings.Fields(succeed(t, command(t, top.Host, "rpm", "-qpl", rpm)))
	inTar := strings.Fields(succeed(t, command(t, top.Host, "tar", "-tzf", tarball)))
	inDeb := succeed(t, command(t, top.Host, "dpkg-deb", "-c", deb))
	for _, path := range append(slices.Concat(commands(t, root), units, hooks), "lib/tsugiki/tsugiki-gate", "lib/tsugiki/preload/$LIB/libtsugiki.so",
		"share/man/man1/tsugiki-runtime.1.gz", "share/man/man1/tsugiki-log.1.gz", "share/man/man1/tsugiki-setup.1.gz",
		"share/doc/tsugiki/docs/RUNTIME.md", "share/doc/tsugiki/examples/graft-server.c") {
		if !slices.Contains(inRPM, "/usr/"+path) || !slices.Contains(inTar, "./usr/"+path) || !strings.Contains(inDeb, " ./usr/"+path) {
			t.Errorf("%s is not in each package", path)
		}
	}
	t.Run("rpm", func(t *testing.T) { installAndEraseRPM(t, top.Host, rpm) })
	t.Run("tarball", func(t *testing.T) {
		tree := t.TempDir()
		succeed(t, command(t, top.Host, "tar", "-C", tree, "-xzf", tarball))
		version := succeed(t, command(t, top.Host, filepath.Join(tree, "usr/bin/tsugiki"), "--version"))
		if !regexp.MustCompile(`^tsugiki \S+\n$`).MatchString(version) {
			t.Errorf("the version is %q", version)
		}
	})
	t.Run("make uninstall", func(t *testing.T) {
		tree := t.TempDir()
		for _, target := range []string{"install", "uninstall"} {
			succeed(t, command(t, top.Host, "make", "-s", "-C", root, target, "BIN="+bin, "DESTDIR="+tree))
			_, err := os.Stat(filepath.Join(tree, "usr/local/bin/tsugiki"))
			if there := err == nil; there != (target == "install") {
				t.Errorf("after %s: %v", target, err)
			}
		}
		left := succeed(t, command(t, top.Host, "find", tree, "-not", "-type", "d", "-o", "-name", "*tsugiki*"))
		if want := filepath.Join(tree, "etc/tsugiki") + "\n" + filepath.Join(tree, "etc/tsugiki/agent.toml") + "\n"; left != want {
			t.Errorf("left:\n%s", left)
		}
	})
}

// installAndEraseRPM does that in a root of its own, without the scripts, which call systemctl.
func installAndEraseRPM(t *testing.T, host *testkit.Namespace, file string) {
	tree := t.TempDir()
	rpm := func(args ...string) string {
		t.Helper()
		return succeed(t, command(t, host, "rpm", append([]string{"--root", tree, "--dbpath", "/var/lib/rpm"}, args...)...))
	}
	conf := filepath.Join(tree, "etc/tsugiki/agent.toml")
	rpm("-i", "--noscripts", file)
	if out := rpm("-V", "--noscripts", "tsugiki"); out != "" {
		t.Errorf("not as packaged:\n%s", out)
	}
	writeFile(t, conf, "run_dir = \"/changed\"\n")
	rpm("-e", "--noscripts", "tsugiki")
	left := succeed(t, command(t, host, "find", tree, "-path", filepath.Join(tree, "var/lib/rpm"), "-prune", "-o", "-name", "*tsugiki*", "-print"))
	if want := filepath.Dir(conf) + "\n"; left != want {
		t.Errorf("left:\n%s", left)
	}
	if content, err := os.ReadFile(conf + ".rpmsave"); err != nil || !strings.Contains(string(content), "changed") {
		t.Errorf("the administrator's file is %q: %v", content, err)
	}
}
