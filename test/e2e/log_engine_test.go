package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// TestLogContainerd has containerd start the logger, as its users do: no line is lost
// over rotations, or when the container ends, and it is deleted as ever.
func TestLogContainerd(t *testing.T) {
	t.Parallel()
	image := needImage(t)
	rig := engines.NewRig(t, testkit.Build(t, testkit.Options{}).Host, engines.Options{Image: image})
	rig.Start(t, "ctr")
	ctr := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		c := rig.Command(ctx, "ctr", args...)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("ctr %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run := func(name, options, script string) {
		t.Helper()
		uri := "binary://" + filepath.Join(filepath.Dir(tsugiki), "tsugiki-log") + "?agent=none" + options
		ctr("run", "-d", "--cgroup", "/"+filepath.Base(rig.Group())+"/"+name, "--log-uri", uri, engines.ImageName, name, "sh", "-c", script)
	}
	stopped := func(name string) {
		t.Helper()
		testkit.Eventually(t, func() error {
			if !strings.Contains(ctr("task", "ls"), "STOPPED") {
				return fmt.Errorf("%s runs", name)
			}
			return nil
		})
		ctr("task", "rm", name)
		ctr("container", "rm", name)
	}

	dir := t.TempDir()
	path := filepath.Join(dir, "log.json")
	const lines = 20000
	run("counts", "&max-size=100k&max-file=1000&path="+path, fmt.Sprintf(
		`i=0; while [ $i -lt %d ]; do echo stdout line $i; i=$((i+1)); done & i=0; while [ $i -lt %[1]d ]; do echo stderr line $i >&2; i=$((i+1)); done; wait`, lines))
	stopped("counts")
	files := rotated(t, path)
	checkNumbers(t, "stdout", files, lines)
	checkNumbers(t, "stderr", files, lines)
	if len(files) < 10 {
		t.Errorf("it was not rotated: %v", files)
	}

	// One that is killed while it prints, into a place of the logger's choice, is
	// deleted at once, and its logger ends.
	run("yes", "", "yes")
	if noLogger(rig.Group()) == nil {
		t.Error("no logger is found while one runs")
	}
	ctr("task", "rm", "--force", "yes")
	ctr("container", "rm", "yes")
	testkit.Eventually(t, func() error { return noLogger(rig.Group()) })
	out, err := rig.Command(t.Context(), "sh", "-c", "tail -n 1 /var/log/tsugiki/default/yes/yes-json.log").Output()
	if err != nil || !strings.HasPrefix(string(out), `{"log":"y`) || !strings.HasSuffix(string(out), "\"}\n") {
		t.Errorf("%q, %v", out, err)
	}
}

// noLogger tells which of a cgroup's processes is a logger.
func noLogger(group string) error {
	return filepath.WalkDir(group, func(path string, _ os.DirEntry, err error) error {
		if filepath.Base(path) != "cgroup.procs" || err != nil {
			return nil // groups come and go
		}
		for _, pid := range pidsIn(path) {
			if comm(pid) == "tsugiki-log" {
				return fmt.Errorf("a logger is left: %d", pid)
			}
		}
		return nil
	})
}
