package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// study is a density study with folders of its own.
type study struct {
	t        *testing.T
	out, dir string
	tsugiki  string
}

func newStudy(t *testing.T) *study {
	t.Helper()
	s := &study{t: t, out: filepath.Join(t.TempDir(), "out"), dir: t.TempDir()}
	s.tsugiki = filepath.Join(testkit.BuildTsugiki(t), "tsugiki")
	t.Cleanup(s.checkGone)
	return s
}

// run makes one, or a part; it returns what was printed.
func (s *study) run(args ...string) (string, error) {
	out, err := s.command(args...).CombinedOutput()
	return string(out), err
}

func (s *study) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), programPatience)
	s.t.Cleanup(cancel)
	return exec.CommandContext(ctx, s.tsugiki, append([]string{"density", "run", "--quick", "-o", s.out, "--work-dir", s.dir}, args...)...)
}

// results are some of what results.json has.
func (s *study) results() (r struct {
	Incomplete string
	Figures    []struct {
		Name   string
		Series []struct{ Points []struct{ Samples []float64 } }
	}
},
) {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.out, "results.json"))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// awaitStep waits until a step was made.
func (s *study) awaitStep() {
	s.t.Helper()
	testkit.Eventually(s.t, func() error {
		data, err := os.ReadFile(filepath.Join(s.out, "journal.jsonl"))
		if err == nil && bytes.Count(data, []byte("\n")) < 2 {
			err = errors.New("nothing was measured")
		}
		return err
	})
}

// groups are those of rigs whose folders were in ours.
func (s *study) groups() (left []string) {
	files, _ := filepath.Glob("/run/tsugiki-density/*")
	for _, file := range files {
		if dir, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(dir), s.dir) {
			left = append(left, filepath.Base(file))
		}
	}
	return left
}

func (s *study) checkGone() {
	if left := s.groups(); len(left) > 0 {
		s.t.Errorf("rigs are left: %v", left)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil || len(entries) > 0 {
		s.t.Errorf("in the folder is %v (%v)", entries, err)
	}
}

// TestDensity interrupts a study, which is then resumed.
func TestDensity(t *testing.T) {
	t.Parallel()
	s := newStudy(t)
	flags := []string{"--figure", "start,overlay-create", "--network", "none,graft", "--max", "2", "--rounds", "3"}
	cmd := s.command(flags...)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.awaitStep()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said.String(), "--resume continues") {
		t.Fatalf("interrupted: %v: %s", err, said.String())
	}
	if r := s.results(); !strings.Contains(r.Incomplete, "interrupted") || len(r.Figures) == 0 {
		t.Errorf("results: %+v", r)
	}
	s.checkGone()
	if out, err := s.run(append(flags, "--resume", "--max", "4")...); err == nil || !strings.Contains(out, "other options") {
		t.Errorf("resumed with another size: %v: %s", err, out)
	}
	if out, err := s.run(append(flags, "--resume")...); err != nil {
		t.Fatalf("resume: %v: %s", err, out)
	}
	r := s.results()
	if r.Incomplete != "" || len(r.Figures) != 2 {
		t.Errorf("results: %+v", r)
	}
	for _, f := range r.Figures {
		for _, line := range f.Series {
			for _, p := range line.Points {
				if len(p.Samples) != 3 {
					t.Errorf("%s: %d samples, want one of each round", f.Name, len(p.Samples))
				}
			}
		}
	}
	for _, name := range []string{"report.html", "results.csv", "results.md"} {
		if data, err := os.ReadFile(filepath.Join(s.out, name)); err != nil || !bytes.Contains(data, []byte("overlay-create")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDensityKilled kills a study, after which the next removes what it has left.
func TestDensityKilled(t *testing.T) {
	t.Parallel()
	s := newStudy(t)
	cmd := s.command("--figure", "start", "--max", "2", "--rounds", "50")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.awaitStep()
	if len(s.groups()) != 1 {
		t.Error("it has no rig")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if out, err := s.run("--force", "--figure", "overlay-create"); err != nil {
		t.Fatalf("the next: %v: %s", err, out)
	}
	s.checkGone()
}

// TestDensityFullDisk fills the disk under a study. What it has measured stays.
func TestDensityFullDisk(t *testing.T) {
	t.Parallel()
	s := newStudy(t)
	// In a mount namespace of its own is a disk of a size that is enough.
	script := `mount -t tmpfs -o size=256m small "$1"; shift
"$@" & while ! grep -qs '"round":0' ` + filepath.Join(s.out, "journal.jsonl") + `; do sleep 0.05; done
dd if=/dev/zero of=` + s.dir + `/full bs=1M 2>/dev/null; wait $!; status=$?; rm ` + s.dir + `/full; ls -A ` + s.dir + `; exit $status`
	cmd := s.command("--figure", "start", "--max", "2", "--rounds", "50")
	args := append([]string{"--mount", "sh", "-c", script, "sh", s.dir}, cmd.Args...)
	ctx, cancel := context.WithTimeout(context.Background(), programPatience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	full := exec.CommandContext(ctx, "unshare", args...)
	full.Stdout, full.Stderr = &stdout, &stderr
	err := full.Run()
	if full.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), "no space left on device") || stdout.Len() > 0 {
		t.Fatalf("on a full disk: %v: %s%s", err, stdout.String(), stderr.String())
	}
	if r := s.results(); !strings.Contains(r.Incomplete, "no space left") || len(r.Figures) != 1 {
		t.Errorf("results: %+v", r)
	}
}

// TestDensityFullOutput has no room for what is measured. When it has, the study goes on.
func TestDensityFullOutput(t *testing.T) {
	t.Parallel()
	s := newStudy(t)
	const rounds = 8 // more than the disk has room for
	script := `mkdir "$1" && mount -t tmpfs -o size=8k small "$1" && shift || exit 9
"$@"; test $? = 1 || exit 9
mount -o remount,size=16m small "$0" && "$@" --resume && cp "$0/results.json" "$0/.."`
	cmd := s.command("--figure", "overlay-create", "--rounds", strconv.Itoa(rounds))
	full := exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, s.out, s.out}, cmd.Args...)...)
	var said bytes.Buffer
	full.Stderr = &said
	if err := full.Run(); err != nil || !strings.Contains(said.String(), "no space left on device") {
		t.Fatalf("on a full disk: %v: %s", err, said.String())
	}
	s.out = filepath.Dir(s.out)
	r := s.results()
	if r.Incomplete != "" || len(r.Figures) != 1 {
		t.Fatalf("results: %+v", r)
	}
	for _, line := range r.Figures[0].Series {
		for _, p := range line.Points {
			if len(p.Samples) != rounds {
				t.Errorf("%d samples, want %d", len(p.Samples), rounds)
			}
		}
	}
}

