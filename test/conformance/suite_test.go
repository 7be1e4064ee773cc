package conformance

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// jobs is how many cases of a column run at once. Many of them wait.
const jobs = 6

// endedWell is the status of a case whose steps all got the answers that Linux gives.
const endedWell = "exit 0"

// probeCase is a case and the first of its ports.
type probeCase struct {
	name string
	port int
}

// line is a line of output; lines are equal or not, and reported whole.
type line string

// result is what a run can show of itself.
type result struct {
	Output []line
	Status string
	stderr string
}

func (r result) text() string {
	var b strings.Builder
	for _, l := range r.Output {
		fmt.Fprintln(&b, string(l))
	}
	return b.String() + r.stderr
}

// rig is a topology in which one column runs.
type rig struct {
	top    *testkit.Topology
	prefix []string
	probe  string
	warm   int
}

func newRig(t *testing.T, col column, bin, probe string) *rig {
	t.Helper()
	top := testkit.Build(t, testkit.Options{Containers: col.containers})
	startPeer(t, top)
	return &rig{top: top, prefix: col.command(t, bin, top), probe: probe, warm: col.warm}
}

// run runs all cases in one container, each as a process of its own (probe/suite.c), and
// returns the results by the cases' names. The container is killed when no case ends for
// three times the tests' patience: a case ends itself after twice that (probe/probe.c). The
// cases that have not ended then have no status.
func (r *rig) run(t *testing.T, cases []probeCase) map[string]result {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	args := append(append([]string{}, r.prefix...), r.probe, "suite", dir, strconv.Itoa(jobs), fmt.Sprint("warm=", r.warm))
	args = append(args, fmt.Sprint("patience=", testkit.Patience.Milliseconds()))
	args = append(args, peerArgs()...)
	cmd := r.top.Host.Command(ctx, args[0], args[1:]...)
	var todo strings.Builder
	for _, c := range cases {
		fmt.Fprintln(&todo, c.name, c.port)
	}
	cmd.Stdin = strings.NewReader(todo.String())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	statuses := map[string]string{}
	const times = 3
	hangs := time.AfterFunc(times*testkit.Patience, cancel)
	for lines := bufio.NewScanner(out); lines.Scan(); hangs.Reset(times * testkit.Patience) {
		name, status, _ := strings.Cut(lines.Text(), " ")
		statuses[name] = status
	}
	if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
		t.Errorf("the run of all cases: %v\n%s", err, &stderr)
	}
	results := map[string]result{}
	for _, c := range cases {
		results[c.name] = readResult(t, filepath.Join(dir, c.name), statuses[c.name])
	}
	return results
}

// readResult reads what a case has printed.
func readResult(t *testing.T, path, status string) result {
	t.Helper()
	res := result{Status: status}
	if status == "" {
		res.Status = "no end in sight"
	}
	text := map[string]string{}
	for _, stream := range []string{".out", ".err"} {
		data, err := os.ReadFile(path + stream)
		if err != nil && status != "" {
			t.Error(err)
		}
		text[stream] = string(data)
	}
	for l := range strings.SplitSeq(strings.TrimSpace(text[".out"]), "\n") {
		res.Output = append(res.Output, line(l))
	}
	res.stderr = text[".err"]
	return res
}
