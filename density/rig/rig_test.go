package rig

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// newRig makes a rig, and checks in the end that nothing is left of it.
func newRig(t *testing.T, o Options) *Rig {
	t.Helper()
	t.Setenv(binEnv, testkit.BuildTsugiki(t))
	r, err := New(o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		checkGone(t, r.name(), r.dir)
	})
	return r
}

// checkGone checks that a rig has left nothing.
func checkGone(t *testing.T, name, dir string) {
	t.Helper()
	v2, err := cgroup.Mounted()
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := cgroup.Controllers()
	if err != nil {
		t.Fatal(err)
	}
	left := []string{dir, filepath.Join(Registry, name), filepath.Join(v2, name)}
	for _, mount := range mounts {
		left = append(left, filepath.Join(mount, name))
	}
	for _, path := range left {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left", path)
		}
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), name) {
		t.Errorf("a mount of %s is left", name)
	}
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// TestContainers starts a web server in each kind of container, asks it from outside,
// and stops it.
func TestContainers(t *testing.T) {
	ctx := limited(t)
	r := newRig(t, Options{})
	if err := r.Put("/www/index.html", []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, network := range []string{Bridge, Host, Graft, None} {
		for _, storage := range []string{Overlay, Dir} {
			t.Run(network+" "+storage, func(t *testing.T) {
				c, err := r.Start(ctx, Spec{
					Name: "web", Network: network, Storage: storage, Ports: []uint16{80},
					Args: []string{"httpd", "-f", "-h", "/www", "-p", "0.0.0.0:80"},
				})
				if err != nil {
					t.Fatal(err)
				}
				url := "http://" + c.Address(80) + "/"
				get := []string{"busybox", "wget", "-q", "-O", "-", url}
				if network != None {
					host := r.host
					if network == Bridge {
						host = r.bridged
					}
					for side, at := range map[string]*place{"host": host, "remote": r.remote} {
						out, err := at.output(ctx, r.command(ctx, get[0], get[1:]...))
						if err != nil || string(out) != "hello\n" {
							t.Errorf("from the %s: %q, %v", side, out, err)
						}
					}
				}
				out, err := c.Exec(ctx, "wget", "-q", "-O", "-", "http://127.0.0.1:80/")
				if err != nil || string(out) != "hello\n" {
					t.Errorf("from inside: %q, %v", out, err)
				}
				s, err := c.Stats()
				if err != nil || s.CPU <= 0 || s.PSS <= 0 || s.Processes < 1 || (s.HelpersPSS > 0) != (network == Graft) {
					t.Errorf("stats: %+v, %v", s, err)
				}
				stopped, err := c.Stop(ctx)
				if err != nil {
					t.Error(err)
				}
				t.Logf("started in %v, stopped in %v, %+v", c.Started(), stopped, s)
			})
		}
	}
}

// TestCrun has another runtime make containers, with a limit, on each network.
func TestCrun(t *testing.T) {
	testkit.Program(t, crun)
	ctx := limited(t)
	r := newRig(t, Options{Runtime: crun})
	for _, network := range []string{Bridge, Host, Graft, None} {
		c, err := r.Start(ctx, Spec{Name: network, Network: network, Quota: 0.5, Ports: []uint16{80}, Args: []string{"httpd", "-f", "-p", "0.0.0.0:80"}})
		if err != nil {
			t.Fatal(err)
		}
		if out, err := c.Exec(ctx, "echo", "hello"); err != nil || string(out) != "hello\n" {
			t.Errorf("%s: it says %q: %v", network, out, err)
		}
		if s, err := c.Stats(); err != nil || s.CPU <= 0 || s.PSS <= 0 || s.Processes < 1 {
			t.Errorf("%s: stats: %+v, %v", network, s, err)
		}
		if _, err := c.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
}

// TestProgram reads what a program in a container prints, and uses.
func TestProgram(t *testing.T) {
	ctx := limited(t)
	r := newRig(t, Options{})
	c, err := r.Start(ctx, Spec{
		Name: "echo", Quota: 0.1, Memory: 64 << 20, Ready: "up", Env: []string{"GREETING=hello"},
		Args: []string{"sh", "-c", `echo up; echo "$GREETING you"; timeout 1 yes >/dev/null; echo done`},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"hello you", "done"} {
		if line, err := c.Line(ctx); err != nil || line != want {
			t.Errorf("line: %q, %v, want %q", line, err, want)
		}
	}
	if err := c.Wait(ctx); err != nil {
		t.Error(err)
	}
	if _, err := c.Line(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	s, err := c.Stats()
	if err != nil || s.Throttled == 0 || s.ThrottledBy == 0 || s.Periods < s.Throttled || s.CPU > 400*time.Millisecond {
		t.Errorf("with a tenth of a CPU: %+v, %v", s, err)
	}
	if _, err := c.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func TestErrors(t *testing.T) {
	ctx := limited(t)
	if _, err := New(Options{Runtime: "no-such-runtime"}, nil); !errors.Is(err, ErrMissing) {
		t.Errorf("no runtime: %v", err)
	}
	r := newRig(t, Options{})
	web := Spec{Name: "web", Network: Host, Ports: []uint16{80}, Args: []string{"httpd", "-f", "-p", "0.0.0.0:80"}}
	if _, err := r.Start(ctx, web); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(ctx, web); !errors.Is(err, ErrTaken) {
		t.Errorf("the same name: %v", err)
	}
	web.Name = "other"
	if _, err := r.Start(ctx, web); !errors.Is(err, ErrTaken) {
		t.Errorf("the same port: %v", err)
	}
	for name, s := range map[string]Spec{
		"no program":     {Name: "a", Args: []string{"/no/such/program"}},
		"a short life":   {Name: "b", Args: []string{"false"}, Ports: []uint16{81}},
		"wrong greeting": {Name: "c", Args: []string{"echo", "no"}, Ready: "yes"},
		"no name":        {Args: []string{"true"}},
		"foreign name":   {Name: "../a", Args: []string{"true"}},
		"no network":     {Name: "d", Args: []string{"true"}, Network: "ether"},
		"no storage":     {Name: "e", Args: []string{"true"}, Storage: "floppy"},
	} {
		if c, err := r.Start(ctx, s); err == nil {
			t.Errorf("%s: started %s", name, c.Name())
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}
