// Package figures has the experiments of the density study: first the experiments of the study on
// highly consolidated containers (Umezawa and Yamaguchi), in their order, then those on its open
// questions.
//
// It decides what is measured, how, and what is recorded beside it. density/rig makes containers,
// density/sweep orders and repeats steps, density/load has the programs that load containers, and
// density/result makes statistics. The package needs the same privileges and kernel as density/rig,
// and the programs that an experiment's Plan asks for. Pressure needs a kernel with PSI, and is
// left out without it.
package figures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/tsugiki/tsugiki/density/load"
	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
	"github.com/tsugiki/tsugiki/density/sweep"
	"github.com/tsugiki/tsugiki/internal/programs"
)

// experiment is one figure.
type experiment struct {
	name string
	plan func(o *sweep.Options) (*sweep.Plan, error)
}

func (e experiment) Name() string { return e.name }

func (e experiment) Plan(o *sweep.Options) (*sweep.Plan, error) {
	p, err := e.plan(o)
	if err != nil {
		return nil, fmt.Errorf("figure %s: %w", e.name, err)
	}
	p.Figure.Name = e.name
	if o.Rounds > 0 {
		p.Rounds = o.Rounds
	}
	return p, nil
}

// All returns the experiments, the study's first.
func All() []sweep.Experiment {
	return []sweep.Experiment{
		experiment{"cpu", planCPU},
		experiment{"io", planIO},
		experiment{"io-density", planIODensity},
		experiment{"web", planWeb},
		experiment{"web-random", planWebRandom},
		experiment{"overlay-create", planOverlayCreate},
		experiment{"overlay-delete", planOverlayDelete},
		experiment{figureStart, planStart},
		experiment{figureMemory, planMemory},
		experiment{figureNetwork, planNetwork},
		experiment{"noisy-logger", planNoisy},
	}
}

// The default numbers of rounds. An interval needs three.
const (
	usualRounds = result.IntervalFrom
	quickRounds = 1
)

func rounds(o *sweep.Options) int {
	if o.Quick {
		return quickRounds
	}
	return usualRounds
}

// quickMax is the default number of containers of a quick sweep.
const quickMax = 4

// largest returns the largest number of containers of an experiment. study is the largest number in
// the study.
func largest(o *sweep.Options, study int) int {
	switch {
	case o.Max > 0:
		return o.Max
	case o.Quick:
		return min(study, quickMax)
	}
	return study
}

// doubling returns 1, 2, 4 and so on, and the largest number.
func doubling(largest int) []int {
	var list []int
	for n := 1; n < largest; n *= 2 {
		list = append(list, n)
	}
	return append(list, largest)
}

// variant has the settings that differ between the compared containers.
type variant struct {
	network, runtime, storage string
	labels                    map[string]string // of the series: the settings that are compared
}

// variants returns all combinations that were asked for, or the usual ones.
func variants(o *sweep.Options, networks, storages []string) []variant {
	if len(o.Networks) > 0 {
		networks = o.Networks
	}
	if len(o.Storages) > 0 {
		storages = o.Storages
	}
	var list []variant
	for _, network := range networks {
		for _, runtime := range o.Runtimes {
			for _, storage := range storages {
				v := variant{network: network, runtime: runtime, storage: storage, labels: make(map[string]string)}
				for _, l := range []struct {
					name, value string
					compared    int
				}{
					{"network", network, len(networks)}, {"runtime", filepath.Base(runtime), len(o.Runtimes)}, {"storage", storage, len(storages)},
				} {
					if l.compared > 1 {
						v.labels[l.name] = l.value
					}
				}
				list = append(list, v)
			}
		}
	}
	return list
}

func (v variant) String() string {
	return fmt.Sprintf("%s/%s/%s", v.network, filepath.Base(v.runtime), v.storage)
}

func (v variant) key(n int) string { return fmt.Sprintf("%v/%d", v, n) }

func (v variant) spec(i int, args ...string) rig.Spec {
	return rig.Spec{Name: fmt.Sprintf("c%d", i), Args: args, Network: v.network, Runtime: v.runtime, Storage: v.storage}
}

// order makes the series of the samples, in the order of the variants. Without it they would be in
// the random order of the steps.
func order(f *result.Figure, list []variant, series ...string) {
	for _, v := range list {
		for _, name := range series {
			f.Line(name, v.labels)
		}
	}
}

// most returns the variant that needs the most of the machine, for the check of its limits.
func most(list []variant) (network, storage string) {
	network, storage = list[0].network, list[0].storage
	for _, v := range list {
		if v.network == rig.Graft || v.network == rig.Bridge && network != rig.Graft {
			network = v.network
		}
		if v.storage == rig.Dir {
			storage = v.storage
		}
	}
	return network, storage
}

// has tells whether a variant has a network.
func has(list []variant, network string) bool {
	return slices.ContainsFunc(list, func(v variant) bool { return v.network == network })
}

// binEnv is the environment variable with the folder of built binaries, for tests, as in
// density/rig.
const binEnv = "TSUGIKI_BIN"

// findLoad finds tsugiki-load.
func findLoad() (string, error) {
	if dir := os.Getenv(binEnv); dir != "" {
		return programs.FindIn(load.Program, []string{dir})
	}
	return programs.Find(load.Program)
}

// need checks that a program of the machine is installed.
func need(program, pkg string) error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%s: %w; install the package %s", program, rig.ErrMissing, pkg)
	}
	return nil
}

// loadInside is the path of tsugiki-load in a container.
const loadInside = "/bin/" + load.Program

func inside(args []string) []string { return append([]string{loadInside}, args...) }

// prepare returns a function that installs tsugiki-load and other programs.
func prepare(loader string, more ...string) func(context.Context, *rig.Rig) error {
	return func(_ context.Context, r *rig.Rig) error { return r.Install(append([]string{loader}, more...)...) }
}

// percentiles returns the percentiles that this number of events can show.
func percentiles(events []float64) map[string]float64 {
	var p result.Point
	p.SetPercentiles(events)
	return p.Extra
}

// merge adds to a map of extra measures.
func merge(into, from map[string]float64) {
	for name, value := range from {
		into[name] = value
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func sum(values []float64) float64 {
	total := 0.0
	for _, v := range values {
		total += v
	}
	return total
}

func mean(values []float64) float64 { return sum(values) / float64(len(values)) }

var errUnreachable = errors.New("containers without a network cannot be reached from outside; choose another with --network")
