package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/tsugiki/tsugiki/density/result"
)

// pointLabel returns the point's category, or its X.
func pointLabel(p *result.Point) string {
	if p.Category != "" {
		return p.Category
	}
	return result.Number(p.X)
}

// value returns a point's number with its interval, or the reason why it has none.
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

// measure describes a key of Point.Extra.
type measure struct{ key, title, about string }

// measures has the known measures, in the order of the report. Percentiles are of single events.
// measureOf adds their unit.
var measures = []measure{
	{"p50", "p50", "Median of the single events."},
	{"p90", "p90", ""},
	{"p95", "p95", ""},
	{"p99", "p99", ""},
	{"p999", "p99.9", ""},
	{"jain", "Jain's fairness", "1: all containers got the same; 1/n: one got all."},
	{"psi_cpu", "CPU pressure, %", "PSI: part of the time in which some program waited for a CPU."},
	{"psi_io", "I/O pressure, %", "PSI: part of the time in which some program waited for a disk."},
	{"psi_memory", "Memory pressure, %", "PSI: part of the time in which some program waited for memory."},
	{"nr_throttled", "Throttled periods", "nr_throttled: periods in which a container had used up its quota, of all containers."},
	{"throttled_ms", "Throttled, ms", "How long containers were held for that, added up."},
	{"softirq_share", "Softirq share", "Part of the used CPU time that was spent in softirqs: 0.1 is a tenth."},
	{"requests_per_s", "Requests, 1/s", ""},
	{"rate_per_s", "Rate, 1/s", "Containers in a second of the runtime's."},
	{"stop_p50_ms", "p50 of stopping, ms", ""},
	{"stop_p99_ms", "p99 of stopping, ms", ""},
	{"sync_ms", "Writing to disk after, ms", "syncfs, once for all files."},
	{"memory_kib", "Memory each, KiB", "Processes (PSS) and kernel."},
	{"pss_kib", "Processes (PSS), KiB", "Each container's part, with that of the agent."},
	{"agent_kib", "Agent (PSS), KiB", "Of that, the agent's."},
	{"kernel_kib", "Kernel, KiB", "Unreclaimable slab, page tables, per-CPU, vmalloc with stacks."},
	{"slab_kib", "Slab, KiB", "All of it, also what can be reclaimed."},
	{"available_kib", "Less available, KiB", "By how much the machine's available memory fell."},
	{"cpu_of_quota", "CPU, of its quota", "What the container that computes was given: 1 is all of it."},
	{"others_of_quota", "CPU of the others, of theirs", "Each other container with its logger: 1 is all of its quota."},
}

// measureOf returns the measure of a key for a figure.
func measureOf(f *result.Figure, key string) measure {
	for _, m := range measures {
		if m.key != key {
			continue
		}
		if key[0] == 'p' && key[1] >= '0' && key[1] <= '9' {
			m.title += ", " + eventUnit(f)
		}
		return m
	}
	return measure{key: key, title: strings.ReplaceAll(key, "_", " ")}
}

// eventUnit returns the unit of single events: the figure's unit if it is a time, or milliseconds.
func eventUnit(f *result.Figure) string {
	switch f.Y.Unit {
	case "s", "µs", "ns":
		return f.Y.Unit
	}
	return "ms"
}

// extras returns the measures of a figure: the known ones in their order, then the others by name.
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

// duration formats a time to the second, or to the millisecond if it is below a second.
func duration(d time.Duration) string {
	if d < 0 {
		d = 0
	}
	if d >= time.Second {
		d = d.Round(time.Second)
	}
	return d.Round(time.Millisecond).String()
}

// commandLine quotes arguments that a shell would split.
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

// facts returns the facts about the machine and the run, as pairs for a list.
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

// printable returns text without control characters for terminals and tables. Anybody may have
// written the results.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
