package report

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/tsugiki/tsugiki/density/result"
)

// samples returns the kinds of sweeps that occur: one with all figures, an interrupted one, one
// whose runs differ too much, and one with a single measured point.
func samples() map[string]*result.Results {
	return map[string]*result.Results{"full": full(1), "partial": partial(), "wide": wide(), "point": point()}
}

func sweepWith(figures ...*result.Figure) *result.Results {
	started := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	r := &result.Results{
		Version: result.Version,
		Command: []string{"tsugiki", "density", "run", "--figure", "all", "--max", "64", "-o", "/tmp/a report"},
		Started: started, Ended: started.Add(17*time.Minute + 3*time.Second),
		Machine: result.Machine{
			CPU: "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", Cores: 2, MemoryBytes: 8 << 30, Kernel: "6.12.30",
			Distribution: "Debian GNU/Linux 12 (bookworm)", Cgroups: "hybrid", Runtime: "runc version 1.1.5+ds1", CongestionControl: "cubic",
			FileSystem: "ext4", Virtualization: "hypervisor", Load: 0.42,
			Tools: map[string]string{"fio": "fio-3.33", "nginx": "nginx/1.22.1"},
		},
		Options: map[string]string{"rounds": "7", "networks": "host,bridge,graft", "runtimes": "runc"},
		Limits: []string{
			"cpu: 64 containers (none, overlay) take at most 1.2 GiB of memory, 24 MiB of disk, 360 processes and 584 files; there are 7.1 GiB, 60.2 GiB, 32104 and 1048576",
		},
		Figures: figures,
	}
	r.Finish()
	return r
}

// full has every kind of figure. What is better the faster it is, is so by a factor.
func full(faster float64) *result.Results {
	return sweepWith(sampleCPU(), sampleIO(), sampleWeb(faster), sampleOverlay(), sampleStart(faster), sampleMemory(), sampleNetwork(faster), sampleNoisy())
}

func partial() *result.Results {
	cpu, memory := sampleCPU(), sampleMemory()
	for _, s := range cpu.Series {
		s.Points = s.Points[:4]
	}
	cpu.Series[3].Points = nil
	cpu.Series[2].Points[2].Samples = cpu.Series[2].Points[2].Samples[:2]
	last := memory.Series[3]
	last.Points[1].Samples, last.Points[1].Failed = nil, "the runtime is gone: fork/exec /usr/sbin/runc: no such file or directory"
	nothing := &result.Figure{
		Name: "web", Title: "Web servers, each asked from inside its container at once", Study: "The total changed little.",
		X: result.Axis{Label: "containers", Log: true}, Y: result.Axis{Label: "throughput", Unit: "requests/s", Log: true},
	}
	nothing.Line("total", nil).At(1).Failed = "no space left on device"
	r := sweepWith(cpu, memory, nothing)
	r.Incomplete = "61 of 240 steps were made: interrupted"
	return r
}

func wide() *result.Results {
	f := sampleWeb(1)
	for _, s := range f.Series {
		for i, p := range s.Points {
			if i%3 == 1 || s == f.Series[0] {
				p.Samples = nil
				runs(p, 5, 3, .95)
			}
		}
	}
	bars := sampleIO()
	bars.Series[0].Points[1].Samples = []float64{10, 400, 900}
	return sweepWith(f, bars)
}

func point() *result.Results {
	f := &result.Figure{
		Name: "start", Title: "Starting and stopping containers while others are there",
		X: result.Axis{Label: "containers", Log: true}, Y: result.Axis{Label: "median", Unit: "ms", Better: result.Lower},
	}
	f.Line("start", map[string]string{"network": "graft"}).At(1).Add(80.123456)
	return sweepWith(f)
}

// runs adds n samples around a middle. They are the same each time.
func runs(p *result.Point, n int, middle, spread float64) {
	random := rand.New(rand.NewPCG(uint64(p.X*1000), uint64(middle)))
	for range n {
		p.Add(middle * (1 + spread*(2*random.Float64()-1)))
	}
}

