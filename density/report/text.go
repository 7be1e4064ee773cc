package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/density/result"
)

// place is where on the X axis a point is.
func place(p *result.Point) string {
	if p.Category != "" {
		return p.Category
	}
	return result.Number(p.X)
}

// value words a point: a number with its interval, or why there is none.
func value(p *result.Point, unit string) string {
	if unit != "" {
		unit = " " + unit
	}
	between := result.Number(p.Low) + " to " + result.Number(p.High)
	switch {
	case len(p.Samples) == 0:
		return "no run succeeded"
	case p.Wide:
		return "too wide to say: " + between + unit
	case p.HasInterval():
		return result.Number(p.Median) + unit + " (" + between + ")"
	}
	return result.Number(p.Median) + unit + " (" + count(len(p.Samples), "run") + ", no interval)"
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// seriesName has the labels that the name does not tell already.
func seriesName(s *result.Series) string {
	var more []string
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		if v := s.Labels[key]; v != "" && !strings.Contains(s.Name, v) {
			more = append(more, key+" "+v)
		}
	}
	name := s.Name
	if len(more) > 0 {
		name = strings.TrimPrefix(name+", "+strings.Join(more, ", "), ", ")
	}
	return name
}

// measures are what Point.Extra is known to hold, in the order of the report.
var measures = []struct{ key, title, about string }{
	{"p50", "p50", "median of the single events"},
	{"p90", "p90", ""},
	{"p95", "p95", ""},
	{"p99", "p99", ""},
	{"p999", "p99.9", ""},
	{"jain", "Jain fairness", "1: all containers got the same; 1/n: one got all"},
	{"psi_some10", "CPU pressure, %", "PSI some, average over 10 s"},
	{"nr_throttled", "Throttled periods", "nr_throttled"},
	{"softirq_share", "Softirq share", "part of the CPU time spent in softirqs"},
}

func measureTitle(key string) (title, about string) {
	for _, m := range measures {
		if m.key == key {
			return m.title, m.about
		}
	}
	return strings.ReplaceAll(key, "_", " "), ""
}

// extras of a figure: known ones in their order, then the others by name.
func extras(f *result.Figure) []string {
	there := make(map[string]bool)
	for _, s := range f.Series {
		for _, p := range s.Points {
			for key := range p.Extra {
				there[key] = true
			}
		}
	}
	var keys []string
	for _, m := range measures {
		if there[m.key] {
			keys = append(keys, m.key)
			delete(there, m.key)
		}
	}
	return append(keys, slices.Sorted(maps.Keys(there))...)
}

func gibibytes(n int64) string {
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// duration is to the second, or to what there is below one.
func duration(d time.Duration) string {
	if d < 0 {
		d = 0
	}
	if d >= time.Second {
		d = d.Round(time.Second)
	}
	return d.Round(time.Millisecond).String()
}

// commandLine quotes what a shell would take apart.
func commandLine(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = a
		if a == "" || strings.ContainsFunc(a, func(r rune) bool {
			plain := strings.ContainsRune("-_./:=,@%+", r) || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
			return !plain
		}) {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// facts describe the machine and the run, as pairs for a list.
type fact struct{ Name, Value string }

func facts(r *result.Results) []fact {
	m := r.Machine
	all := []fact{
		{"CPU", m.CPU},
		{"Cores", fmt.Sprint(m.Cores)},
		{"Memory", gibibytes(m.MemoryBytes)},
		{"Kernel", m.Kernel},
		{"Distribution", m.Distribution},
		{"Virtualization", m.Virtualization},
		{"Cgroups", m.Cgroups},
		{"Runtime", m.Runtime},
		{"File system", m.FileSystem},
		{"Congestion control", m.CongestionControl},
		{"Load before the run", fmt.Sprintf("%.2f", m.Load)},
	}
	for _, name := range slices.Sorted(maps.Keys(m.Tools)) {
		all = append(all, fact{name, m.Tools[name]})
	}
	return slices.DeleteFunc(all, func(f fact) bool { return f.Value == "" })
}

func options(r *result.Results) []fact {
	var all []fact
	for _, name := range slices.Sorted(maps.Keys(r.Options)) {
		all = append(all, fact{name, r.Options[name]})
	}
	return all
}
