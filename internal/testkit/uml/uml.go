// Package uml has guests of tests: package machine's User-Mode Linux without a network card, whose host is a
// namespace. The guest has busybox and tsugiki. A test follows its console.
//
// It needs root, Linux 5.15, and what package machine needs of User-Mode Linux. A boot takes two seconds.
package uml

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/machine"
)

// bootTimes is how many times the tests' patience a guest may run: more is a hang.
const bootTimes = 15

// Options describe a guest.
type Options struct {
	// Script is what the guest's first program does, in busybox's shell, before it powers off.
	Script string
	// Flags are those of tsugiki guest attach, besides the guest's name and paths.
	Flags []string
	// IPv6 gives the guest's kernel IPv6.
	IPv6 bool
	// Programs are programs of the host that the guest has, with their libraries.
	Programs []string
	// Files are files of the host, by their paths in the guest; Texts are contents likewise.
	Files, Texts map[string]string
	// Memory is the guest's, in MiB; 0 is 256.
	Memory int
	// By are words that precede the VMM's command.
	By []string
}

// Guest is a virtual machine that runs.
type Guest struct {
	t      *testing.T
	lines  chan string // of its console
	seen   []string
	kill   func() error // ends the VMM
	killed bool         // Crash has done so
}

// Boot attaches a guest to a host, and boots it. At the end of the test the guest has powered off by itself,
// and nothing of it is left on the host.
func Boot(t *testing.T, h *testkit.Namespace, o Options) *Guest {
	t.Helper()
	needs(t)
	dir := t.TempDir()
	socket := filepath.Join(dir, "vsock")
	attach(t, h, filepath.Join(testkit.BuildTsugiki(t), "tsugiki"), socket, filepath.Join(dir, "run"), o.Flags)
	return Start(t, h, socket, o)
}

func needs(t *testing.T) {
	t.Helper()
	if err := machine.UML.Needs(); err != nil {
		t.Skipf("skip: %v", err)
	}
}

// Start boots a guest whose device the caller serves at a socket: Options.Flags are not used. At the end of the
// test the guest has powered off by itself, or Crash has ended it.
func Start(t *testing.T, h *testkit.Namespace, socket string, o Options) *Guest {
	t.Helper()
	needs(t)
	dir := t.TempDir()
	root := filepath.Join(dir, "initramfs")
	initramfs(t, root, testkit.BuildTsugiki(t), o)
	preload, err := machine.Preload(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), bootTimes*testkit.Patience)
	t.Cleanup(cancel)
	m := machine.Machine{
		Accelerator: machine.UML, Dir: dir, Initramfs: root, Preload: preload, Vsock: socket, Memory: o.Memory, By: o.By,
	}
	uml, err := m.Command(ctx, h)
	if err != nil {
		t.Fatal(err)
	}
	console, err := uml.StdoutPipe()
	if err == nil {
		uml.Stderr = uml.Stdout
		err = uml.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	g := &Guest{t: t, lines: make(chan string, 1000), kill: uml.Cancel}
	go func() {
		for s := bufio.NewScanner(console); s.Scan(); {
			g.lines <- strings.TrimRight(s.Text(), " \r\t")
		}
		close(g.lines)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			cancel()
		}
		for line := range g.lines {
			g.seen = append(g.seen, line)
		}
		if err := uml.Wait(); err != nil && !g.killed {
			t.Errorf("the guest ended: %v", err)
		}
		if t.Failed() {
			t.Logf("console of the guest:\n%s", strings.Join(g.seen, "\n"))
		}
	})
	return g
}

// initramfs makes a guest's root.
func initramfs(t *testing.T, path, bin string, o Options) {
	t.Helper()
	modules, err := machine.UML.Modules("", o.IPv6)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"bin/tsugiki": filepath.Join(bin, "tsugiki")}
	maps.Copy(files, o.Files)
	root := machine.Root{Script: o.Script, Modules: modules, Files: files, Texts: o.Texts}
	for _, name := range o.Programs {
		if err := root.AddProgram(testkit.Program(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := root.Write(path); err != nil {
		t.Fatal(err)
	}
}

// attach starts tsugiki guest attach, and waits until it listens.
func attach(t *testing.T, h *testkit.Namespace, tsugiki, socket, runDir string, flags []string) {
	t.Helper()
	args := slices.Concat([]string{"guest", "attach", "--vsock", socket, "--name", fmt.Sprintf("vm%d", os.Getpid()), "--run-dir", runDir}, flags)
	cmd := h.Command(context.Background(), tsugiki, args...)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("tsugiki guest attach: %v\n%s", err, &log)
		}
		if left, err := os.ReadDir(runDir); err == nil && len(left) > 0 {
			t.Errorf("the guest has left %v", left)
		}
	})
	testkit.Eventually(t, func() error {
		_, err := os.Stat(socket)
		return err
	})
}

// Crash kills the VMM.
func (g *Guest) Crash() {
	g.t.Helper()
	g.killed = true
	if err := g.kill(); err != nil {
		g.t.Error(err)
	}
}

// Next returns the next line of the console; false if the guest has ended.
func (g *Guest) Next() (line string, open bool) {
	g.t.Helper()
	select {
	case line, open = <-g.lines:
		if open {
			g.seen = append(g.seen, line)
		}
		return line, open
	case <-time.After(2 * testkit.Patience):
		g.t.Fatal("the guest's console says nothing")
		return "", false
	}
}

// Expect waits for a line of the console that has some words, and returns it.
func (g *Guest) Expect(want string) string {
	g.t.Helper()
	timeout := time.After(2 * testkit.Patience)
	for {
		select {
		case line, open := <-g.lines:
			if !open {
				g.t.Fatalf("the guest has ended without %q", want)
			}
			g.seen = append(g.seen, line)
			if strings.Contains(line, want) {
				return line
			}
		case <-timeout:
			g.t.Fatalf("the guest's console has not said %q", want)
		}
	}
}
