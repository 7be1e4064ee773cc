package sweep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
)

// counting is an experiment that starts a container in each step and counts.
type counting struct {
	name   string
	fail   string // a step that fails
	cancel func() // called by the step after which the sweep ends
	made   []string
}

func (c *counting) Name() string { return c.name }

func (c *counting) Plan(o *Options) (*Plan, error) {
	p := &Plan{
		Figure: &result.Figure{Name: c.name, Title: "Counting", Y: result.Axis{Unit: "1"}},
		Rounds: 3, Containers: 1, Network: rig.None, Storage: rig.Overlay,
		Tools: map[string]string{"abacus": "1"},
		Prepare: func(_ context.Context, r *rig.Rig) error {
			return r.Put("/number", []byte("42\n"), 0o644)
		},
	}
	for _, key := range []string{"a", "b"} {
		p.Steps = append(p.Steps, Step{Key: key, Seconds: 1, Run: func(ctx context.Context, e *Env) ([]Sample, error) {
			return c.measure(ctx, e, key)
		}})
	}
	return p, nil
}

func (c *counting) measure(ctx context.Context, e *Env, key string) ([]Sample, error) {
	if key == c.fail {
		return nil, errors.New("told to fail")
	}
	one, err := e.Rig.Start(ctx, rig.Spec{Name: key, Args: []string{"cat", "/number"}})
	if err != nil {
		return nil, err
	}
	line, err := one.Line(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := one.Stop(ctx); err != nil {
		return nil, err
	}
	c.made = append(c.made, fmt.Sprintf("%s%d", key, e.Round))
	if c.cancel != nil && len(c.made) == 4 {
		c.cancel()
		return nil, ctx.Err()
	}
	var value float64
	_, err = fmt.Sscan(line, &value)
	return []Sample{{Series: key, X: 1, Value: value, Each: []float64{1, 1}, Events: []float64{1, 2, 3}, Extra: map[string]float64{"psi": 5}}}, err
}

func run(t *testing.T, s *Sweep) (*result.Results, error) {
	t.Helper()
	return runIn(t.Context(), t, s) // each step has its own limit
}

func runIn(ctx context.Context, t *testing.T, s *Sweep) (*result.Results, error) {
	t.Helper()
	var out bytes.Buffer
	s.Options.Runtimes = []string{"runc"}
	s.WorkDir, s.Progress, s.Log = t.TempDir(), &out, slog.New(slog.DiscardHandler)
	r, err := s.Run(ctx)
	if left, _ := os.ReadDir(s.WorkDir); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	return r, err
}

func TestRun(t *testing.T) {
	one, two, dir := &counting{name: "one"}, &counting{name: "two"}, t.TempDir()
	r, err := run(t, &Sweep{Experiments: []Experiment{one, two}, Dir: dir, Command: []string{"again"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(one.made) != 6 || len(two.made) != 6 {
		t.Errorf("made %v and %v", one.made, two.made)
	}
	for round := range 3 { // in each, all steps take turns
		got := slices.Sorted(slices.Values(one.made[2*round : 2*round+2]))
		if want := []string{fmt.Sprint("a", round), fmt.Sprint("b", round)}; !slices.Equal(got, want) {
			t.Errorf("round %d: %v", round, got)
		}
	}
	p := r.Figure("two").Line("b", nil).At(1)
	if diff := cmp.Diff([]float64{42, 42, 42}, p.Samples); diff != "" || p.Median != 42 || p.Extra["psi"] != 5 || p.Extra["jain"] != 1 || p.Extra["p50"] != 2 {
		t.Errorf("point: %+v %s", p, diff)
	}
	if len(r.Limits) != 2 || r.Incomplete != "" || r.Machine.Tools["abacus"] != "1" || r.Machine.Kernel == "" ||
		!strings.HasPrefix(r.Machine.Runtime, "runc ") || r.Machine.CongestionControl == "" {
		t.Errorf("results: %+v", r)
	}
	if saved, err := result.Load(dir); err != nil || len(saved.Figures) != 2 || len(saved.Command) != 3 {
		t.Errorf("saved: %+v, %v", saved, err)
	}
	if _, err := os.Stat(filepath.Join(dir, JournalFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the journal of a complete sweep: %v", err)
	}
}

func TestResume(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	one, dir := &counting{name: "one", cancel: cancel}, t.TempDir()
	r, err := runIn(ctx, t, &Sweep{Experiments: []Experiment{one}, Dir: dir})
	if !errors.Is(err, context.Canceled) || r == nil || !strings.Contains(r.Incomplete, "3 of 6") {
		t.Fatalf("interrupted: %+v, %v", r, err)
	}
	before := one.made[:3]

	_, err = run(t, &Sweep{Experiments: []Experiment{&counting{name: "other"}}, Dir: dir, Resume: true})
	if !errors.Is(err, ErrOther) {
		t.Errorf("resumed as another: %v", err)
	}
	// The machine stopped while this step was being written.
	f, err := os.OpenFile(filepath.Join(dir, JournalFile), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"figure":"one","ke`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	again := &counting{name: "one"}
	if r, err = run(t, &Sweep{Experiments: []Experiment{again}, Dir: dir, Resume: true}); err != nil {
		t.Fatal(err)
	}
	all := slices.Sorted(slices.Values(append(slices.Clone(before), again.made...)))
	if want := []string{"a0", "a1", "a2", "b0", "b1", "b2"}; !slices.Equal(all, want) {
		t.Errorf("made %v, then %v", before, again.made)
	}
	if p := r.Figure("one").Line("a", nil).At(1); len(p.Samples) != 3 || r.Incomplete != "" {
		t.Errorf("point: %+v, %q", p, r.Incomplete)
	}
	if _, err := run(t, &Sweep{Experiments: []Experiment{again}, Dir: dir, Resume: true}); !errors.Is(err, ErrNothing) {
		t.Errorf("resumed when nothing was left: %v", err)
	}
}

// An earlier study is replaced only with Force.
func TestEarlier(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir := t.TempDir()
	one := []Experiment{&counting{name: "one"}}
	if _, err := runIn(ctx, t, &Sweep{Experiments: []Experiment{&counting{name: "one", cancel: cancel}}, Dir: dir}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	refused := func(what string) {
		t.Helper()
		before := snapshot(t, dir)
		_, err := run(t, &Sweep{Experiments: one, Dir: dir})
		if !errors.Is(err, ErrThere) || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want one line with %s", err, what)
		}
		if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
			t.Error(diff)
		}
	}
	refused("--resume")
	if r, err := run(t, &Sweep{Experiments: one, Dir: dir, Force: true}); err != nil || r.Incomplete != "" {
		t.Fatalf("begun anew: %+v, %v", r, err)
	}
	refused("--force")
	if _, err := run(t, &Sweep{Experiments: one, Dir: dir, Force: true}); err != nil {
		t.Error(err)
	}
	// Another sweep uses the folder.
	j, err := openJournal(dir, header{}, replace)
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	for _, s := range []*Sweep{{Resume: true}, {Force: true}, {}} {
		s.Experiments, s.Dir = one, dir
		if _, err := run(t, s); !errors.Is(err, ErrThere) || !strings.Contains(err.Error(), "another run") {
			t.Errorf("beside another run: %v", err)
		}
	}
}

// snapshot returns the contents of a folder's files.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	files, err := os.ReadDir(dir)
	for _, f := range files {
		data, readErr := os.ReadFile(filepath.Join(dir, f.Name()))
		err, all[f.Name()] = errors.Join(err, readErr), string(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestCategories(t *testing.T) {
	f := &result.Figure{}
	for _, s := range []Sample{{Series: "a", Category: "host", Value: 1}, {Series: "a", Category: "host", Value: 2}, {Series: "a", X: 3, Value: 3}} {
		s.addTo(f)
	}
	var got []string
	for _, p := range f.Line("a", nil).Points {
		got = append(got, fmt.Sprintf("%s at %v: %v", p.Category, p.X, p.Samples))
	}
	if diff := cmp.Diff([]string{"host at 0: [1 2]", " at 3: [3]"}, got); diff != "" {
		t.Error(diff)
	}
}

// sharing is a figure that needs a measurement of another figure.
type sharing struct {
	name string
	made *int
}

func (s sharing) Name() string { return s.name }

func (s sharing) Plan(*Options) (*Plan, error) {
	step := Step{Key: "step of " + s.name, Same: "all", Seconds: 1, Run: func(context.Context, *Env) ([]Sample, error) {
		*s.made++
		return []Sample{
			{Figure: "one", Series: "a", X: 1, Value: 1},
			{Figure: "two", Series: "a", X: 1, Value: 2},
			{Figure: "other", Series: "a", X: 1, Value: 3},
			{Series: "own", X: 1, Value: 4},
		}, nil
	}}
	return &Plan{Figure: &result.Figure{Name: s.name}, Rounds: 3, Network: rig.None, Storage: rig.Overlay, Steps: []Step{step}}, nil
}

// TestShared checks that a shared step is made once per round for two figures.
func TestShared(t *testing.T) {
	made, dir := 0, t.TempDir()
	r, err := run(t, &Sweep{Experiments: []Experiment{sharing{"one", &made}, sharing{"two", &made}}, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if made != 3 {
		t.Errorf("made %d times in three rounds", made)
	}
	got := make(map[string][]float64)
	for _, f := range r.Figures {
		for _, line := range f.Series {
			got[f.Name+" "+line.Name] = line.At(1).Samples
		}
	}
	want := map[string][]float64{"one a": {1, 1, 1}, "one own": {4, 4, 4}, "two a": {2, 2, 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// varying is a figure whose runs differ.
type varying struct{ values []float64 }

func (v varying) Name() string { return "varying" }

func (v varying) Plan(*Options) (*Plan, error) {
	step := Step{Key: "a", Run: func(_ context.Context, e *Env) ([]Sample, error) {
		return []Sample{{Series: "a", X: 1, Value: v.values[e.Round]}}, nil
	}}
	return &Plan{
		Figure: &result.Figure{Name: "varying", Y: result.Axis{Unit: "ms"}}, Rounds: len(v.values), Network: rig.None, Storage: rig.Overlay, Steps: []Step{step},
	}, nil
}

// If runs differ too much, the figure has no number and says so.
func TestWide(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		wide   bool
		want   string
	}{
		{[]float64{100, 101, 102}, false, "a: 101 ms at 1."},
		{[]float64{50, 101, 300}, true, "a: the runs differ too much to say."},
	} {
		r, err := run(t, &Sweep{Experiments: []Experiment{varying{tt.values}}, Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		f := r.Figure("varying")
		p := f.Line("a", nil).At(1)
		if p.Wide != tt.wide || p.Low != tt.values[0] || p.High != tt.values[2] || f.Finding != tt.want {
			t.Errorf("%v: %+v, %q", tt.values, p, f.Finding)
		}
	}
}

// The order differs from round to round and depends only on the seed.
func TestOrder(t *testing.T) {
	p := &Plan{Figure: &result.Figure{Name: "one"}}
	for i := range 10 {
		p.Steps = append(p.Steps, Step{Key: fmt.Sprint(i)})
	}
	orders := func(seed uint64) (list []string) {
		s := &Sweep{Options: Options{Seed: seed}, journal: &journal{}}
		for round := range 2 {
			order := ""
			for _, step := range s.todo(p, round) {
				order += step.Key
			}
			list = append(list, order)
		}
		return list
	}
	one := orders(1)
	if !slices.Equal(one, orders(1)) {
		t.Error("the same seed has another order")
	}
	if other := orders(2); one[0] == one[1] || one[0] == other[0] {
		t.Errorf("orders %v and %v", one, other)
	}
}
