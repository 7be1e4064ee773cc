package measure

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Metric is one thing that is measured in every mode.
type Metric struct {
	Test string
	Name string
	Unit string
	// HigherIsBetter says in which direction the ratio to the host is good.
	HigherIsBetter bool
	CPUs           *Pinned // where it was measured; nil: wherever the scheduler chose
}

// Result is what one mode gave for one metric.
type Result struct {
	Test   string  `json:"test"`
	Metric string  `json:"metric"`
	Unit   string  `json:"unit"`
	Better string  `json:"better"` // "higher" or "lower"
	Mode   string  `json:"mode"`
	CPUs   *Pinned `json:"cpus"` // null: not pinned

	Values  []float64 `json:"values"` // one per round
	Summary Summary   `json:"summary"`
	// Ratios are per round and to the base mode; RatioToHost summarizes
	// them. Both are absent when the base mode was not run.
	Ratios      []float64 `json:"ratios,omitempty"`
	RatioToHost *Summary  `json:"ratio_to_host,omitempty"`
}

// Pinned says which CPU the processes of each side ran on.
type Pinned struct {
	Client int `json:"client"`
	Server int `json:"server"`
}

// Report is a whole run. Its JSON keys are an interface: they are added to,
// not changed.
type Report struct {
	Figure    string    `json:"figure"`
	Command   []string  `json:"command"`
	Started   time.Time `json:"started"`
	Machine   Machine   `json:"machine"`
	Rounds    int       `json:"rounds"`
	DurationS float64   `json:"duration_s"` // of one measurement
	Seed      uint64    `json:"seed"`       // of the order of modes
	Base      string    `json:"base"`       // the mode that ratios refer to
	Notes     []string  `json:"notes"`
	Results   []*Result `json:"results"`
}

// Add records the measurement of a metric in a mode. Rounds are added in order,
// so that values at the same place belong to the same round.
func (r *Report) Add(m Metric, mode string, value float64) {
	for _, res := range r.Results {
		if res.Test == m.Test && res.Metric == m.Name && res.Mode == mode {
			res.Values = append(res.Values, value)
			return
		}
	}
	better := "lower"
	if m.HigherIsBetter {
		better = "higher"
	}
	r.Results = append(r.Results, &Result{
		Test: m.Test, Metric: m.Name, Unit: m.Unit, Better: better,
		Mode: mode, CPUs: m.CPUs, Values: []float64{value},
	})
}

// Note adds a remark on something that a reader of the figures should know.
func (r *Report) Note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Finish computes summaries and ratios and brings the results into the order
// of modes within each metric, whichever came first in the run. What is not a mode comes after them.
func (r *Report) Finish(modes []string) {
	type key struct{ test, metric string }
	var order []key
	others := make(map[key][]string)
	found := make(map[key]map[string]*Result)
	for _, res := range r.Results {
		k := key{res.Test, res.Metric}
		if found[k] == nil {
			found[k] = make(map[string]*Result)
			order = append(order, k)
		}
		found[k][res.Mode] = res
		if !slices.Contains(modes, res.Mode) {
			others[k] = append(others[k], res.Mode)
		}
		res.Summary = Summarize(res.Values)
	}
	r.Results = r.Results[:0]
	for _, k := range order {
		base := found[k][r.Base]
		for _, mode := range append(slices.Clone(modes), others[k]...) {
			res := found[k][mode]
			if res == nil {
				continue
			}
			if base != nil {
				res.Ratios = Ratios(res.Values, base.Values)
				s := Summarize(res.Ratios)
				res.RatioToHost = &s
			}
			r.Results = append(r.Results, res)
		}
	}
}

// WriteJSON writes the report.
func (r *Report) WriteJSON(w io.Writer) error {
	if r.Notes == nil {
		r.Notes = []string{}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// WriteFile writes the report into a file, whole or not at all.
func (r *Report) WriteFile(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	defer os.Remove(f.Name()) // nothing is there after the rename
	defer f.Close()
	if err := r.WriteJSON(f); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