func percentiles(p *result.Point, middle float64) {
	for i, name := range []string{"p50", "p90", "p95", "p99", "p999"} {
		p.AddExtra(name, middle*math.Pow(1.7, float64(i)))
	}
}

func pressure(p *result.Point, cpu float64) {
	p.AddExtra("psi_cpu", cpu)
	p.AddExtra("psi_io", 0)
	p.AddExtra("psi_memory", 0)
	p.AddExtra("softirq_share", cpu/900)
}

func sampleCPU() *result.Figure {
	f := &result.Figure{
		Name: "cpu", Title: "Computing: a Jacobi stencil in every container at once",
		Study: "Each container's speed was inverse to the number of containers beyond the cores; the total stayed flat.",
		X:     result.Axis{Label: "containers", Log: true},
		Y:     result.Axis{Label: "speed", Unit: "MFLOPS", Log: true, Better: result.Higher},
		Notes: []string{
			"A 3-D Poisson problem by Jacobi's method, seven points, 64 × 64 × 128 in single precision.",
			"All begin at the same time and compute for the same time; speed is per second of wall time.",
		},
		Seconds: 81,
	}
	for i, quota := range []string{"none", "its part"} {
		labels := map[string]string{"quota": quota}
		total, each := f.Line("total", labels), f.Line("each", labels)
		for n := 1.0; n <= 64; n *= 2 {
			per := 2100 / max(1, n/2) * (1 - .04*float64(i))
			runs(each.At(n), 7, per, .06)
			p := total.At(n)
			runs(p, 7, per*n, .04)
			p.AddExtra("jain", 1-n*.0004)
			pressure(p, 95*(1-1/n))
			p.AddExtra("nr_throttled", float64(i)*n*n/3)
			p.AddExtra("throttled_ms", float64(i)*n*n*17)
		}
	}
	return f
}

func sampleIO() *result.Figure {
	f := &result.Figure{
		Name: "io", Title: "File reading: on the host, in containers, and both",
		Study: "Containers were far slower than the host, which the authors put down to the devicemapper storage driver.",
		X:     result.Axis{Label: "readers"}, Y: result.Axis{Label: "all together", Unit: "MB/s", Better: result.Higher},
		Notes: []string{"Page cache: bypassed by all readers (O_DIRECT), and files were written to disk (fsync) before."},
	}
	for i, storage := range []string{"overlay", "dir"} {
		s := f.Line("reading", map[string]string{"storage": storage})
		for k, category := range []string{"host", "container", "2 on the host", "2 containers", "host + container"} {
			p := s.In(category)
			runs(p, 5, 510-float64(20*k-13*i), .1)
			percentiles(p, 2)
			pressure(p, 4)
		}
	}
	return f
}

func sampleWeb(faster float64) *result.Figure {
	f := &result.Figure{
		Name: "web-random", Title: "Web servers drawn at random, asked from outside",
		Study:   "Up to 128 containers there was no great loss; from 256 on it got worse.",
		X:       result.Axis{Label: "containers", Log: true},
		Y:       result.Axis{Label: "mean response time", Unit: "ms", Better: result.Lower},
		Notes:   []string{"Server: nginx, one worker, no access log.", "Percentiles are of the single requests, in milliseconds."},
		Seconds: 301,
	}
	for i, network := range []string{"host", "bridge", "graft"} {
		s := f.Line("response", map[string]string{"network": network})
		for _, n := range []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 300} {
			spread := .05
			if network == "bridge" && (n == 64 || n == 300) {
				spread = .9
			}
			took := (.2 + .03*float64(i)) * max(1, math.Pow(n/90, .9)) / faster
			runs(s.At(n), 5, took, spread)
			percentiles(s.At(n), took)
			pressure(s.At(n), 20)
		}
	}
	return f
}

