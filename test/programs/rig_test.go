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
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// programPatience is how long a script may run. It is for hangs only: a script waits many times.
var programPatience = 5 * testkit.Patience

// rig is a topology of a case's own, and a folder with its files.
type rig struct {
	top *testkit.Topology
	dir string
}

// newRig writes the files of a case, which may name the folder bin of our programs. Users other
// than root can read them.
func newRig(t *testing.T, c *txtar.Archive, bin string) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "tsugiki-programs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	words := strings.NewReplacer("@DIR@", dir, "@BIN@", bin,
		"@HOST@", testkit.HostAddr4.String(), "@HOST6@", testkit.HostAddr6.String(),
		"@REMOTE@", testkit.RemoteAddr4.String(), "@REMOTE6@", testkit.RemoteAddr6.String())
	for _, f := range c.Files {
		path := filepath.Join(dir, f.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(words.Replace(string(f.Data))), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return &rig{testkit.Build(t, testkit.Options{}), dir}
}

// build builds the programs of testdata, static.
func build(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	c := exec.Command("go", "build", "-o", bin+"/", "./testdata/crowd")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build programs: %v\n%s", err, out)
	}
	return bin
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

// run runs the case, inside.sh by the command before, and returns what its scripts print.
func (r *rig) run(t *testing.T, before ...string) string {
	t.Helper()
	c := r.command(t, r.top.Host, append(before, script(t, "trap stop EXIT", "inside.sh")...))
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
			out, err := r.command(t, r.top.Remote, script(t, "", "outside.sh", strings.Fields(args)...)).Output()
			printed.Write(out)
			status(&printed, err)
			_, _ = io.WriteString(stdin, "\n") // or it has ended
		} else {
			fmt.Fprintln(&printed, in.Text())
		}
	}
	status(&printed, c.Wait())
	return printed.String()
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
