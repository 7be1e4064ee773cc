package figures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/density/load"
	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
	"github.com/tsugiki/tsugiki/density/sweep"
	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/internal/programs"
)

// neighbours is the work of the other containers while one container computes.
type neighbours string

const (
	quiet     neighbours = "neighbours do not log"
	uncharged neighbours = "neighbours log, charging off"
	charged   neighbours = "neighbours log, charging on"
)

const (
	studyNoisy  = 5
	loggerName  = "tsugiki-log"
	tsugikiName = "tsugiki"
	// helperLimit is the time within which a logger must be ready.
	helperLimit = 30 * time.Second
	// learn is the time in which charging adapts: some of its averages' lengths.
	learn      = 2 * time.Second
	quickLearn = 300 * time.Millisecond
)

func planNoisy(o *sweep.Options) (*sweep.Plan, error) {
	loader, err := findLoad()
	if err != nil {
		return nil, err
	}
	found := make(map[string]string)
	for _, name := range []string{loggerName, tsugikiName} {
		if found[name], err = programs.FindIn(name, []string{filepath.Dir(loader)}); err != nil {
			return nil, err
		}
	}
	n := max(2, min(largest(o, studyNoisy), studyNoisy))
	if o.Quick {
		n = 2
	}
	took, lesson := cpuTime(o, 1), learn
	if o.Quick {
		lesson = quickLearn
	}
	p := &sweep.Plan{
		Rounds: rounds(o), Containers: n, Network: rig.None, Storage: rig.Overlay,
		Room:    rig.Room{Memory: stencilMemory, Disk: 32 << 20, Processes: 4},
		Prepare: prepare(loader),
	}
	p.Figure = &result.Figure{
		Title: "Beside noisy loggers",
		X:     result.Axis{Label: "containers on one CPU"},
		Y:     result.Axis{Label: "speed of the one that computes", Unit: "MFLOPS", Better: result.Higher},
		Notes: []string{
			"All containers, and their loggers, share one CPU; each container's quota is its part of that. One runs the stencil kernel. " +
				"The others run yes, what they print goes through tsugiki-log into files of at most 16 MB; or dd, which prints nothing and uses up its quota.",
			"cpu_of_quota is the part of its quota that the container which computes was given; others_of_quota what each other one and its logger have used, " +
				"in parts of its quota. nr_throttled is of all.",
			"Charging: the agent, once with enabled = true below [charge] and each logger attached to its container, once with false.",
		},
	}
	for _, others := range []neighbours{quiet, uncharged, charged} {
		p.Figure.Line(string(others), nil)
	}
	for size := 2; size <= n; size++ {
		for _, others := range []neighbours{quiet, uncharged, charged} {
			j := noisyJob{n: size, learn: lesson, others: others, seconds: took, runtime: o.Runtimes[0], logger: found[loggerName], tsugiki: found[tsugikiName]}
			p.Steps = append(p.Steps, sweep.Step{
				Key: fmt.Sprintf("%s/%d", others, size), Variant: string(others), Seconds: took.Seconds() + lesson.Seconds() + 1 + seconds(size), Run: j.run,
			})
		}
	}
	return p, nil
}

// noisyJob is the description of one run.
type noisyJob struct {
	n               int
	learn           time.Duration
	others          neighbours
	seconds         time.Duration
	runtime         string
	logger, tsugiki string // their paths
}

// noise has the programs and files of a run besides the containers.
type noise struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	rig    *rig.Rig
	dir    string
	ended  []chan struct{}
	pids   []int // of the loggers
}

func (j noisyJob) run(ctx context.Context, e *sweep.Env) (_ []sweep.Sample, err error) {
	dir, err := os.MkdirTemp(e.Rig.Dir(), "noisy-")
	if err != nil {
		return nil, err
	}
	helpers := &noise{rig: e.Rig, dir: dir}
	helpers.ctx, helpers.cancel = context.WithCancelCause(ctx)
	defer func() { err = errors.Join(err, helpers.end()) }()
	outputs, err := j.pipes(dir)
	for _, f := range outputs {
		defer f.Close()
	}
	if err != nil {
		return nil, err
	}
	c, err := gather(ctx, e, j.n, func(i int) rig.Spec { return j.spec(i, outputs) })
	if err != nil {
		return nil, err
	}
	// Loggers below a container's quota must end before the container.
	defer func() { err = errors.Join(err, helpers.end(), c.disperse(ctx)) }()
	if j.others != quiet {
		if err := j.startHelpers(helpers, c); err != nil {
			return nil, err
		}
	}
	return j.compute(helpers, c)
}

// pipes makes the neighbours' standard outputs. They are named pipes, so that a program that is
// started separately can open them. They are open in both directions, so that neither end waits for
// the other.
func (j noisyJob) pipes(dir string) (list []*os.File, err error) {
	for i := 1; i < j.n; i++ {
		path := pipeOf(dir, i)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return list, fmt.Errorf("make pipe %s: %w", path, err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return list, err
		}
		list = append(list, f)
	}
	return list, nil
}

func pipeOf(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("pipe-%d", i)) }

func (j noisyJob) spec(i int, outputs []*os.File) rig.Spec {
	v := variant{network: rig.None, runtime: j.runtime, storage: rig.Overlay}
	s := v.spec(i, inside(load.Idle())...)
	switch {
	case i == 0:
		s.Ready = load.Ready
	case j.others == quiet:
		s.Args, s.Output = []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=64k"}, outputs[i-1]
	default:
		s.Args, s.Output = []string{"yes"}, outputs[i-1]
	}
	s.CPUs, s.Quota = "0", 1/float64(j.n)
	return s
}

