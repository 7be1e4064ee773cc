// Package figures is the experiments of the density study: those of the study on
// highly consolidated containers (Umezawa and Yamaguchi), in their order, and what it
// left open.
//
// It owns what is measured and how, and what is written beside it. Containers are
// density/rig's, the order and the repeating of steps density/sweep's, the programs
// that load containers density/load's, statistics density/result's. It needs what
// density/rig needs, the programs that an experiment's Plan asks for, and for pressure
// a kernel with PSI, without which that is left out.
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

// All are the experiments, the study's first.
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

// Rounds, if nobody says how many: an interval takes three.
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

// quickMax bounds the containers of a quick sweep that was not told how many.
const quickMax = 4

// largest is how many containers an experiment goes to, if the study went to so many.
func largest(o *sweep.Options, study int) int {
	switch {
	case o.Max > 0:
		return o.Max
	case o.Quick:
		return min(study, quickMax)
	}
	return study
}

// doubling are 1, 2, 4 and so on, and the largest.
func doubling(largest int) []int {
	var list []int
	for n := 1; n < largest; n *= 2 {
		list = append(list, n)
	}
	return append(list, largest)
}

// variant is what differs between the containers that are compared.
type variant struct {
	network, runtime, storage string
	labels                    map[string]string // of its series: those of the three that are compared
}

// variants are all that were asked for, or some usual ones.
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

// order makes the series that samples are to have, in the order of the variants and not
// in the one in which they are drawn.
func order(f *result.Figure, list []variant, series ...string) {
	for _, v := range list {
		for _, name := range series {
			f.Line(name, v.labels)
		}
	}
}

// most is the variant that takes most of the machine, for the check of its limits.
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

// has says whether a variant has a network.
func has(list []variant, network string) bool {
	return slices.ContainsFunc(list, func(v variant) bool { return v.network == network })
}

// binEnv names the folder of the binaries for tests, as it does for density/rig.
const binEnv = "TSUGIKI_BIN"

// findLoad finds the program that loads containers.
func findLoad() (string, error) {
	if dir := os.Getenv(binEnv); dir != "" {
		return programs.FindIn(load.Program, []string{dir})
	}
	return programs.Find(load.Program)
}

// need finds a program of the machine's.
func need(program, pkg string) error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%s: %w; install the package %s", program, rig.ErrMissing, pkg)
	}
	return nil
}

// loadInside is tsugiki-load in a container.
const loadInside = "/bin/" + load.Program

func inside(args []string) []string { return append([]string{loadInside}, args...) }

// prepare installs tsugiki-load, and more.
func prepare(loader string, more ...string) func(context.Context, *rig.Rig) error {
	return func(_ context.Context, r *rig.Rig) error { return r.Install(append([]string{loader}, more...)...) }
}

// percentiles are those that so many events can tell.
func percentiles(events []float64) map[string]float64 {
	var p result.Point
	p.SetPercentiles(events)
	return p.Extra
}

// merge adds to extra measures.
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