// TestDensityInterrupted interrupts a study at moments that nobody chose.
func TestDensityInterrupted(t *testing.T) {
	t.Parallel()
	for range 6 {
		s := newStudy(t)
		cmd := s.command("--figure", "network", "--max", "2", "--rounds", "20")
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		moment := rand.N(4 * time.Second)
		time.Sleep(moment) // it is what is tested
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		// Before it has begun, the signal ends it.
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 && signalOf(err) != syscall.SIGINT {
			t.Errorf("interrupted after %v: %v: %s", moment, err, said.String())
		}
		s.checkGone()
	}
}

// TestDensityTwice runs one study beside another: in the same folder it is refused, in
// another one it does not notice the first.
func TestDensityTwice(t *testing.T) {
	t.Parallel()
	first := newStudy(t)
	cmd := first.command("--figure", "start", "--max", "2", "--rounds", "50")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first.awaitStep()
	for _, resume := range []string{"--resume=false", "--resume"} {
		if out, err := first.run("--figure", "start", "--max", "2", "--rounds", "50", resume); err == nil || !strings.Contains(out, "another run measures into") {
			t.Errorf("in the same folder with %s: %v: %s", resume, err, out)
		}
	}
	second := newStudy(t)
	if out, err := second.run("--figure", "start", "--max", "2", "--network", "bridge"); err != nil {
		t.Errorf("in another folder: %v: %s", err, out)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // interrupted
	if r := first.results(); !strings.Contains(r.Incomplete, "interrupted") {
		t.Errorf("the first: %+v", r)
	}
}

// TestDensityLimits has a study look at limits that are too low.
func TestDensityLimits(t *testing.T) {
	t.Parallel()
	s := newStudy(t)
	group := filepath.Join("/sys/fs/cgroup/pids", "tsugiki-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(group, 0o755); errors.Is(err, fs.ErrNotExist) {
		t.Skip("skip: needs the v1 controller pids")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Rmdir(group); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(group, "pids.max"), []byte("45"), 0); err != nil {
		t.Fatal(err)
	}
	for want, wrap := range map[string][]string{
		"ulimit -Hn N":       {"prlimit", "--nofile=300:300"},
		"raise its pids.max": {"sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(group, "cgroup.procs")},
		"--work-dir":         {"unshare", "--mount", "sh", "-c", `mount -t tmpfs -o size=12m small "$0" && exec "$@"`, s.dir},
	} {
		args := append(wrap, s.command("--figure", "network", "--max", "100").Args...)
		cmd := exec.Command(args[0], args[1:]...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), want) || !strings.Contains(string(out), "no room") || bytes.Count(out, []byte("\n")) != 1 {
			t.Errorf("%v: %v: %s", wrap, err, out)
		}
	}
}
