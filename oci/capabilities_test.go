package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// No process of a container has CAP_NET_RAW, neither the first one nor an added one, and the
// runtime's log says so. A container in a user namespace of its own keeps it.
func TestNetRawIsDropped(t *testing.T) {
	for _, user := range []bool{false, true} {
		t.Run(fmt.Sprintf("own users %v", user), func(t *testing.T) {
			r := newRig(t, "sh", "-c", "cat /proc/self/status; sleep 1000")
			r.edit(func(s *specs.Spec) {
				s.Process.Capabilities = withNetRaw
				if user {
					s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
					s.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 0, Size: 1000}}
					s.Linux.GIDMappings = s.Linux.UIDMappings
				}
			})
			config, want := r.config(), uint64(1)<<unix.CAP_KILL
			if user {
				want |= 1 << unix.CAP_NET_RAW
			}
			log := filepath.Join(t.TempDir(), "log")
			checkCaps(t, "the first", r.createAndRead("CapAmb", "--log", log), want)
			if said, _ := os.ReadFile(log); strings.Contains(string(said), "CAP_NET_RAW") == user {
				t.Errorf("the log says %q", said)
			}
			r.checkAdded(want, user)
			deleted, status := r.run("delete", "--force", r.id)
			r.check(0, deleted, status)
			r.checkGone(config)
		})
	}
}

var withNetRaw = func() *specs.LinuxCapabilities {
	set := []string{"CAP_KILL", "CAP_NET_RAW"}
	return &specs.LinuxCapabilities{Bounding: set, Effective: set, Permitted: set, Inheritable: set, Ambient: set}
}()

// createAndRead creates and starts the container, and returns its output as soon as that contains a
// word.
func (r *rig) createAndRead(word string, options ...string) string {
	r.t.Helper()
	out, err := os.Create(filepath.Join(r.t.TempDir(), "out"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer out.Close()
	cmd := r.command(append(options, "create", "--bundle", r.bundle, r.id)...)
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if err == nil {
		err = r.command("start", r.id).Run()
	}
	said := func() string {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			r.t.Fatal(err)
		}
		return string(text)
	}
	if err != nil {
		r.t.Fatalf("%v: %s", err, said())
	}
	testkit.Eventually(r.t, func() error {
		if text := said(); !strings.Contains(text, word) {
			return fmt.Errorf("it has printed %s", text)
		}
		return nil
	})
	return said()
}

// checkAdded adds processes that ask for CAP_NET_RAW in every possible way.
func (r *rig) checkAdded(want uint64, may bool) {
	r.t.Helper()
	process := filepath.Join(r.t.TempDir(), "process")
	data, err := json.Marshal(specs.Process{
		Args: []string{"cat", "/proc/self/status"}, Env: []string{"PATH=/bin"}, Cwd: "/", Capabilities: withNetRaw,
	})
	if err == nil {
		err = os.WriteFile(process, data, 0o600)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	out, status := r.run("exec", "--process", process, r.id)
	checkCaps(r.t, "an added", r.check(0, out, status), want)
	out, status = r.run("exec", r.id, "cat", "/proc/self/status")
	checkCaps(r.t, "a plain added", r.check(0, out, status), want)
	out, status = r.run("exec", "--cap", "CAP_NET_RAW", r.id, "true")
	if (status == 0) != may || !may && (strings.Count(out, "\n") != 1 || !strings.Contains(out, "CAP_NET_RAW")) {
		r.t.Errorf("asked for by --cap: status %d: %s", status, out)
	}
}

// checkCaps checks the capability sets in the text of a /proc/PID/status.
func checkCaps(t *testing.T, whose, status string, bounding uint64) {
	t.Helper()
	seen := 0
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		if !strings.HasPrefix(name, "Cap") {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		seen++
		if set&^bounding != 0 || name == "CapBnd" && set != bounding {
			t.Errorf("%s process: %s is %#x, want %#x", whose, name, set, bounding)
		}
	}
	if seen != 5 {
		t.Errorf("%s process has printed %s", whose, status)
	}
}
