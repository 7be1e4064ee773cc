package machine

import (
	"compress/gzip"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// An initramfs has what the root says, with the libraries of programs, and each folder before what is in
// it.
func TestRoot(t *testing.T) {
	testkit.Program(t, "busybox")
	root := Root{Script: "echo hello", Texts: map[string]string{"usr/share/text": "words"}}
	if err := root.AddProgram("ls"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "initramfs")
	if err := root.Write(path); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command("busybox", "cpio", "-i", "-v")
	cmd.Stdin, cmd.Dir = z, dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	names := strings.Fields(string(out))
	for _, name := range []string{"init", "bin/ls", "bin/busybox", "usr/share/text"} {
		at := slices.Index(names, name)
		if at < 0 || strings.Contains(name, "/") && !slices.Contains(names[:at], filepath.Dir(name)) {
			t.Errorf("no %s, or not in its folder: %q", name, names)
		}
	}
	if !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, "libc.so") }) {
		t.Errorf("the library of ls is missing: %q", names)
	}
	for name, want := range map[string]string{"init": "\necho hello\npoweroff -f\n", "usr/share/text": "words"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.HasSuffix(string(text), want) {
			t.Errorf("%s is %q, %v", name, text, err)
		}
	}
}

// A static program has no libraries.
func TestStaticProgram(t *testing.T) {
	testkit.Program(t, "busybox")
	root := Root{}
	if err := root.AddProgram("busybox"); err != nil {
		t.Fatal(err)
	}
	if len(root.Files) != 1 {
		t.Errorf("it has %v", root.Files)
	}
	if err := root.AddProgram("no-such-program"); err == nil {
		t.Error("a program that is not there was added")
	}
}

func TestCommand(t *testing.T) {
	m := Machine{Accelerator: TCG, Kernel: "/k", Initramfs: "/i", Vsock: "/v", NAT: true, Forwards: []string{"tcp:192.0.2.1:80-:80"}}
	line := strings.Join(m.qemu(2100000), " ")
	for _, want := range []string{"-kernel /k/vmlinuz", "-initrd /i", "path=/v", "user,id=card,hostfwd=tcp:192.0.2.1:80-:80", "virtio-net-pci", "tsc_early_khz=2100000"} {
		if !strings.Contains(line, want) {
			t.Errorf("no %q in %s", want, line)
		}
	}
	m = Machine{Accelerator: UML, TAP: "tap7"}
	if line := strings.Join(m.uml(), " "); !strings.Contains(line, "ifname=tap7,") || strings.Contains(line, "virtio_uml") {
		t.Error(line)
	}
	m.NAT = true
	if _, err := m.Command(t.Context(), nil); err == nil {
		t.Error("User-Mode Linux was given address translation")
	}
}

// The rate is that of this machine's counter, which ticks at 0.5 to 10 GHz.
func TestTSC(t *testing.T) {
	khz, err := tscKHz()
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		t.Skipf("skip: needs perf_event_open(2): %v", err)
	}
	if err != nil || khz < 500_000 || khz > 10_000_000 {
		t.Errorf("%d kHz, %v", khz, err)
	}
	file := filepath.Join(t.TempDir(), "cpuinfo")
	for text, want := range map[string]uint64{"processor\t: 0\ncpu MHz\t\t: 2100.5\n": 2100500, "cpu MHz : x\n": 0, "processor: 0\n": 0} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := cpuKHz(file); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d kHz, %v", text, got, err)
		}
	}
}
