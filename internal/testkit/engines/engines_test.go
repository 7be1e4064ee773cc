package engines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// image is shared by all tests.
var image *Image

func TestMain(m *testing.M) {
	if os.Getenv(ownerEnv) != "" {
		os.Exit(ownRig())
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "engines-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	var needs *testkit.NeedsError
	if image, err = BuildImage(dir); err != nil && !errors.As(err, &needs) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// newTestRig makes a rig in the host of a topology.
func newTestRig(t *testing.T) (*testkit.Topology, *Rig) {
	t.Helper()
	if image == nil {
		t.Skip("skip: needs the programs that the image is made of")
	}
	top := testkit.Build(t, testkit.Options{})
	return top, NewRig(t, top.Host, Options{Image: image})
}

// fetch asks for a page from a namespace, until it is there.
func fetch(t *testing.T, ns *testkit.Namespace, url string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		out, err := ns.Command(context.Background(), "curl", "-sS", "-f", "-m", "2", url).CombinedOutput()
		if err != nil || string(out) != "hello\n" {
			return fmt.Errorf("%s: %w: %s", url, err, out)
		}
		return nil
	})
}

// logged waits for a line in the log of a container.
func logged(t *testing.T, e Engine, name, text string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		log, err := e.Logs(name)
		if err == nil && !strings.Contains(log, text) {
			err = fmt.Errorf("no %q in the log of %s:\n%s", text, name, log)
		}
		return err
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestEngines has each engine do with its own runtime what tests want of it with
// another.
func TestEngines(t *testing.T) {
	for _, name := range Names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top, r := newTestRig(t)
			e := r.Start(t, name)
			t.Run("plain", func(t *testing.T) { testPlain(t, top, e) })
			t.Run("denied", func(t *testing.T) { testDenied(t, e) })
		})
	}
}

// bare is a container with what an engine can do.
func bare(e Engine, name string, args []string) Container {
	return Container{Name: name, Args: args, None: e.Name() == "ctr" || e.Name() == "podman"}
}

func testPlain(t *testing.T, top *testkit.Topology, e Engine) {
	c := bare(e, "web", Nginx)
	c.Env = []string{"SAP=rising"}
	c.DNS = "198.51.100.53"
	if e.Name() == "docker" {
		c.Publish = "8080:80"
	}
	must(t, e.Run(c))
	check := func() {
		t.Helper()
		ip, err := e.IP(c.Name)
		must(t, err)
		switch {
		case c.Publish != "":
			fetch(t, top.Remote, "http://198.51.100.1:8080/")
			logged(t, e, c.Name, testkit.RemoteAddr4.String()+" 200 /\n")
		case ip != "":
			fetch(t, top.Host, "http://"+ip+"/")
		default:
			testkit.Eventually(t, func() error {
				out, err := e.Exec(c.Name, "wget", "-q", "-O", "-", "http://127.0.0.1/")
				if err != nil || out != "hello\n" {
					return fmt.Errorf("got %q, %w", out, err)
				}
				return nil
			})
			logged(t, e, c.Name, "127.0.0.1 200 /\n")
		}
	}
	check()
	out, err := e.Exec(c.Name, "sh", "-c", "echo $SAP; cat /etc/resolv.conf")
	if err != nil || !strings.HasPrefix(out, "rising\n") || !strings.Contains(out, "nameserver "+c.DNS) {
		t.Errorf("exec printed %q, %v", out, err)
	}
	if _, err := e.Exec(c.Name, "false"); err == nil {
		t.Error("a program that fails does not")
	}
	must(t, e.Stop(c.Name))
	if running, err := e.Running(c.Name); err != nil || running {
		t.Errorf("after Stop: running %v, %v", running, err)
	}
	must(t, e.Start(c.Name))
	check()
	testPause(t, e, c.Name)
	must(t, e.Remove(c.Name))
	if err := e.Remove(c.Name); err == nil {
		t.Error("a container that is removed can be removed again")
	}
}

func testPause(t *testing.T, e Engine, name string) {
	t.Helper()
	err := e.Pause(name)
	if errors.Is(err, errors.ErrUnsupported) {
		return
	}
	must(t, err)
	must(t, e.Unpause(name))
}

// testDenied checks that the engine's default profile is in force.
func testDenied(t *testing.T, e Engine) {
	if got := runDenied(t, e, bare(e, "denied", nil)); got != Denied(e) {
		t.Errorf("got %q, want %q", got, Denied(e))
	}
	// Docker gives a privileged container more than a machine for tests may
	// have; ctr was asked for the profile.
	if e.Name() != "podman" && e.Name() != "cri" {
		return
	}
	c := bare(e, "privileged", nil)
	c.Privileged = true
	if got, want := runDenied(t, e, c), "keyctl ok\nadd_key ok\nunshare ok\n"; got != want {
		t.Errorf("without a profile: got %q, want %q", got, want)
	}
}

func runDenied(t *testing.T, e Engine, c Container) string {
	t.Helper()
	must(t, e.Run(c))
	out, err := e.Exec(c.Name, "denied")
	must(t, err)
	must(t, e.Remove(c.Name))
	return out
}
