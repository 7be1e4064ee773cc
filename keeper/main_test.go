package keeper

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/netns"
)

const source = "c"

// built is the folder TestMain builds the C programs into.
var built string

var (
	tcp = Kind{unix.AF_INET, unix.SOCK_STREAM, 0}
	udp = Kind{unix.AF_INET, unix.SOCK_DGRAM, 0}
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getenv(supervisorEnv) != "" {
		return supervise()
	}
	dir, err := os.MkdirTemp("", "keeper")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	built = dir
	return m.Run()
}

// build compiles a program once and skips the test where the compiler is
// missing.
func build(t testing.TB, name string, compiler []string, sources ...string) string {
	t.Helper()
	path := filepath.Join(built, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if _, err := exec.LookPath(compiler[0]); err != nil {
		t.Skipf("skip: needs %s", compiler[0])
	}
	readSources(t)
	args := append(compiler[1:], "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", path)
	if out, err := exec.Command(compiler[0], append(args, sources...)...).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return path
}

// readSources opens whatever is compiled, so that go test knows of it and
// forgets a result when a source has changed.
func readSources(t testing.TB) {
	t.Helper()
	for _, pattern := range []string{source + "/*.[ch]", "../native/privilege/*.[ch]", "testdata/*.c"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no sources in %s (%v)", pattern, err)
		}
		for _, file := range files {
			if _, err := os.ReadFile(file); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func sources() []string {
	return []string{source + "/keeper.c", source + "/start.c", source + "/protocol.c", "../native/privilege/privilege.c"}
}

func program(t testing.TB) string {
	t.Helper()
	return build(t, Program, []string{"musl-gcc", "-static", "-Os"}, sources()...)
}

// sanitized is a keeper that aborts on any memory error or undefined behaviour.
func sanitized(t testing.TB) string {
	t.Helper()
	return build(t, Program+"-sanitized",
		[]string{"gcc", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"},
		append(sources(), "../native/sanitize/options.c")...)
}

// needRoot skips what only root can do.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
}

func start(t testing.TB, cfg Config) *Keeper {
	t.Helper()
	if cfg.Binary == "" {
		cfg.Binary = program(t)
	}
	k, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

func socket(t testing.TB, k *Keeper, kind Kind) int {
	t.Helper()
	fd, err := k.Socket(kind)
	if err != nil {
		t.Fatalf("socket %v: %v", kind, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func newNetns(t testing.TB) *netns.NS {
	t.Helper()
	needRoot(t)
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// newGroup makes a cgroup that is gone after the test.
func newGroup(t testing.TB, parent string) *cgroup.Group {
	t.Helper()
	needRoot(t)
	if parent == "" {
		own, err := cgroup.Own()
		if err != nil {
			t.Skipf("skip: needs cgroup v2 (%v)", err)
		}
		parent = own
	}
	g, err := cgroup.Create(parent, fmt.Sprintf("keeper-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func open(t testing.TB, f func() (*os.File, error)) *os.File {
	t.Helper()
	file, err := f()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}
