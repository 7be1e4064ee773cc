package api

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	times := func(counts map[int]uint64) []uint64 {
		list := make([]uint64, 32)
		for power, n := range counts {
			list[power] = n
		}
		return list
	}
	for _, tt := range []struct {
		times []uint64
		q     float64
		want  time.Duration
	}{
		{nil, 0.5, 0},
		{times(nil), 0.99, 0},
		{times(map[int]uint64{10: 1}), 1, 1024},
		{times(map[int]uint64{10: 2}), 0.5, 768},
		{times(map[int]uint64{10: 50, 20: 50}), 0.5, 1024},
		{times(map[int]uint64{10: 98, 20: 2}), 0.99, 3 << 18},
		{times(map[int]uint64{0: 1}), 1, 1},
		{times(map[int]uint64{31: 1}), 1, 1 << 31},
	} {
		if got := quantile(tt.times, tt.q); got != tt.want {
			t.Errorf("%v of %v: %v, want %v", tt.q, tt.times, got, tt.want)
		}
	}
}

// someStats are a container's that has counted n of everything.
func someStats(name string, n uint64) ContainerStats {
	times := make([]uint64, 32)
	times[12], times[31] = n, n
	d := Decisions{Calls: map[string]uint64{"connect": n, "socket": n}, Refused: n, Times: times}
	return ContainerStats{
		ID: name, Name: name, State: "running", Gates: 1, Connections: Connections{Out: n, In: n},
		Denied: Denied{Connect: n, Bind: n, Send: n, SetSockOpt: n, Leave: n, Enter: n}, Gate: d, Agent: d,
		Pool: Pool{Batches: n, Sockets: n, Single: n, Misses: n}, Memory: n << 10,
	}
}

func TestRates(t *testing.T) {
	at := func(second int, list ...ContainerStats) *Stats {
		return &Stats{Time: time.Unix(int64(second), 0).UTC().Format(time.RFC3339Nano), Containers: list}
	}
	rates, err := Rates(at(1, someStats("a", 100), someStats("b", 0), someStats("gone", 5)),
		at(3, someStats("a", 110), someStats("b", 40), someStats("new", 2)))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rates {
		got = append(got, fmt.Sprintf("%s %v %v %v %v %v %v %v", r.Name, r.Out, r.In, r.Gate, r.Agent, r.Denied, r.Misses, r.P50))
	}
	want := "b 20 20 40 40 120 20 4.096µs\na 5 5 10 10 30 5 4.096µs\nnew 1 1 2 2 6 1 4.096µs"
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("rates are\n%s\nwant\n%s", text, want)
	}
	// The agent's own counters began anew.
	restarted, err := Rates(at(1, someStats("a", 100)), at(2, someStats("a", 30)))
	if err != nil || restarted[0].Gate != 60 {
		t.Errorf("after a restart: %+v %v", restarted, err)
	}
	if same, err := Rates(at(1, someStats("a", 1)), at(1, someStats("a", 2))); err != nil || same[0].Out != 0 {
		t.Errorf("within no time: %+v %v", same, err)
	}
}

func TestRatesNeedTimes(t *testing.T) {
	good, bad := &Stats{Time: "2026-01-02T03:04:05.000000006Z"}, &Stats{Time: "yesterday"}
	for _, pair := range [][2]*Stats{{good, bad}, {bad, good}} {
		if rates, err := Rates(pair[0], pair[1]); err == nil || rates != nil {
			t.Errorf("%q to %q: %v, %v; want an error", pair[0].Time, pair[1].Time, rates, err)
		}
	}
}
