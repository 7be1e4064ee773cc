package sweep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
)

// TestFailure checks that the results so far are kept and that the next figure is measured.
func TestFailure(t *testing.T) {
	bad, good := &counting{name: "bad", fail: "b"}, &counting{name: "good"}
	r, err := run(t, &Sweep{Experiments: []Experiment{bad, good}, Dir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "bad: b: told to fail") {
		t.Fatalf("error: %v", err)
	}
	if r == nil || r.Figure("good") == nil || len(good.made) != 6 || !strings.Contains(r.Incomplete, "told to fail") {
		t.Errorf("results: %+v", r)
	}
	if _, err := run(t, &Sweep{Experiments: []Experiment{&counting{name: "bad", fail: "a"}}, Dir: "/no/such/folder"}); err == nil {
		t.Error("no error without a folder")
	}
}

// failsLater is a runtime that fails after two containers.
const failsLater = `#!/bin/sh
case " $* " in *" run "*)
	echo >>"$0.made"
	if [ "$(wc -l <"$0.made")" -gt 2 ]; then
		echo "out of containers" >&2
		exit 1
	fi
esac
exec runc "$@"
`

// climbing is a figure that starts three containers in each step, with each runtime.
type climbing struct{ runtimes []string }

func (climbing) Name() string { return "climbing" }

func (c climbing) Plan(*Options) (*Plan, error) {
	p := &Plan{Figure: &result.Figure{Name: "climbing"}, Rounds: 3, Containers: 3, Network: rig.None, Storage: rig.Overlay}
	for _, runtime := range c.runtimes {
		name := filepath.Base(runtime)
		run := func(ctx context.Context, e *Env) (samples []Sample, err error) {
			var there []*rig.Container
			for i := range 3 {
				one, err := e.Rig.Start(ctx, rig.Spec{Name: fmt.Sprint("c", i), Runtime: runtime, Args: []string{"sleep", "1000"}})
				if err != nil {
					return samples, err
				}
				there = append(there, one)
				samples = append(samples, Sample{Series: name, X: float64(i), Value: 1})
			}
			for _, one := range there {
				_, stopped := one.Stop(ctx)
				err = errors.Join(err, stopped)
			}
			return samples, err
		}
		p.Steps = append(p.Steps, Step{Key: name, Seconds: 1, Run: run})
	}
	return p, nil
}

// TestFailingVariant checks that the other variants are measured, that the failing variant's
// samples are kept, and that it is not tried a third time.
func TestFailingVariant(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte(failsLater), 0o755); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r, err := run(t, &Sweep{Experiments: []Experiment{climbing{[]string{broken, "runc"}}}, Dir: dir})
	if err == nil || r == nil {
		t.Fatalf("results %v, error %v", r, err)
	}
	for _, text := range []string{err.Error(), r.Incomplete} {
		if !strings.Contains(text, "climbing: broken: start container c2") || !strings.Contains(text, "out of containers") ||
			!strings.Contains(text, "2 failures") {
			t.Errorf("it says %q", text)
		}
	}
	f := r.Figure("climbing")
	if note := f.Notes[0]; !strings.Contains(note, "broken failed in round") || strings.Contains(note, "\n") {
		t.Errorf("note: %q", note)
	}
	for _, tt := range []struct {
		series string
		x      float64
		want   int
	}{{"runc", 0, 3}, {"runc", 2, 3}, {"broken", 0, 1}, {"broken", 1, 1}, {"broken", 2, 0}} {
		if got := len(f.Line(tt.series, nil).At(tt.x).Samples); got != tt.want {
			t.Errorf("%s at %v: %d samples, want %d", tt.series, tt.x, got, tt.want)
		}
	}
	if made, err := os.ReadFile(broken + ".made"); err != nil || len(made) != 4 { // three containers, then one
		t.Errorf("it was asked for %d containers: %v", len(made), err)
	}
	// After the runtime is repaired, the missing steps are measured.
	if err := os.Remove(broken + ".made"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(broken, []byte("#!/bin/sh\nexec runc \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r, err = run(t, &Sweep{Experiments: []Experiment{climbing{[]string{broken, "runc"}}}, Dir: dir, Resume: true})
	if err != nil || len(r.Figure("climbing").Line("broken", nil).At(2).Samples) != 3 {
		t.Errorf("resumed: %+v, %v", r, err)
	}
}
