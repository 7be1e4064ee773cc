package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Of the ports that the rules name, each case has its own.
const (
	firstPort = 8100
	lastPort  = 8299
)

// column is one way to run every case.
type column struct {
	name string
	// build is which probe runs; "" is the dynamic one. What a probe does on a
	// bare host is asked of the same one, but for the static one, which is
	// compared with the dynamic one.
	build string
	// containers is the number of containers that the topology needs.
	containers int
	// warm is how often the probe makes sockets of all kinds before the case
	// does: the shim gets to work only in programs that make many.
	warm int
	// sanitized says that the C parts are those with sanitizers.
	sanitized bool
	// command is what comes before the probe's own arguments, with the binaries of a folder.
	command func(t *testing.T, bin string, top *testkit.Topology) []string
}

// everything are the rules that leave only the loopback to the container.
var everything = []string{"-e", "0.0.0.0/0=out", "-e", "::/0=out6", "-e", broadcast + "=out"}

// remoteOnly are rules that name one network; a socket's side is not known
// before it is bound or connected.
var remoteOnly = []string{"-e", "198.51.100.0/24=out", "-e", "2001:db8:1::/64=out6", "-e", broadcast + "=out"}

// broadcast has to be named, so that programs may send to the broadcasts of a link.
const broadcast = "255.255.255.255/32"

var columns = []column{
	{name: "static", build: "static", command: bare},
	{name: "seccomp", command: graft("seccomp", everything)},
	{name: "preload", warm: 5, command: graft("preload", everything)},
	{name: "auto", warm: 5, command: graft("auto", everything)},
	{name: "musl", build: "musl", warm: 5, command: graft("auto", everything)},
	{name: "partial", build: "static", containers: 1, command: graft("seccomp", remoteOnly)},
	{name: "partial-preload", warm: 5, containers: 1, command: graft("preload", remoteOnly)},
	{name: "partial-auto", warm: 5, containers: 1, command: graft("auto", remoteOnly)},
	{name: "sanitized-preload", sanitized: true, warm: 5, command: graft("preload", everything)},
	{name: "sanitized-auto", sanitized: true, warm: 5, command: graft("auto", everything)},
	{name: "sanitized-partial-preload", sanitized: true, warm: 5, containers: 1, command: graft("preload", remoteOnly)},
	{name: "sanitized-partial-auto", sanitized: true, warm: 5, containers: 1, command: graft("auto", remoteOnly)},
}

func bare(*testing.T, string, *testkit.Topology) []string { return nil }

// graft runs the probe under tsugiki run, in the topology's container if it
// has one and in a new namespace otherwise.
func graft(mode string, egress []string) func(*testing.T, string, *testkit.Topology) []string {
	return func(t *testing.T, bin string, top *testkit.Topology) []string {
		netns := "new"
		if len(top.Containers) > 0 {
			netns = top.Containers[0].Path()
		}
		args := []string{
			filepath.Join(bin, "tsugiki"), "run",
			"--run-dir", t.TempDir(), "--mode", mode, "--netns", netns,
			"--endpoint", "out type ipv4 addr 0.0.0.0 port dynamic",
			"--endpoint", "out6 type ipv6 addr :: port dynamic",
			"--endpoint", "in type ipv4 addr 0.0.0.0 port dynamic",
			"--endpoint", "in6 type ipv6 addr :: port dynamic",
		}
		return slices.Concat(args, ingress(len(top.Containers) == 0), egress, []string{"--"})
	}
}

// ingress are the rules for the ports of all cases: one rule for each port, which needs no traps, or
// one for all.
func ingress(each bool) []string {
	size := lastPort - firstPort
	if each {
		size = 0
	}
	var args []string
	for first := firstPort; first <= lastPort; first += size + 1 {
		ports := fmt.Sprintf("%d-%d", first, first+size)
		args = append(args, "-i", "0.0.0.0:"+ports+"=in", "-i", "[::]:"+ports+"=in6")
	}
	return args
}

func TestMain(m *testing.M) {
	if err := testkit.DefaultParallel("2"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestConformance runs every case in every column. All cases of a column run in one
// container, so a -run that names a case runs the column, and judges that case only.
//
// The sanitizers' findings are files, which fail the test at its end.
func TestConformance(t *testing.T) {
	sanitized, findings := testkit.BuildSanitized(t)
	t.Cleanup(func() { reportFindings(t, findings) })
	bin := map[bool]string{false: testkit.BuildTsugiki(t), true: sanitized}
	probes := buildProbes(t)
	cases := listCases(t, probes[""])
	reference := bareRun(t, probes[""], cases)
	musl := bareRun(t, probes["musl"], cases)
	t.Run("bare", func(t *testing.T) {
		t.Parallel()
		results := reference(t)
		for _, c := range cases {
			r := results[c.name]
			t.Run(c.name, func(t *testing.T) {
				t.Logf("%s\n%s", r.Status, r.text())
				if r.Status != endedWell {
					t.Error("a step got another answer than Linux gives")
				}
			})
		}
	})
	for _, col := range columns {
		t.Run(col.name, func(t *testing.T) {
			t.Parallel()
			bare := reference
			if col.build == "musl" {
				bare = musl
			}
			want, got := bare(t), newRig(t, col, bin[col.sanitized], probes[col.build]).run(t, cases)
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					compare(t, differences[col.name][c.name], want[c.name], got[c.name])
				})
			}
		})
	}
}

