package gate

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

const (
	x32       = 0x40000000
	allowCall = unix.SECCOMP_RET_ALLOW
	askCall   = unix.SECCOMP_RET_USER_NOTIF
)

// composed are the calls that a filter asks about by name, for all ABIs and whatever
// their arguments, as an engine makes it of a profile.
var composed = map[string]map[uint32][]uint32{
	"amd64": {
		unix.AUDIT_ARCH_X86_64: {
			16, 41, 42, 44, 46, 49, 50, 51, 54, 55, 56, 272, 307, 308,
			x32 + 41, x32 + 42, x32 + 44, x32 + 49, x32 + 50, x32 + 51, x32 + 56, x32 + 272, x32 + 308, x32 + 514, x32 + 541,
		},
		unix.AUDIT_ARCH_I386: {54, 102, 120, 310, 346, 359, 361, 362, 363, 365, 366, 367, 369, 370},
	},
	"arm64": {
		unix.AUDIT_ARCH_AARCH64: {29, 97, 198, 200, 201, 203, 204, 206, 208, 209, 211, 220, 268, 269},
	},
}

func composedFilter(ask uint32) []unix.SockFilter {
	jump := func(value uint32, ifFalse int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: uint8(ifFalse)}
	}
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	ret := func(value uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value}
	}
	var prog []unix.SockFilter
	for arch, numbers := range composed[runtime.GOARCH] {
		prog = append(prog, load(4), jump(arch, 2+2*len(numbers)), load(0))
		for _, n := range numbers {
			prog = append(prog, jump(n, 1), ret(ask))
		}
		prog = append(prog, ret(allowCall))
	}
	return append(prog, ret(allowCall))
}

// What the gate has no part in goes on as it is, and is not asked about.
func TestComposedFilter(t *testing.T) {
	program := filepath.Join(t.TempDir(), "composed")
	out, err := exec.Command(testkit.Program(t, "cc"), "-static", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/composed.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want, _ := runComposed(t, program, allowCall)
	got, s := runComposed(t, program, askCall)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what calls return (-unasked +asked):\n%s", diff)
	}
	for call := range s.Calls {
		c, passed := &s.Calls[call], uint64(0)
		if Call(call) == Listen && runtime.GOARCH == "amd64" {
			passed = 1
		}
		if c.Passed != passed || c.Refused != 0 {
			t.Errorf("%v: %d passed on and %d refused, want %d and 0", Call(call), c.Passed, c.Refused, passed)
		}
		if call != int(hello) && Call(call) != Listen && c.Answered == 0 {
			t.Errorf("%v was never asked about", Call(call))
		}
	}
}

// runComposed runs the program under a filter and returns what it wrote.
func runComposed(t *testing.T, program string, ask uint32) (string, Stats) {
	t.Helper()
	c := newContainer(t)
	dir, err := c.programs.Open()
	c.must(err)
	defer dir.Close()
	path := filepath.Join(c.dir, "results")
	var g *Gate
	ended := make(chan (<-chan struct{}), 1)
	c.process, err = launch.Start(launch.Spec{
		Path: program, Args: []string{"composed", path + ".part", path}, Netns: c.own.File(), CgroupDir: dir,
		Filter: composedFilter(ask), Caps: launch.Default,
	}, func(listener *os.File, _ int) (err error) {
		c.listener = listener
		// No socket is made on the host first, so that all are the kernel's own.
		g, err = Start(c.config(listener, func(config *Config) { config.HostFirst4 = false }))
		if err == nil {
			ended <- proceed(listener, g)
		}
		return err
	})
	c.must(err)
	defer c.listener.Close()
	var results []byte
	testkit.Eventually(t, func() (err error) {
		results, err = os.ReadFile(path)
		return err
	})
	s := c.stats(g)
	c.must(c.programs.Kill())
	_, err = unix.Wait4(c.process.PID, nil, 0, nil)
	c.must(err)
	<-<-ended
	return string(results), s
}

// proceed lets the kernel answer all that is asked.
func proceed(listener *os.File, g *Gate) <-chan struct{} {
	ended := make(chan struct{})
	g.Serve(func(a Request) {
		_ = reply(listener, a.ID, 0, unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE)
	}, nil, func(error) { close(ended) })
	return ended
}
