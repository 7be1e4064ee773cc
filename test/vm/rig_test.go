package vm

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
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

// tsugiki is the command under test.
var tsugiki string

// preload is the library of machine.Preload.
var preload string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "tsugiki-vm-")
	if err == nil {
		err = build(dir)
	}
	status := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		status = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(status)
}

func build(dir string) error {
	bin, err := testkit.Binaries()
	if err != nil {
		return err
	}
	if err := isStatic("/proc/self/exe"); err != nil {
		return err
	}
	tsugiki = filepath.Join(bin, "tsugiki")
	preload, err = machine.Preload(context.Background(), dir)
	return err
}

// isStatic says how to build a program of the guest, which has no libraries.
func isStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return errors.New("the tests need libraries, which the guest does not have; set CGO_ENABLED=0")
	}
	return nil
}

// initramfs makes a guest's root.
func initramfs(t *testing.T, path, script string) {
	t.Helper()
	modules, err := machine.UML.Modules("", false)
	if err == nil {
		root := machine.Root{Script: script, Modules: modules, Files: map[string]string{"bin/tsugiki": tsugiki, "bin/program": "/proc/self/exe"}}
		err = root.Write(path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// guest is a virtual machine that runs.
type guest struct {
	t     *testing.T
	lines chan string // of its console
	seen  []string
}

// boot attaches a guest to a host, with flags of tsugiki guest attach, and boots it. At the end of the test
// the guest has powered off by itself, and nothing of it is left on the host.
func boot(t *testing.T, h *testkit.Namespace, script string, flags ...string) *guest {
	t.Helper()
	if err := machine.UML.Needs(); err != nil {
		t.Skipf("skip: %v", err)
	}
	dir := t.TempDir()
	socket, root := filepath.Join(dir, "vsock"), filepath.Join(dir, "initramfs")
	initramfs(t, root, script)
	attach(t, h, socket, filepath.Join(dir, "run"), flags)

	ctx, cancel := context.WithTimeout(context.Background(), 3*testkit.Patience)
	t.Cleanup(cancel)
	m := machine.Machine{Accelerator: machine.UML, Dir: dir, Initramfs: root, Preload: preload, Vsock: socket}
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
	g := &guest{t: t, lines: make(chan string, 1000)}
	go func() {
		for s := bufio.NewScanner(console); s.Scan(); {
			g.lines <- strings.TrimSpace(s.Text())
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
		if err := uml.Wait(); err != nil {
			t.Errorf("the guest ended: %v", err)
		}
		if t.Failed() {
			t.Logf("console of the guest:\n%s", strings.Join(g.seen, "\n"))
		}
	})
	return g
}

// attach starts tsugiki guest attach, and waits until it listens.
func attach(t *testing.T, h *testkit.Namespace, socket, runDir string, flags []string) {
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

// expect waits for a line of the console.
func (g *guest) expect(want string) {
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
				return
			}
		case <-timeout:
			g.t.Fatalf("the guest's console has not said %q", want)
		}
	}
}
