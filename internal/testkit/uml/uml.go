// Package uml boots virtual machines in tests: a User-Mode Linux guest without a network card, whose host
// is a namespace. The guest has busybox and tsugiki.
//
// It needs root, Linux 5.15, x86-64, a C compiler, and the Debian packages user-mode-linux and
// busybox-static. A boot takes two seconds.
package uml

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

//go:embed testdata/xstate.c
var xstate []byte

// modules are loaded in this order: what gives the guest vsock, and the device of its datagrams.
var modules = []string{
	"net/vmw_vsock/vsock", "net/vmw_vsock/vmw_vsock_virtio_transport_common", "net/vmw_vsock/vmw_vsock_virtio_transport",
	"drivers/net/tun",
}

// modules6 give the guest IPv6.
var modules6 = []string{"lib/crc-ccitt", "net/ipv6/ipv6"}

// begin is the start of the guest's first program; the script follows.
const begin = `#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/tmp
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
ln -s /proc/self/fd /dev/fd
for m in /modules/*.ko; do insmod $m; done
ip link set lo up
`

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
}

// Guest is a virtual machine that runs.
type Guest struct {
	t     *testing.T
	lines chan string // of its console
	seen  []string
}

// Boot attaches a guest to a host, and boots it. At the end of the test the guest has powered off by itself,
// and nothing of it is left on the host.
func Boot(t *testing.T, h *testkit.Namespace, o Options) *Guest {
	t.Helper()
	if _, err := exec.LookPath("linux.uml"); err != nil {
		t.Skip("needs User-Mode Linux (Debian package user-mode-linux, x86-64)")
	}
	bin := testkit.BuildTsugiki(t)
	dir := t.TempDir()
	socket, root := filepath.Join(dir, "vsock"), filepath.Join(dir, "initramfs")
	initramfs(t, root, bin, o)
	preload := buildPreload(t, dir)
	attach(t, h, filepath.Join(bin, "tsugiki"), socket, filepath.Join(dir, "run"), o.Flags)

	ctx, cancel := context.WithTimeout(context.Background(), bootTimes*testkit.Patience)
	t.Cleanup(cancel)
	memory := max(o.Memory, 256)
	uml := h.Command(ctx, "linux.uml", fmt.Sprintf("mem=%dM", memory), "initrd="+root, "con=null", "con0=null,fd:1", "uml_dir="+dir, "umid=guest",
		"rdinit=/init", "quiet", "panic=-1", "virtio_uml.device="+socket+":19")
	// The guest's memory is a file in TMPDIR, which has to let programs be executed.
	uml.Env = append(os.Environ(), "TMPDIR=/dev/shm", "LD_PRELOAD="+preload)
	uml.SysProcAttr.Setpgid = true // it has helper processes
	uml.Cancel = func() error { return unix.Kill(-uml.Process.Pid, unix.SIGKILL) }
	console, err := uml.StdoutPipe()
	if err == nil {
		uml.Stderr = uml.Stdout
		err = uml.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	g := &Guest{t: t, lines: make(chan string, 1000)}
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
		if err := uml.Wait(); err != nil {
			t.Errorf("the guest ended: %v", err)
		}
		if t.Failed() {
			t.Logf("console of the guest:\n%s", strings.Join(g.seen, "\n"))
		}
	})
	return g
}

// buildPreload compiles what linux.uml needs on hosts with a newer CPU than it knows.
func buildPreload(t *testing.T, dir string) string {
	t.Helper()
	source, preload := filepath.Join(dir, "xstate.c"), filepath.Join(dir, "xstate.so")
	if err := os.WriteFile(source, xstate, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", preload, source).CombinedOutput()
	if err != nil {
		t.Fatalf("compile xstate.c: %v: %s", err, out)
	}
	return preload
}

// initramfs makes a guest's root.
func initramfs(t *testing.T, path, bin string, o Options) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	a := archive{w: z}
	for _, dir := range []string{"dev", "etc", "lib", "modules", "proc", "run", "sys", "tmp"} {
		a.dir(dir)
	}
	a.add("init", unix.S_IFREG|0o755, []byte(begin+o.Script+"\npoweroff -f\n"))
	a.add("etc/passwd", unix.S_IFREG|0o644, []byte("root:x:0:0::/:/bin/sh\n"))
	a.add("etc/group", unix.S_IFREG|0o644, []byte("root:x:0:\n"))
	a.copy("bin/busybox", testkit.Program(t, "busybox"))
	a.copy("bin/tsugiki", filepath.Join(bin, "tsugiki"))
	load := modules
	if o.IPv6 {
		load = append(slices.Clone(modules6), modules...)
	}
	for i, name := range load {
		found, _ := filepath.Glob("/usr/lib/uml/modules/*/kernel/" + name + ".ko")
		if len(found) == 0 {
			t.Fatalf("module %s of User-Mode Linux is missing; install the Debian package user-mode-linux", name)
		}
		a.copy(fmt.Sprintf("modules/%02d.ko", i), found[0])
	}
	for _, name := range o.Programs {
		program := testkit.Program(t, name)
		a.copy("bin/"+filepath.Base(name), program)
		for _, library := range libraries(t, program) {
			a.copy(strings.TrimPrefix(library, "/"), library)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Files)) {
		a.copy(name, o.Files[name])
	}
	for _, name := range slices.Sorted(maps.Keys(o.Texts)) {
		a.add(name, unix.S_IFREG|0o755, []byte(o.Texts[name]))
	}
	if err := a.end(); err == nil {
		err = z.Close()
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	} else {
		t.Fatal(err)
	}
}

// libraries returns the files that a program's loader opens, and the loader.
func libraries(t *testing.T, program string) (list []string) {
	t.Helper()
	out, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		if bytes.Contains(out, []byte("not a dynamic executable")) {
			return nil
		}
		t.Fatalf("find the libraries of %s: %v: %s", program, err, out)
	}
	for line := range strings.Lines(string(out)) {
		for _, word := range strings.Fields(line) {
			if strings.HasPrefix(word, "/") {
				list = append(list, word)
			}
		}
	}
	return list
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
