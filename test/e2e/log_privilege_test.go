package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// startLoggerWithout is startLogger without a capability, unless that is "".
func startLoggerWithout(t *testing.T, capability, path string, options ...string) *logger {
	t.Helper()
	var by []string
	if capability != "" {
		by = []string{"setpriv", "--bounding-set", "-" + capability, "--"}
	}
	return startLogger(t, path, by, options...)
}

// A logger has what SECURITY.md says while it reads what its container prints.
func TestLogPrivileges(t *testing.T) {
	t.Parallel()
	l := startLoggerWithout(t, "", filepath.Join(t.TempDir(), "log.json"))
	if diff := cmp.Diff(testkit.PromisedPrivileges(t, "tsugiki-log"), testkit.ProcessPrivileges(t, l.Process.Pid)); diff != "" {
		t.Errorf("(-promised +kept):\n%s", diff)
	}
	l.end(t)
}

// A logger turns its files in a folder of somebody else's.
func TestLogNeedsDacOverride(t *testing.T) {
	t.Parallel()
	for _, capability := range []string{"", "dac_override"} {
		dir := t.TempDir()
		path := filepath.Join(dir, "log.json")
		if err := os.WriteFile(path, nil, 0o640); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		l := startLoggerWithout(t, capability, path, "max-size", "1k", "max-file", "2")
		for range 100 {
			l.print(t, l.stdout, strings.Repeat("x", 100)+"\n")
		}
		l.end(t)
		if turned := exists(path + ".1"); turned != (capability == "") {
			t.Errorf("without %q: turned: %v", capability, turned)
		}
	}
}

// The agent hears a logger, but for who may not configure the network.
func TestLogNeedsNetAdmin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	dir := t.TempDir()
	refusal := func(l *logger) string { return fmt.Sprintf("process %d may not", l.Process.Pid) }
	heard := startLoggerWithout(t, "", filepath.Join(dir, "heard.json"), "agent", d.socket())
	refused := startLoggerWithout(t, "net_admin", filepath.Join(dir, "refused.json"), "agent", d.socket())
	d.log.await(t, refusal(refused))
	if log := d.log.String(); strings.Contains(log, refusal(heard)) {
		t.Errorf("the agent logs:\n%s", log)
	}
	heard.end(t)
	refused.end(t)
}
