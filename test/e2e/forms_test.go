package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Programs of forms that a library loaded into them would miss, or that run as
// somebody else: the rules hold for all of them.

// clientForms are how testdata/client is built, where the machine can.
var clientForms = map[string][]string{
	"dynamic":   {"clang"},
	"static":    {"clang", "-static"},
	"musl":      {"musl-gcc", "-static"},
	"dynamic32": append([]string{"clang"}, flags32...),
	"static32":  append([]string{"clang", "-static"}, flags32...),
}

// flags32 are those for 32-bit programs, which share the kernel's headers with
// 64-bit ones.
var flags32 = []string{"-m32", "-idirafter", "/usr/include/x86_64-linux-gnu"}

var buildClients = sync.OnceValue(func() map[string]error {
	dir := filepath.Join(tmpDir, "client")
	failed := map[string]error{"": os.Mkdir(dir, 0o755)}
	for form, compiler := range clientForms {
		args := append(slices.Clone(compiler[1:]), "-O1", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(dir, form), "testdata/client/client.c")
		if out, err := exec.Command(compiler[0], args...).CombinedOutput(); err != nil {
			failed[form] = fmt.Errorf("%s: %w\n%s", strings.Join(compiler, " "), err, out)
		}
	}
	return failed
})

// client is the path of testdata/client in one of its forms.
func client(t *testing.T, form string) string {
	t.Helper()
	testkit.Program(t, clientForms[form][0])
	failed := buildClients()
	if err := failed[form]; err != nil {
		if strings.HasSuffix(form, "32") {
			t.Skipf("skip: needs the libraries of 32-bit programs (%v)", err)
		}
		t.Fatal(err)
	}
	return filepath.Join(tmpDir, "client", form)
}