// startHelpers starts the agent, and a logger for each neighbour.
func (j noisyJob) startHelpers(h *noise, c *crowd) error {
	socket, err := j.startAgent(h)
	if err != nil {
		return err
	}
	for i := 1; i < j.n; i++ {
		pid, err := j.startLogger(h, i)
		if err != nil {
			return err
		}
		h.pids = append(h.pids, pid)
		if j.others != charged {
			continue
		}
		_, err = h.rig.Host(h.ctx, j.tsugiki, "charge", "attach", "--agent", socket, "--helper", strconv.Itoa(pid), "--to", c.members[i].Cgroup())
		if err != nil {
			return fmt.Errorf("charge a container for its logger: %w; does this agent charge?", h.cause(err))
		}
	}
	return nil
}

// startAgent starts the rig's agent. If the agent ends by itself, the run fails.
func (j noisyJob) startAgent(h *noise) (socket string, err error) {
	agent, err := h.rig.StartAgent(h.ctx, fmt.Sprintf("enabled = %v\ndiscovery = false\n", j.others == charged))
	if err != nil {
		return "", h.cause(err)
	}
	agent.OnEnd(h.cancel)
	return agent.Client().Socket, nil
}

// loggerScript starts the logger as containerd does: descriptors 3 and 4 are the container's
// outputs, and the logger reports on 5 that it is ready. The script prints its process id, which
// the logger keeps.
const loggerScript = `echo $$ >"$1.new" && mv "$1.new" "$1"
exec env CONTAINER_ID=density CONTAINER_NAMESPACE=density taskset -c 0 \
	"$2" path "$3" max-size 16m max-file 1 agent none 3<"$4" 4</dev/null 5>/dev/null`

func (j noisyJob) startLogger(h *noise, i int) (pid int, err error) {
	file := filepath.Join(h.dir, fmt.Sprintf("pid-%d", i))
	h.start("sh", "-c", loggerScript, "sh", file, j.logger, filepath.Join(h.dir, fmt.Sprintf("log-%d.json", i)), pipeOf(h.dir, i))
	err = h.await("a logger", func() bool {
		data, err := os.ReadFile(file)
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(data)))
		}
		return err == nil
	})
	return pid, err
}

// compute runs the computation in the first container while the others continue.
func (j noisyJob) compute(h *noise, c *crowd) ([]sweep.Sample, error) {
	select {
	case <-time.After(j.learn):
	case <-h.ctx.Done():
		return nil, context.Cause(h.ctx)
	}
	before, err := j.spent(h, c)
	if err != nil {
		return nil, err
	}
	since := time.Now()
	out, extra, err := c.together(h.ctx, c.runners()[:1], func(int) []string { return inside(load.Stencil(j.seconds)) })
	took := time.Since(since)
	if err != nil {
		return nil, h.cause(err)
	}
	after, err := j.spent(h, c)
	if err != nil {
		return nil, err
	}
	r, err := load.ParseStencil(out[0])
	if err != nil {
		return nil, err
	}
	quota := took.Seconds() / float64(j.n)
	extra["cpu_of_quota"] = (after.own - before.own).Seconds() / quota
	extra["others_of_quota"] = (after.others - before.others).Seconds() / quota / float64(j.n-1)
	return []sweep.Sample{{Series: string(j.others), X: float64(j.n), Value: r.MFLOPS, Extra: extra}}, nil
}

// spending is the CPU time of the computing container, and of all others with their loggers.
type spending struct{ own, others time.Duration }

// spent reads the CPU times. It counts one process of each other container: a logger that was moved
// into a container's group would otherwise count twice.
func (j noisyJob) spent(h *noise, c *crowd) (s spending, err error) {
	stats, err := c.members[0].Stats()
	if err != nil {
		return s, err
	}
	s.own = stats.CPU
	pids := slices.Clone(h.pids)
	for _, m := range c.members[1:] {
		pids = append(pids, m.PID())
	}
	for _, pid := range pids {
		d, err := cputime.Process(pid)
		if err != nil {
			return s, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
		}
		s.others += d
	}
	return s, nil
}

// start starts a program on the host. If the program ends by itself, the run fails.
func (h *noise) start(args ...string) {
	ended := make(chan struct{})
	h.ended = append(h.ended, ended)
	go func() {
		defer close(ended)
		_, err := h.rig.Host(h.ctx, args...)
		if err == nil {
			err = errors.New("the program has ended")
		}
		h.cancel(fmt.Errorf("%s: %w", filepath.Base(args[0]), err))
	}()
}

func (h *noise) await(what string, there func() bool) error {
	for deadline := time.Now().Add(helperLimit); !there(); time.Sleep(10 * time.Millisecond) {
		if h.ctx.Err() != nil {
			return context.Cause(h.ctx)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has not come up in %s seconds", what, strconv.Itoa(int(helperLimit.Seconds())))
		}
	}
	return nil
}

// cause returns the reason of an interrupt, if a helper caused it.
func (h *noise) cause(err error) error {
	if h.ctx.Err() != nil {
		return context.Cause(h.ctx)
	}
	return err
}

// end kills the programs and removes the files.
func (h *noise) end() error {
	h.cancel(context.Canceled)
	h.rig.EndAgent()
	for _, ended := range h.ended {
		<-ended
	}
	return os.RemoveAll(h.dir)
}
