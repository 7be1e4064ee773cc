package vm

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

// tsugiki is the command under test.
var tsugiki string

// preload is testdata/xstate.c, compiled.
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
	tsugiki, preload = filepath.Join(bin, "tsugiki"), filepath.Join(dir, "xstate.so")
	out, err := exec.Command("cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", preload, "testdata/xstate.c").CombinedOutput()
	if err != nil {
		return fmt.Errorf("compile testdata/xstate.c: %w: %s", err, out)
	}
	return nil
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

// modules are what gives User-Mode Linux vsock, in the order in which they are loaded.
var modules = []string{"vsock", "vmw_vsock_virtio_transport_common", "vmw_vsock_virtio_transport"}

// begin is the start of the guest's first program; the test's script follows.
const begin = `#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
ip link set lo up
for m in /lib/*.ko; do insmod $m; done
`

// initramfs makes a guest's root, which has files besides. Those of extra are in the folder of that name.
func initramfs(t *testing.T, path, script string, extra ...string) {
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
	for _, dir := range []string{"bin", "dev", "etc", "extra", "lib", "proc", "sys", "tmp"} {
		a.add(dir, unix.S_IFDIR|0o755, nil)
	}
	a.add("init", unix.S_IFREG|0o755, []byte(begin+script+"\npoweroff -f\n"))
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	a.copy("bin/busybox", busybox)
	a.copy("bin/tsugiki", tsugiki)
	a.copy("bin/program", "/proc/self/exe")
	for _, file := range extra {
		a.copy("extra/"+filepath.Base(file), file)
	}
	for i, name := range modules {
		found, _ := filepath.Glob("/usr/lib/uml/modules/*/kernel/net/vmw_vsock/" + name + ".ko")
		if len(found) == 0 {
			t.Fatalf("module %s of User-Mode Linux is missing; install the Debian package user-mode-linux", name)
		}
		a.copy(fmt.Sprintf("lib/%d.ko", i), found[0])
	}
	a.add("TRAILER!!!", 0, nil)
	if err := errors.Join(a.err, z.Close(), f.Close()); err != nil && !errors.Is(err, fs.ErrClosed) {
		t.Fatal(err)
	}
}

// archive writes a cpio archive, in the format of the kernel's initramfs
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w    io.Writer
	last int
	err  error
}

func (a *archive) add(name string, mode uint32, data []byte) {
	a.last++
	links := 1
	var b bytes.Buffer
	fmt.Fprintf(&b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.last, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	pad := func() { b.Write(make([]byte, -b.Len()&3)) }
	pad()
	b.Write(data)
	pad()
	_, err := a.w.Write(b.Bytes())
	a.err = errors.Join(a.err, err)
}

func (a *archive) copy(name, from string) {
	data, err := os.ReadFile(from)
	a.err = errors.Join(a.err, err)
	a.add(name, unix.S_IFREG|0o755, data)
}

// guest is a virtual machine that runs.
type guest struct {
	t     *testing.T
	lines chan string // of its console
	seen  []string

	kill   func() error // ends the VMM
	killed bool         // the test has done so
}

// boot attaches a guest to a host, with flags of tsugiki guest attach, and boots it. At the end of the test
// the guest has powered off by itself, and nothing of it is left on the host.
func boot(t *testing.T, h *testkit.Namespace, script string, flags ...string) *guest {
	t.Helper()
	if _, err := exec.LookPath("linux.uml"); err != nil {
		t.Skip("needs User-Mode Linux (Debian package user-mode-linux, x86-64)")
	}
	dir := t.TempDir()
	socket, root := filepath.Join(dir, "vsock"), filepath.Join(dir, "initramfs")
	initramfs(t, root, script)
	attach(t, h, socket, filepath.Join(dir, "run"), flags)
	return start(t, h, dir, socket, root)
}

// start boots a guest whose device somebody serves at a socket. The VMM is started by words, which may be
// none.
func start(t *testing.T, h *testkit.Namespace, dir, socket, root string, by ...string) *guest {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*testkit.Patience)
	t.Cleanup(cancel)
	words := append(by, "linux.uml", "mem=256M", "initrd="+root, "con=null", "con0=null,fd:1", "uml_dir="+dir, "umid=guest",
		"rdinit=/init", "quiet", "panic=-1", "virtio_uml.device="+socket+":19")
	uml := h.Command(ctx, words[0], words[1:]...)
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
	g := &guest{t: t, lines: make(chan string, 1000), kill: uml.Cancel}
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
		if err := uml.Wait(); err != nil && !g.killed {
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
