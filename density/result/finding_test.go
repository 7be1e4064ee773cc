package result

import "testing"

// TestFindingsHaveLabels checks that series of the same name can be told apart in
// words, as they are in plots.
func TestFindingsHaveLabels(t *testing.T) {
	f := &Figure{Name: "web", X: Axis{Label: "containers"}, Y: Axis{Unit: "ms"}}
	add := func(network string, x float64, samples ...float64) {
		p := f.Line("response", map[string]string{"network": network}).At(x)
		for _, v := range samples {
			p.Add(v)
		}
	}
	add("graft", 1, 10, 10, 10)
	add("graft", 64, 20, 21, 20)
	add("bridge", 1, 10, 11, 12)
	add("bridge", 64, 11, 11, 13)
	add("host", 1, 10)
	add("none", 1, 1, 10, 100)
	f.Line("lost", map[string]string{"network": "lost"}).At(1).Failed = "it is gone"
	r := &Results{Figures: []*Figure{f}}
	r.Finish()
	const want = `response, network graft: from 10 ms at 1 to 20 ms at 64 containers (2 times that).
response, network bridge: from 11 ms at 1 to 11 ms at 64 containers (not significantly different).
response, network host: 10 ms at 1 container.
response, network none: the runs differ too much to say.
lost: no run succeeded.`
	if f.Finding != want {
		t.Errorf("the finding is\n%s\nwant\n%s", f.Finding, want)
	}
}

func TestFindingsOfCategories(t *testing.T) {
	f := &Figure{Name: "io", Y: Axis{Unit: "MB/s"}}
	s := f.Line("reading", nil)
	for category, v := range map[string]float64{"host": 400, "container": 100} {
		for range 3 {
			s.In(category).Add(v)
		}
	}
	if s.Points[0].Category != "host" {
		s.Points[0], s.Points[1] = s.Points[1], s.Points[0]
	}
	s.In("both").Failed = "no"
	r := &Results{Figures: []*Figure{f}}
	r.Finish()
	if want := "reading: host 400 MB/s, container 100 MB/s. Different from host: container (0.25 times that). 1 of 3 points cannot be told: no run succeeded there, or they differ too much."; f.Finding != want {
		t.Errorf("the finding is %q, want %q", f.Finding, want)
	}
}