// bareRun returns what the cases print on a bare host. They run once.
func bareRun(t *testing.T, probe string, cases []probeCase) func(*testing.T) map[string]result {
	rig := newRig(t, column{command: bare}, "", probe)
	var once sync.Once
	var results map[string]result
	return func(t *testing.T) map[string]result {
		once.Do(func() { results = rig.run(t, cases) })
		return results
	}
}

// reportFindings fails the test with what the sanitizers have written into a folder.
func reportFindings(t *testing.T, folder string) {
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		t.Error(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		t.Errorf("%s (%v):\n%s", filepath.Base(f), err, text)
	}
}

// compare judges a case. Known is its documented difference, if there is one: the first line that
// differs is always the same.
func compare(t *testing.T, known difference, want, got result) {
	t.Helper()
	opts := cmp.Options{
		cmp.Comparer(func(a, b line) bool { return a == b }),
		cmpopts.IgnoreUnexported(result{}),
	}
	diff := cmp.Diff(want, got, opts)
	switch first := firstDifference(want, got); {
	case known.why != "" && diff != "" && first == known.first:
		t.Logf("documented: %s\n%s", known.why, diff)
	case known.why != "" && diff != "":
		t.Errorf("differs in another way than documented: first in %q, not in %q\n%s", first, known.first, diff)
	case known.why != "":
		t.Errorf("the program no longer notices: take the case off the documented differences (%s)", known.why)
	case diff != "":
		t.Errorf("the program noticed (-bare +grafted):\n%s%s", diff, got.stderr)
	}
}

// firstDifference is the first line that the reference does not have in its place.
func firstDifference(want, got result) line {
	for i, l := range got.Output {
		if i >= len(want.Output) || l != want.Output[i] {
			return l
		}
	}
	return line(got.Status)
}

// buildProbes compiles the probe with each C library and links it: "" with glibc's dynamic loader,
// "static" with none, "musl" with musl's.
func buildProbes(t *testing.T) map[string]string {
	t.Helper()
	glibc, musl := testkit.Program(t, "gcc"), testkit.Program(t, "musl-gcc")
	multiarch, err := exec.Command(glibc, "-print-multiarch").Output()
	if err != nil {
		t.Fatalf("find the kernel's headers: %v", err)
	}
	// musl-gcc does not bring the kernel's headers.
	kernel := []string{"-idirafter", "/usr/include", "-idirafter", "/usr/include/" + strings.TrimSpace(string(multiarch))}
	objects := compileProbe(t, glibc)
	return map[string]string{
		"":       linkProbe(t, glibc, objects),
		"static": linkProbe(t, glibc, objects, "-static"),
		"musl":   linkProbe(t, musl, compileProbe(t, musl, kernel...)),
	}
}

// compileProbe returns the folder of the probe's objects.
func compileProbe(t *testing.T, compiler string, flags ...string) string {
	t.Helper()
	sources, err := filepath.Glob("probe/*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("find sources of the probe: %v", err)
	}
	for i, source := range sources {
		if sources[i], err = filepath.Abs(source); err != nil {
			t.Fatal(err)
		}
	}
	flags = append(flags, "-c", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")
	cmd := exec.Command(compiler, append(flags, sources...)...)
	cmd.Dir = t.TempDir() // where the objects are put
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compile probe: %v\n%s", err, text)
	}
	return cmd.Dir
}

func linkProbe(t *testing.T, compiler, objects string, flags ...string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(objects, "*.o"))
	if err != nil {
		t.Fatal(err)
	}
	probe := filepath.Join(t.TempDir(), "probe")
	args := append(append(flags, "-pthread", "-o", probe), files...)
	if text, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("link probe: %v\n%s", err, text)
	}
	return probe
}

// listCases asks the probe for its cases and gives each its ports.
func listCases(t *testing.T, probe string) []probeCase {
	t.Helper()
	out, err := exec.Command(probe, "list").Output()
	if err != nil {
		t.Fatalf("list cases: %v", err)
	}
	var cases []probeCase
	next := firstPort
	for _, entry := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		name, count, _ := strings.Cut(entry, " ")
		n, err := strconv.Atoi(count)
		if err != nil {
			t.Fatalf("list cases: %q: %v", entry, err)
		}
		cases = append(cases, probeCase{name, next})
		next += n
	}
	if next > lastPort+1 {
		t.Fatalf("cases need ports up to %d, rules name them up to %d", next-1, lastPort)
	}
	return cases
}
