package figures

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/tsugiki/tsugiki/density/load"
	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
	"github.com/tsugiki/tsugiki/density/sweep"
)

const (
	studyFiles = 4096
	// usualFiles is the default number of files of a container. It is below the study's number,
	// because each container writes its files anew.
	usualFiles = 256
	// denseFiles is the same for a crowd.
	denseFiles  = 16
	quickFiles  = 4
	studyIO     = 64
	ioSeconds   = 3
	dataInside  = "/data"
	fileBytes   = 1 << 20
	usualWrites = 200 << 20 // bytes per second: the expected speed of making files
)

func files(o *sweep.Options, usual int) int {
	switch {
	case o.Files > 0:
		return o.Files
	case o.Quick:
		return quickFiles
	}
	return usual
}

// fileJob is reading files as the study did.
type fileJob struct{ files, seconds int }

func newFileJob(o *sweep.Options, usual int) fileJob {
	j := fileJob{files(o, usual), ioSeconds}
	if o.Quick {
		j.seconds = 1
	}
	return j
}

// args returns the arguments of fio for files in a folder. The page cache is bypassed. There is no
// ramp_time: with it, fio 3.33 does not end if the files are in random order.
func (j fileJob) args(dir string) []string {
	return []string{
		"fio", "--name=read", "--directory=" + dir, "--nrfiles=" + strconv.Itoa(j.files), "--filesize=1m", "--bs=1m",
		"--rw=read", "--file_service_type=random", "--openfiles=16", "--ioengine=psync", "--direct=1", "--thread", "--fallocate=none",
		"--time_based", "--runtime=" + strconv.Itoa(j.seconds), "--output-format=json",
	}
}

// makeArgs returns the arguments that make the files and write them to disk.
func (j fileJob) makeArgs(dir string) []string {
	return append(j.args(dir), "--create_only=1", "--create_fsync=1")
}

func (j fileJob) bytes() int64 { return int64(j.files) * fileBytes }

// notes returns the conditions of the job.
func (j fileJob) notes() []string {
	return []string{
		fmt.Sprintf("fio: %d files of 1 MB for each reader (the study had %d), whole files in random order, one at a time, for %d s.",
			j.files, studyFiles, j.seconds),
		"Page cache: bypassed by all readers (O_DIRECT), and files were written to disk (fsync) before.",
		"A container's files are in its own root file system, made by itself: with overlay, in its upper layer.",
	}
}

// fioRead is the result of one reader.
type fioRead struct {
	MBps        float64
	percentiles map[string]float64 // of single reads, in milliseconds
}

// parseFio reads fio's report.
func parseFio(out []byte) (fioRead, error) {
	var report struct {
		Jobs []struct {
			Error int
			Read  struct {
				BwBytes float64 `json:"bw_bytes"`
				ClatNs  struct {
					Percentile map[string]float64
				} `json:"clat_ns"`
			}
		}
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return fioRead{}, fmt.Errorf("read fio's report: %w", err)
	}
	if len(report.Jobs) != 1 || report.Jobs[0].Error != 0 || report.Jobs[0].Read.BwBytes <= 0 {
		return fioRead{}, fmt.Errorf("read fio's report: nothing was read: %.200q", out)
	}
	read := report.Jobs[0].Read
	r := fioRead{MBps: read.BwBytes / 1e6, percentiles: make(map[string]float64)}
	for name, fio := range map[string]string{"p50": "50.000000", "p95": "95.000000", "p99": "99.000000"} {
		if ns, found := read.ClatNs.Percentile[fio]; found && ns > 0 && !math.IsInf(ns, 0) {
			r.percentiles[name] = ns / 1e6
		}
	}
	return r, nil
}

// mixture is a set of readers that read at the same time.
type mixture struct {
	category          string
	hosts, containers int
}

var mixtures = []mixture{{"host", 1, 0}, {"container", 0, 1}, {"2 on the host", 2, 0}, {"2 containers", 0, 2}, {"host + container", 1, 1}}

func planFiles(o *sweep.Options, j fileJob, containers int) (*sweep.Plan, []variant, string, error) {
	if err := need("fio", "fio"); err != nil {
		return nil, nil, "", err
	}
	loader, err := findLoad()
	if err != nil {
		return nil, nil, "", err
	}
	list := variants(o, []string{rig.None}, []string{rig.Overlay, rig.Dir})
	p := &sweep.Plan{Rounds: rounds(o), Containers: containers, Room: rig.Room{Memory: 32 << 20, Disk: j.bytes(), Processes: 6}}
	p.Network, p.Storage = most(list)
	p.Tools = make(map[string]string)
	addVersion(p.Tools, "fio", "fio", "--version")
	p.Prepare = func(_ context.Context, r *rig.Rig) error {
		return errors.Join(r.Install(loader, "fio"), r.Put(dataInside+"/README", []byte("The files of fio are here.\n"), 0o644))
	}
	return p, list, loader, nil
}

func planIO(o *sweep.Options) (*sweep.Plan, error) {
	j := newFileJob(o, usualFiles)
	p, list, loader, err := planFiles(o, j, 4) // leaves room for the host's two readers, too
	if err != nil {
		return nil, err
	}
	p.Figure = &result.Figure{
		Title: "File reading: on the host, in containers, and both",
		Study: "Containers were far slower than the host, which the authors put down to the devicemapper storage driver.",
		X:     result.Axis{Label: "readers"},
		Y:     result.Axis{Label: "all together", Unit: "MB/s", Better: result.Higher},
		Notes: j.notes(),
	}
	for _, v := range list {
		for _, m := range mixtures {
			p.Figure.Line("reading", v.labels).In(m.category)
			p.Steps = append(p.Steps, j.step(v, loader, m))
		}
	}
	return p, nil
}

