package install

import (
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/internal/setup"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// TestDefaultOfContainerd has a node whose containerd has the configuration that it prints as its default. It
// reads our runtimes in it.
func TestDefaultOfContainerd(t *testing.T) {
	program := kubetest.Containerd(t)["/usr/bin/containerd"]
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(program, args...).Output()
		if err != nil {
			t.Fatalf("containerd %q: %v", args, err)
		}
		return string(out)
	}
	before := run("config", "default")
	o := node(t)
	tree(t, o.Root, map[string]string{o.Containerd: before})
	engine := o.engine(o.Containerd)
	engine.Translate = true
	change, err := engine.Add(Runtime)
	if err == nil {
		err = change.Apply()
	}
	if err != nil {
		t.Fatal(err)
	}
	told, err := setup.ReadContainerd([]byte(run("--config", filepath.Join(o.Root, o.Containerd), "config", "dump")), Runtime)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{setup.Name, setup.TranslateName}, slices.Sorted(maps.Keys(told.Runtimes))); diff != "" {
		t.Errorf("runtimes that containerd has read (-want +got):\n%s", diff)
	}
	change, err = engine.Remove()
	if err != nil || string(change.After) != before {
		t.Errorf("after that it is (%v):\n%s", err, cmp.Diff(before, string(change.After)))
	}
}
