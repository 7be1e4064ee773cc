package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// setupFiles are what tsugiki setup writes for an engine, by the names of setup. TestCommandsOfEngines
// has docker.
var setupFiles = map[string]string{
	"containerd": "/etc/containerd/config.toml",
	"podman":     "/etc/containers/containers.conf.d/60-tsugiki.conf",
}

// setupName is the engine's name for tsugiki setup.
func (c engineCase) setupName() string {
	if c.engine == "cri" {
		return "containerd"
	}
	return c.engine
}

// inRig runs a program in the engine's rig, and returns what it printed.
func (n *node) inRig(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	out, err := n.rig.Command(ctx, name, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// setUp is tsugiki setup, before the engine starts.
func (n *node) setUp() (err error) {
	n.unset, _ = n.inRig("cat", setupFiles[n.setupName()]) // podman's is not there yet
	_, err = n.inRig(tsugiki, "setup", "--yes", n.setupName())
	return err
}

// TestSetupEngines has containers of engines that know tsugiki-runtime by tsugiki setup alone. With
// --undo, nothing is left of it.
func TestSetupEngines(t *testing.T) {
	t.Parallel()
	for _, c := range []engineCase{{engine: "cri", setup: true}, {engine: "podman", none: true, redis: true, setup: true}} {
		t.Run(c.setupName(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, c)
			n.run(t, n.container("web", "0.0.0.0/0", servedPort))
			n.checkServed(t, "web", servedPort)
			n.remove(t, "web")
			if out, err := n.inRig(tsugiki, "setup", "--yes", n.setupName()); err != nil || !strings.Contains(out, "nothing is changed") {
				t.Errorf("a second time: %v, %q", err, out)
			}
			if _, err := n.inRig(tsugiki, "setup", "--undo", "--yes", n.setupName()); err != nil {
				t.Fatal(err)
			}
			if left, _ := n.inRig("cat", setupFiles[n.setupName()]); left != n.unset {
				t.Errorf("after --undo the configuration is\n%s\nand was\n%s", left, n.unset)
			}
			if n.engine == "podman" { // which reads its configuration each time
				if said := n.refused(t, n.container("after", "0.0.0.0/0", servedPort)); !strings.Contains(said, `OCI runtime "tsugiki" not found`) {
					t.Errorf("podman says: %s", said)
				}
			}
		})
	}
}

// crun returns the path of crun. Crun refuses to work if cgroup v2 has controllers and v1 has others:
// on such a machine it is a script in a folder, which hides v2 from crun.
func crun(t *testing.T, dir string) string {
	t.Helper()
	program := testkit.Program(t, "crun")
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return program
	}
	script := filepath.Join(dir, "crun")
	writeFile(t, script, `#!/bin/sh
exec unshare --mount sh -c 'umount -l $(findmnt -n -f -t cgroup2 -o TARGET) && exec "$0" "$@"' `+program+` "$@"
`)
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	return script
}

// TestCrun has a container that tsugiki-runtime makes by crun. The soak has all of TestGraftedEngines
// with crun.
func TestCrun(t *testing.T) {
	t.Parallel()
	n := newNode(t, crunCases[0])
	n.run(t, n.container("web", "0.0.0.0/0", servedPort))
	testEngineServe(t, n)
	testEngineConnect(t, n)
	testEngineRestart(t, n)
	testEngineRemove(t, n)
}