// setuid is a program that root owns, copied so that everybody runs it as root.
func setuid(t *testing.T, program string) string {
	t.Helper()
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(openDir(t), "setuid")
	if err := testkit.WriteExecutable(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	return path
}

// formTest is a program that asks an HTTP server. Its arguments end with those
// that ask returns.
type formTest struct {
	name  string
	flags []string // of tsugiki
	line  []string
	euid  string // that it prints, if it is testdata/client
	// preloaded says that its calls come by a library, if one is preloaded.
	preloaded bool
	runtime   bool // one of netPrograms, which come last
}

func formTests(t *testing.T) []formTest {
	t.Helper()
	nobodys := []string{"--user", "nobody"}
	tests := []formTest{
		{"dynamic", nil, []string{client(t, "dynamic"), "libc"}, "0", true, false},
		{"dynamic-syscall", nil, []string{client(t, "dynamic"), "syscall"}, "0", false, false},
		{"static", nil, []string{client(t, "static"), "libc"}, "0", false, false},
		{"static-syscall", nil, []string{client(t, "static"), "syscall"}, "0", false, false},
		{"static-musl", nil, []string{client(t, "musl"), "libc"}, "0", false, false},
		{"user", nobodys, []string{client(t, "dynamic"), "libc"}, fmt.Sprint(nobody), true, false},
		{"setuid", nobodys, []string{setuid(t, client(t, "dynamic")), "libc"}, "0", false, false},
		{"setuid-syscall", nobodys, []string{setuid(t, client(t, "dynamic")), "syscall"}, "0", false, false},
		{"no-preload", nil, []string{"env", "-u", "LD_PRELOAD", client(t, "dynamic"), "libc"}, "0", false, false},
		{"no-environment", nil, []string{"env", "-i", client(t, "dynamic"), "libc"}, "0", false, false},
		{"no-preload-curl", nil, []string{"env", "-u", "LD_PRELOAD", "curl", "-sS"}, "", false, false},
		{"setpriv", nil, []string{"setpriv", "--reuid", "nobody", "--clear-groups", "--no-new-privs", client(t, "dynamic"), "libc"}, fmt.Sprint(nobody), true, false},
		{"go", nil, []string{static(t, "fetch")}, "", false, false},
	}
	for _, p := range netPrograms(t) {
		if p.fetch != nil {
			tests = append(tests, formTest{p.name, nil, p.fetch, "", !p.static, true})
		}
	}
	return tests
}

// ask is the end of the command line that asks the observer at an address.
func (f formTest) ask(addr string) []string {
	if f.euid != "" {
		return []string{"connect", addr, fmt.Sprint(observerPort)}
	}
	return []string{fmt.Sprintf("http://%s:%d", addr, observerPort)}
}

// TestForms lets programs reach one address of the remote and not another, at
// which the same server is.
func TestForms(t *testing.T) {
	t.Parallel()
	tests := formTests(t)
	all := inModes(t.Name(), []variant{{name: "new", egress: []string{"-e", fmt.Sprintf("%s/32:%d=out", remoteAddr4, observerPort)}}})
	native := slices.IndexFunc(tests, func(f formTest) bool { return f.runtime })
	runtimes := cover(all, len(tests)-native, always)
	picked := func(v variant, i int) bool { return i < native || runtimes(v, i-native) }
	each(t, all,
		func(t *testing.T, w *world, v variant) {
			o := observe(t, w.srv)
			// It is the rules that block: the host reaches both.
			curl(t, w.h, fmt.Sprintf("http://%s:%d", otherRemoteAddr4, observerPort), fmt.Sprintf("http://%s:%d", remoteAddr4, observerPort))
			o.take()
			for i, f := range tests {
				if !picked(v, i) {
					continue
				}
				t.Run(f.name, func(t *testing.T) {
					run := func(addr string) result {
						return try(t, v.run(t, w, slices.Concat(f.flags, []string{"--"}, f.line, f.ask(addr))...))
					}
					head := ""
					if f.euid != "" {
						head = f.euid + "\n"
					}
					allowed := run(remoteAddr4)
					seen := o.take()
					if f.preloaded || !v.mode.preloaded {
						if allowed.err != nil || allowed.stdout != head+sourceAddr4+"\n" || allowed.stderr != "" {
							t.Errorf("%v, printed %q, want %q; standard error %q", allowed.err, allowed.stdout, head+sourceAddr4+"\n", allowed.stderr)
						}
						checkAllFrom(t, seen, sourceAddr4)
					} else if allowed.err == nil || allowed.stdout != head || len(seen) != 0 {
						t.Errorf("%v, printed %q and was seen as %q, though no library is in it", allowed.err, allowed.stdout, seen)
					}
					if r := run(otherRemoteAddr4); r.err == nil || r.stdout != head {
						t.Errorf("reached an address that no rule names: %q, %q", r.stdout, r.stderr)
					}
					if seen := o.take(); len(seen) != 0 {
						t.Errorf("an address that no rule names saw %q", seen)
					}
				})
			}
		})
}

// TestForeignABI runs 32-bit programs, which are not grafted: they have what
// their own namespace has, and are told nothing.
func TestForeignABI(t *testing.T) {
	t.Parallel()
	if buildClients(); testkit.Programs("clang") != nil {
		t.Skip("skip: needs the program clang")
	}
	const number = 8200
	for _, m := range modes {
		for _, form := range []string{"dynamic32", "static32"} {
			t.Run(m.name+"-"+form, func(t *testing.T) {
				program := client(t, form)
				w := newWorld(t)
				o := observe(t, w.srv)
				translated := w.countTranslated(t)
				connect := func(v variant) result {
					v.mode = m
					return try(t, v.program(t, w, nil, program, "libc", "connect", remoteAddr4, fmt.Sprint(observerPort)))
				}
				r := connect(variant{egress: everything})
				if exitStatus(r.err) != 1 || r.stdout != "0\n" || !strings.HasSuffix(r.stderr, ": connect: Network is unreachable\n") || strings.Count(r.stderr, "\n") != 1 {
					t.Errorf("%v, printed %q and %q, want to be told that the network is unreachable, and nothing else", r.err, r.stdout, r.stderr)
				}
				if seen := o.take(); len(seen) != 0 {
					t.Errorf("the remote saw %q", seen)
				}
				// By the bridge it comes from the host's own address.
				r = connect(variant{bridge: true, egress: everything})
				if r.err != nil || r.stdout != "0\n"+hostAddr4+"\n" || r.stderr != "" {
					t.Errorf("%v, printed %q and %q", r.err, r.stdout, r.stderr)
				}
				checkAllFrom(t, o.take(), hostAddr4)
				if translated() == 0 {
					t.Error("no packet went over the bridge")
				}
				v := variant{bridge: true, egress: everything, mode: m}
				s := serve(t, v.program(t, w, []int{number}, program, "libc", "listen", fmt.Sprint(number)), port{w.c1, "tcp", number})
				if tcp := readIn(t, w.h, "/proc/thread-self/net/tcp"); strings.Contains(tcp, fmt.Sprintf(":%04X ", number)) {
					t.Errorf("the host has a socket at port %d:\n%s", number, tcp)
				}
				out := succeed(t, command(t, w.h, "socat", "-u", fmt.Sprintf("TCP:%s:%d", testkit.ContainerAddr4(0), number), "-"))
				if err := s.Wait(); err != nil || out != "hello\n" || s.output.String() != "0\n"+testkit.BridgeAddr4.String()+"\n" {
					t.Errorf("%v, answered %q and printed %q", err, out, s.output)
				}
			})
		}
	}
}