func sampleOverlay() *result.Figure {
	f := &result.Figure{
		Name: "overlay-delete", Title: "Deleting files: overlayfs and the file system below",
		Study: "Deleting took very different times with overlayfs and without.",
		X:     result.Axis{Label: "files", Log: true}, Y: result.Axis{Label: "each", Unit: "µs", Better: result.Lower},
		Notes: []string{"Percentiles are of the single files, in microseconds."},
	}
	for i, place := range []string{"the file system below", "overlayfs, new files", "overlayfs, files of the lower layer, to which whiteouts are put"} {
		s := f.Line(place, nil)
		for _, n := range []float64{256, 1024, 4096} {
			runs(s.At(n), 7, 9+4*float64(i*i*i), .1)
			percentiles(s.At(n), 9+4*float64(i*i*i))
			s.At(n).AddExtra("sync_ms", n/300)
		}
	}
	return f
}

func sampleStart(faster float64) *result.Figure {
	f := &result.Figure{
		Name: "start", Title: "Starting and stopping containers while others are there",
		X: result.Axis{Label: "containers", Log: true}, Y: result.Axis{Label: "median", Unit: "ms", Better: result.Lower},
	}
	for i, network := range []string{"none", "graft", "bridge"} {
		labels := map[string]string{"network": network}
		for k, name := range []string{"start", "stop"} {
			for _, n := range []float64{1, 10, 50, 100, 200, 300} {
				p := f.Line(name, labels).At(n)
				took := (60 + 11*float64(i) - 20*float64(k) + n/9) / faster
				runs(p, 5, took, .08)
				percentiles(p, took)
				p.AddExtra("rate_per_s", 1000/took)
			}
		}
	}
	return f
}

func sampleMemory() *result.Figure {
	f := &result.Figure{
		Name: "memory", Title: "Memory for each container",
		X: result.Axis{Label: "containers", Log: true}, Y: result.Axis{Label: "processes and kernel", Unit: "KiB", Better: result.Lower},
	}
	for i, network := range []string{"none", "host", "graft", "bridge"} {
		s := f.Line("memory", map[string]string{"network": network})
		for _, n := range []float64{10, 50, 100, 200, 300} {
			kib := 1204 + 300*float64(i)
			runs(s.At(n), 5, kib, .03)
			s.At(n).AddExtra("pss_kib", kib/3)
			s.At(n).AddExtra("agent_kib", float64(i))
			s.At(n).AddExtra("kernel_kib", kib*2/3)
			s.At(n).AddExtra("something_new", kib/n)
		}
	}
	return f
}

func sampleNetwork(faster float64) *result.Figure {
	f := &result.Figure{
		Name: "network", Title: "What networking costs 300 containers",
		X: result.Axis{Label: "network"}, Y: result.Axis{Label: "p99 of starting", Unit: "ms", Better: result.Lower},
	}
	for i, network := range []string{"none", "host", "graft", "bridge"} {
		p := f.Line("start", nil).In(network)
		runs(p, 5, (90+40*float64(i))/faster, .1)
		p.AddExtra("memory_kib", 1204+300*float64(i))
	}
	return f
}

func sampleNoisy() *result.Figure {
	f := &result.Figure{
		Name: "noisy-logger", Title: "Beside noisy loggers",
		X: result.Axis{Label: "containers on one CPU"}, Y: result.Axis{Label: "speed of the one that computes", Unit: "MFLOPS", Better: result.Higher},
	}
	for i, others := range []string{"neighbours do not log", "neighbours log, charging off", "neighbours log, charging on"} {
		for n := 2.0; n <= 5; n++ {
			p := f.Line(others, nil).At(n)
			runs(p, 5, 1000/n*[]float64{1, .52, .93}[i], .04)
			p.AddExtra("cpu_of_quota", []float64{1, .52, .93}[i])
			p.AddExtra("nr_throttled", 30)
		}
	}
	return f
}
