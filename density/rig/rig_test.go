package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// newRig makes a rig, and checks at the test's end that nothing of it is left.
func newRig(t *testing.T, o Options) *Rig {
	t.Helper()
	t.Setenv(binEnv, testkit.BuildTsugiki(t))
	r, err := New(o)
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
	ctx, cancel := context.WithTimeout(context.Background(), 2*testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

// TestContainers starts a web server in each kind of container, sends requests from outside, and
// stops it.
func TestContainers(t *testing.T) {
	r := newRig(t, Options{})
	if err := r.Put("/www/index.html", []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, network := range []string{Bridge, Host, Graft, None} {
		for _, storage := range []string{Overlay, Dir, Shared} {
			t.Run(network+" "+storage, func(t *testing.T) {
				ctx := limited(t)
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
					for side, at := range map[string]*namespace{"host": host, "remote": r.remote} {
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

// TestCrun makes containers with crun, with a limit, on each network.
func TestCrun(t *testing.T) {
	testkit.Program(t, crun)
	r := newRig(t, Options{Runtime: crun})
	for _, network := range []string{Bridge, Host, Graft, None} {
		ctx := limited(t)
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

// TestProgram checks the output of a program in a container, and the resources that it uses.
func TestProgram(t *testing.T) {
	ctx := limited(t)
	r := newRig(t, Options{})
	c, err := r.Start(ctx, Spec{
		Name: "echo", Quota: 0.1, Memory: 64 << 20, Ready: "up", Env: []string{"GREETING=hello"},
		Args: []string{"sh", "-c", `echo up; echo "$GREETING you"; yes >/dev/null & echo $!; wait; echo done`},
	})
	if err != nil {
		t.Fatal(err)
	}
	prints := func(want string) {
		t.Helper()
		if line, err := c.Line(ctx); err != nil || line != want {
			t.Errorf("line: %q, %v, want %q", line, err, want)
		}
	}
	prints("hello you")
	load, err := c.Line(ctx)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error {
		if s, err := c.Stats(); err != nil || s.Throttled == 0 || s.ThrottledBy == 0 {
			return fmt.Errorf("with a tenth of a CPU: %+v, %w", s, err)
		}
		return nil
	})
	if out, err := c.Exec(ctx, "sh", "-c", "kill "+load); err != nil {
		t.Fatalf("end the load: %v: %s", err, out)
	}
	prints("done")
	if err := c.Wait(ctx); err != nil {
		t.Error(err)
	}
	if _, err := c.Line(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	if s, err := c.Stats(); err != nil || s.Periods < s.Throttled || s.CPU <= 0 {
		t.Errorf("after the end: %+v, %v", s, err)
	}
	if _, err := c.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// TestRun runs programs until they end, and one that fails.
func TestRun(t *testing.T) {
	ctx := limited(t)
	r := newRig(t, Options{Storage: Shared})
	input, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	if _, err := ours.WriteString("hello\n"); err != nil {
		t.Fatal(err)
	}
	ours.Close()
	out, err := r.Run(ctx, Spec{Name: "cat", Input: input, Args: []string{"cat"}})
	if err != nil || string(out) != "hello\n" {
		t.Errorf("cat: %q, %v", out, err)
	}
	_, err = r.Run(ctx, Spec{Name: "fails", Args: []string{"sh", "-c", "echo read-only >/tmp/file"}})
	if err == nil || !strings.Contains(err.Error(), "Read-only") {
		t.Errorf("a program that writes into the shared file system: %v", err)
	}
	if left := r.Running(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestAgent replaces the agent of a running grafted container. With each of the two agents the
// container reaches a server outside and is reached from there.
func TestAgent(t *testing.T) {
	ctx := limited(t)
	r := newRig(t, Options{Storage: Shared, Network: Graft})
	pages := t.TempDir()
	if err := os.WriteFile(filepath.Join(pages, "index.html"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := r.ServeOutside(ctx, 8080, "busybox", "httpd", "-f", "-h", pages, "-p", "0.0.0.0:8080")
	if err != nil {
		t.Fatal(err)
	}
	agent, err := r.StartAgent(ctx, "enabled = false\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.StartAgent(ctx, ""); !errors.Is(err, ErrTaken) {
		t.Errorf("a second agent: %v, want %v", err, ErrTaken)
	}
	ended := make(chan error, 1)
	agent.OnEnd(func(err error) { ended <- err })
	c, err := r.Start(ctx, Spec{Name: "web", Mode: "seccomp", Ports: []uint16{80}, Args: []string{"httpd", "-f", "-p", "0.0.0.0:80"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ctx := limited(t)
		agent := r.Agent()
		list, err := agent.Client().Containers()
		if err != nil || len(list) != 1 || list[0].State != "running" {
			t.Errorf("the agent has %+v, %v", list, err)
		}
		if err := r.DialOutside(ctx, c.Address(80)); err != nil {
			t.Error(err)
		}
		if out, err := c.Exec(ctx, "wget", "-q", "-O", "-", "http://"+RemoteAddr().String()+":8080/"); err != nil || string(out) != "hello\n" {
			t.Errorf("from the container: %q, %v", out, err)
		}
		found, err := r.Processes()
		if p := found["tsugiki"]; err != nil || p.Count != 1 || p.PSS <= 0 {
			t.Errorf("processes: %+v, %v", found, err)
		}
		r.EndAgent()
		if r.Agent() != nil {
			t.Error("there is an agent that was ended")
		}
		if _, err := r.StartAgent(ctx, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the first agent ended: %v", err)
	}
}

func TestErrors(t *testing.T) {
	ctx := limited(t)
	if _, err := New(Options{Runtime: "no-such-runtime"}); !errors.Is(err, ErrMissing) {
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
		if c, err := r.Start(limited(t), s); err == nil {
			t.Errorf("%s: started %s", name, c.Name())
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}
