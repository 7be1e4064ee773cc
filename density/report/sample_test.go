package report

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/tsugiki/tsugiki/density/result"
)

// sample has every kind of figure and point that a page can show.
func sample() *result.Results {
	started := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	r := &result.Results{
		Version: result.Version,
		Command: []string{"tsugiki", "density", "run", "--figure", "all", "--max", "64", "-o", "/tmp/a report"},
		Started: started, Ended: started.Add(17*time.Minute + 3*time.Second),
		Machine: result.Machine{
			CPU: "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", Cores: 2, MemoryBytes: 8 << 30, Kernel: "6.12.30",
			Distribution: "Debian GNU/Linux 12", Cgroups: "hybrid", Runtime: "runc 1.1.5", CongestionControl: "cubic",
			FileSystem: "ext4", Virtualization: "kvm", Load: 0.42,
			Tools: map[string]string{"fio": "3.33", "nginx": "1.22.1"},
		},
		Options: map[string]string{"repeats": "7", "networks": "host bridge graft", "runtime": "runc", "quick": "false"},
		Limits:  []string{"open files: 524288, at most 9300 needed", "memory: 7.1 GiB available, 2.4 GiB needed"},
		Figures: []*result.Figure{sampleCPU(), sampleWeb(), sampleOverlay(), sampleFailed()},
	}
	r.Finish()
	return r
}

// runs adds n samples around a middle, always the same ones.
func runs(p *result.Point, n int, middle, spread float64) {
	random := rand.New(rand.NewPCG(uint64(p.X*1000), uint64(middle)))
	for range n {
		p.Add(middle * (1 + spread*(2*random.Float64()-1)))
	}
}

func sampleCPU() *result.Figure {
	f := &result.Figure{
		Name: "cpu", Title: "CPU: a Poisson stencil in 1 to 64 containers",
		Study:   "Alone and with two containers each gets about the same, twice as much in total: the machine has two cores. From there on a container's share falls as 1/N and the total stays: containers cost no CPU themselves.",
		X:       result.Axis{Label: "Containers", Log: true},
		Y:       result.Axis{Label: "Speed", Unit: "MFLOPS", Log: true, Better: result.Higher},
		Notes:   []string{"Grid 64 × 64 × 128, single precision; every container computes for 2 s at once.", "CPU frequency is the hypervisor's."},
		Seconds: 81,
	}
	each, total := f.Line("each container", nil), f.Line("total", nil)
	for n := 1.0; n <= 64; n *= 2 {
		per := 2100 / max(1, n/2)
		runs(each.At(n), 7, per, .06)
		runs(total.At(n), 7, per*n, .04)
		each.At(n).AddExtra("jain", 1-n*.0004)
		each.At(n).AddExtra("psi_some10", 95*(1-1/n))
		each.At(n).AddExtra("nr_throttled", n*n/3)
	}
	return f
}

func sampleWeb() *result.Figure {
	f := &result.Figure{
		Name: "web-random", Title: "Web: requests to containers drawn at random from outside",
		Study:   "No great loss from 1 to 128 containers; it is slower from 256 on.",
		X:       result.Axis{Label: "Containers", Log: true},
		Y:       result.Axis{Label: "Requests answered", Unit: "1/s", Better: result.Higher},
		Notes:   []string{"nginx 1.22 in every container, one connection for each request."},
		Seconds: 301,
	}
	for i, network := range []string{"host", "bridge", "graft", "none"} {
		s := f.Line("requests", map[string]string{"network": network})
		for _, n := range []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 300} {
			spread := .05
			if network == "bridge" && (n == 64 || n == 300) {
				spread = .6
			}
			runs(s.At(n), 5, (9000-1700*float64(i))/max(1, math.Pow(n/90, .7)), spread)
			s.At(n).AddExtra("p50", .1+n*.001*float64(i+1))
			s.At(n).AddExtra("p99", .4+n*.004*float64(i+1))
			s.At(n).AddExtra("softirq_share", .1+.02*float64(i))
		}
	}
	return f
}

func sampleOverlay() *result.Figure {
	f := &result.Figure{
		Name: "overlay-delete", Title: "Time to delete a file",
		Study: "Deleting is much slower on overlayfs than without it.",
		Y:     result.Axis{Label: "Time for a file", Unit: "µs", Better: result.Lower},
		Notes: []string{"4,096 files of 4 KiB."},
	}
	for i, driver := range []string{"overlayfs", "plain file system"} {
		s := f.Line(driver, nil)
		runs(s.In("lower layer absent"), 7, 12+6*float64(1-i), .1)
		runs(s.In("lower layer present"), 7, 14+30*float64(1-i), .1)
		runs(s.In("lower layer present, page cache dropped before"), 7, 60, .9)
	}
	f.Series[1].In("a container").Failed = "no space left on device"
	return f
}

func sampleFailed() *result.Figure {
	f := &result.Figure{
		Name: "start", Title: "Start latency", X: result.Axis{Label: "Containers up", Log: true},
		Y: result.Axis{Label: "Time until the program is up", Unit: "ms", Better: result.Lower},
	}
	s := f.Line("runc", nil)
	s.At(1).Add(80)
	s.At(2).Add(84)
	s.At(2).Add(88)
	s.At(4).Failed = "runc: no such file or directory"
	return f
}