func planIODensity(o *sweep.Options) (*sweep.Plan, error) {
	j, n := newFileJob(o, denseFiles), largest(o, studyIO)
	p, list, _, err := planFiles(o, j, n)
	if err != nil {
		return nil, err
	}
	p.Figure = &result.Figure{
		Title: "File reading in many containers at once",
		Study: "The total fell as containers were added.",
		X:     result.Axis{Label: "containers", Log: true},
		Y:     result.Axis{Label: "speed", Unit: "MB/s", Log: true, Better: result.Higher},
		Notes: j.notes(),
	}
	order(p.Figure, list, "total", "each")
	p.Figure.Notes = append(p.Figure.Notes, "In each round, containers are started until there are as many as the first point has, "+
		"read, then more are started for the next.")
	for _, v := range list {
		p.Steps = append(p.Steps, j.dense(v, doubling(n)))
	}
	return p, nil
}

// dense is a step in which more and more containers read.
func (j fileJob) dense(v variant, sizes []int) sweep.Step {
	run := func(ctx context.Context, e *sweep.Env) (samples []sweep.Sample, err error) {
		c, err := gather(ctx, e, 0, idle(v))
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, c.disperse(ctx)) }()
		for _, n := range sizes {
			there := len(c.members)
			if err := c.grow(ctx, n); err != nil {
				return samples, err
			}
			if err := j.makeInside(ctx, c.members[there:]); err != nil {
				return samples, err
			}
			out, extra, err := c.together(ctx, c.runners(), func(int) []string { return j.args(dataInside) })
			if err != nil {
				return samples, err
			}
			speeds, reads, err := parseReaders(out)
			if err != nil {
				return samples, err
			}
			merge(extra, reads)
			samples = append(samples, sharedOut(v.labels, n, speeds, extra)...)
		}
		return samples, nil
	}
	most := sizes[len(sizes)-1]
	return sweep.Step{
		Key: v.key(most), Seconds: float64(len(sizes)*(j.seconds+1)) + 2*seconds(most) + float64(most)*float64(j.bytes())/usualWrites, Run: run,
	}
}

// idle starts idle containers in which programs are executed.
func idle(v variant) func(i int) rig.Spec {
	return func(i int) rig.Spec {
		s := v.spec(i, inside(load.Idle())...)
		s.Ready = load.Ready
		return s
	}
}

// makeInside makes the containers' files, each inside its container.
func (j fileJob) makeInside(ctx context.Context, members []*rig.Container) error {
	return each(len(members), func(i int) error {
		if _, err := members[i].Exec(ctx, j.makeArgs(dataInside)...); err != nil {
			return fmt.Errorf("make files: %w", err)
		}
		return nil
	})
}

// step returns a step in which a mixture of readers read.
func (j fileJob) step(v variant, loader string, m mixture) sweep.Step {
	run := func(ctx context.Context, e *sweep.Env) (_ []sweep.Sample, err error) {
		c, err := gather(ctx, e, m.containers, idle(v))
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, c.disperse(ctx)) }()
		if err := j.makeInside(ctx, c.members); err != nil {
			return nil, err
		}
		where, dirs := c.runners(), slices.Repeat([]string{dataInside}, m.containers)
		for i := range m.hosts {
			dir, err := j.makeOnHost(ctx, e.Rig, i)
			if err != nil {
				return nil, err
			}
			where, dirs = append(where, c.onHost(loader)), append(dirs, dir)
		}
		out, extra, err := c.together(ctx, where, func(i int) []string { return j.args(dirs[i]) })
		if err != nil {
			return nil, err
		}
		speeds, reads, err := parseReaders(out)
		merge(extra, reads)
		return []sweep.Sample{{Series: "reading", Labels: v.labels, Category: m.category, Value: sum(speeds), Each: speeds, Extra: extra}}, err
	}
	write := float64(m.containers) * float64(j.bytes()) / usualWrites
	return sweep.Step{
		Key: v.key(m.containers) + "/" + m.category, Variant: v.String(), Seconds: float64(j.seconds) + write + seconds(m.containers), Run: run,
	}
}

// parseReaders parses the readers' reports. The percentiles are those of the slowest reader.
func parseReaders(out [][]byte) (speeds []float64, worst map[string]float64, err error) {
	worst = make(map[string]float64)
	for _, o := range out {
		r, err := parseFio(o)
		if err != nil {
			return nil, nil, err
		}
		speeds = append(speeds, r.MBps)
		for name, ms := range r.percentiles {
			worst[name] = max(worst[name], ms)
		}
	}
	return speeds, worst, nil
}

// makeOnHost makes the files of a reader on the host. Later steps find them there.
func (j fileJob) makeOnHost(ctx context.Context, r *rig.Rig, i int) (string, error) {
	dir := filepath.Join(r.Dir(), fmt.Sprintf("host-%d", i))
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrExist) {
		return dir, nil
	}
	if err == nil {
		_, err = r.Host(ctx, j.makeArgs(dir)...)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("make files on the host: %w", err), os.RemoveAll(dir))
	}
	return dir, nil
}
