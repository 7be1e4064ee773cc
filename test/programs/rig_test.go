package programs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// programPatience is how long a script may run. It is for hangs only: a script waits many times.
var programPatience = 5 * testkit.Patience

// rig is a topology of a case's own, and a folder with its files.
type rig struct {
	top   *testkit.Topology
	dir   string
	graft []string // the command of tsugiki but for the case's rules; nil for the control
	// inside and outside are what the scripts' commands begin with.
	inside, outside []string
	// ready is called when the container waits for its first line, with a process of it. end is
	// called when the scripts have ended.
	ready func(pid string)
	end   func()
}

// newRig writes the files of a case, which may name the folder bin of our programs, and builds a
// topology. Further words of the files have other values. Users other than root can read the files.
func newRig(t *testing.T, c *txtar.Archive, bin string, o testkit.Options, words ...string) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "tsugiki-programs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	replace := strings.NewReplacer(append(words, "@DIR@", dir, "@BIN@", bin,
		"@HOST@", testkit.HostAddr4.String(), "@HOST6@", testkit.HostAddr6.String(),
		"@REMOTE@", testkit.RemoteAddr4.String(), "@REMOTE6@", testkit.RemoteAddr6.String())...)
	for _, f := range c.Files {
		path := filepath.Join(dir, f.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(replace.Replace(string(f.Data))), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return &rig{top: testkit.Build(t, o), dir: dir}
}

// build builds the programs of testdata, static.
func build(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	c := exec.Command("go", "build", "-o", bin+"/", "./testdata/crowd", "./testdata/only4")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build programs: %v\n%s", err, out)
	}
	return bin
}

// buildC adds a C program to the folder bin, built in both ways.
func buildC(t *testing.T, bin, program string) {
	t.Helper()
	for way, flag := range map[string]string{"dynamic": "-rdynamic", "static": "-static"} {
		c := exec.Command(testkit.Program(t, "gcc"), "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", flag, "-pthread",
			"-o", filepath.Join(bin, program+"-"+way), filepath.Join("testdata", program, program+".c"))
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("build %s-%s: %v\n%s", program, way, err, out)
		}
	}
}

// file is a file of the case, or "".
func (r *rig) file(name string) string {
	text, _ := os.ReadFile(filepath.Join(r.dir, name))
	return string(text)
}

// script is the command of a script with the functions of lib.sh, after the commands first.
func script(t *testing.T, first, name string, args ...string) []string {
	t.Helper()
	lib, err := filepath.Abs("testdata/lib.sh")
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{"/bin/sh", "-euc", ". " + lib + "\nexec 2>&1\n" + first + "\n. ./" + name, name}, args...)
}

// command prepares a program in a namespace. A program that hangs gets SIGTERM, so that tsugiki
// cleans up.
func (r *rig) command(t *testing.T, ns *testkit.Namespace, line []string) *testkit.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), programPatience)
	t.Cleanup(cancel)
	c := ns.Command(ctx, line[0], line[1:]...)
	c.SysProcAttr.Pdeathsig = unix.SIGTERM
	c.Cancel = func() error { return c.Process.Signal(unix.SIGTERM) }
	c.Dir = r.dir
	return c
}

// container prepares a script of the case in a container with the rules of a file, or bare.
func (r *rig) container(t *testing.T, name, rules string) *testkit.Cmd {
	t.Helper()
	line := script(t, "trap stop EXIT\necho $$ >"+name+".new\nmv "+name+".new "+name+".pid", name)
	if r.graft != nil {
		line = slices.Concat(r.graft, strings.Fields(r.file(rules)), []string{"--"}, line)
	}
	return r.command(t, r.top.Host, slices.Concat(r.inside, line))
}

// place returns the flags of tsugiki that say where its files are. A pod has an agent there.
func (r *rig) place(t *testing.T, tsugiki string) []string {
	t.Helper()
	run := t.TempDir()
	if r.file("beside.sh") == "" {
		return []string{"--run-dir", run}
	}
	config := filepath.Join(run, "agent.toml")
	if err := os.WriteFile(config, []byte("[charge]\ndiscovery = false\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := r.top.Host.Command(context.Background(), tsugiki, "agent", "--run-dir", run,
		"--state-dir", filepath.Join(run, "state"), "--config", config)
	var log strings.Builder
	agent.Stderr = &log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Signal(unix.SIGTERM)
		if err := agent.Wait(); err != nil || strings.Contains(log.String(), "level=ERROR") || t.Failed() {
			t.Errorf("the agent (%v):\n%s", err, &log)
		}
	})
	testkit.Eventually(t, func() error {
		_, err := os.Stat(api.SocketIn(run))
		return err
	})
	return []string{"--run-dir", run}
}

// beside starts the other container of a pod, if the case has one, and has the next container join
// its namespace. End ends it, and returns what it has printed.
func (r *rig) beside(t *testing.T) (end func() string) {
	t.Helper()
	if r.file("beside.sh") == "" {
		return func() string { return "" }
	}
	c := r.container(t, "beside.sh", "beside")
	pid := filepath.Join(r.dir, "beside.sh.pid")
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var printed, faults strings.Builder
	c.Stdout, c.Stderr = &printed, &faults
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.report(t, &faults) })
	if r.graft != nil {
		testkit.Eventually(t, func() error {
			text, err := os.ReadFile(pid)
			if err == nil {
				r.graft = append(r.graft, "--netns", strings.TrimSpace(string(text)))
			}
			return err
		})
	}
	return func() string {
		stdin.Close()
		status(&printed, c.Wait())
		return printed.String()
	}
}

// run runs the case and returns what its scripts print.
func (r *rig) run(t *testing.T) string {
	t.Helper()
	end := r.beside(t)
	c := r.container(t, "inside.sh", "rules")
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var faults strings.Builder
	c.Stderr = &faults
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.report(t, &faults) })
	var printed strings.Builder
	for in := bufio.NewScanner(stdout); in.Scan(); {
		if args, ok := strings.CutPrefix(in.Text(), "outside "); ok {
			r.start(t)
			line := slices.Concat(r.outside, script(t, "", "outside.sh", strings.Fields(args)...))
			out, err := r.command(t, r.top.Remote, line).Output()
			printed.Write(out)
			status(&printed, err)
			_, _ = io.WriteString(stdin, "\n") // or it has ended
		} else {
			fmt.Fprintln(&printed, in.Text())
		}
	}
	status(&printed, c.Wait())
	if r.end != nil {
		r.end()
	}
	return printed.String() + end()
}

// start calls ready, if it was not called yet.
func (r *rig) start(t *testing.T) {
	t.Helper()
	if r.ready == nil {
		return
	}
	pid, err := os.ReadFile(filepath.Join(r.dir, "inside.sh.pid"))
	if err != nil {
		t.Fatal(err)
	}
	r.ready(strings.TrimSpace(string(pid)))
	r.ready = nil
}

// status writes how a program has failed.
func status(printed *strings.Builder, err error) {
	if err != nil {
		fmt.Fprintln(printed, err)
	}
}

// report shows what the programs of a failed test have logged.
func (r *rig) report(t *testing.T, faults fmt.Stringer) {
	t.Helper()
	if strings.Contains(faults.String(), "level=ERROR") {
		t.Error("tsugiki logged a fault")
	}
	if !t.Failed() {
		return
	}
	t.Logf("standard error:\n%s", faults)
	logs, _ := filepath.Glob(filepath.Join(r.dir, "*.log"))
	for _, path := range logs {
		text, err := os.ReadFile(path)
		t.Logf("%s (%v):\n%s", filepath.Base(path), err, text)
	}
}
