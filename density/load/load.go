// Package load drives tsugiki-load, the program with which the density study loads
// its containers (density/load/c): its command lines, what it prints, and the barrier at
// which programs in many containers wait for each other.
//
// It owns neither containers nor figures; those are density/rig's and
// density/figures'. It needs no privileges, and for a barrier a file system whose
// files can be mapped shared. Linux 5.15.
package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Program is the program's name in the folder of the binaries.
const Program = "tsugiki-load"

// ErrForeign says that something that was printed is not a result.
var ErrForeign = errors.New("not a result of " + Program)

// Idle are the arguments of a container's first program that does nothing.
func Idle() []string { return []string{"idle"} }

// Serve are the arguments of the least web server, which Web may ask.
func Serve(port uint16) []string { return []string{"serve", strconv.Itoa(int(port))} }

// Ready is the line that Idle and Serve print when they run. They end by SIGTERM.
const Ready = "ready"

// At are the arguments with which a command is executed when a barrier opens. The
// file is the path of the barrier where the program runs.
func At(file string, command ...string) []string {
	return append([]string{"at", file}, command...)
}

// Stencil are the arguments of the stencil kernel, which computes for some whole
// seconds, at least one. Its grid is 64 by 64 by 128, as Himeno's small one.
func Stencil(d time.Duration) []string {
	return []string{"stencil", "-s", strconv.Itoa(max(1, int(math.Ceil(d.Seconds()))))}
}

// StencilResult is what the stencil kernel has computed. It has compared its
// residual with the exact one already.
type StencilResult struct {
	MFLOPS             float64 // millions of floating point operations per second of wall time
	Iterations         int
	Seconds            float64
	Residual, Expected float64 // of the last iteration
}

// ParseStencil reads what the stencil kernel has printed.
func ParseStencil(out []byte) (StencilResult, error) {
	var r StencilResult
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if r.MFLOPS <= 0 || r.Iterations <= 0 || r.Seconds <= 0 {
		return r, fmt.Errorf("%w: stencil: %.200q", ErrForeign, out)
	}
	return r, nil
}

// Web are the arguments of the web client, which makes requests one after the
// other, each on a connection of its own to one of some servers (ADDR:PORT), drawn
// by the seed.
func Web(requests int, seed uint64, servers ...string) []string {
	args := []string{"web", "-n", strconv.Itoa(requests), "-r", strconv.FormatUint(seed>>1, 10)}
	return append(args, servers...)
}

// WebResult is what the web client has seen.
type WebResult struct {
	Failed  int       // requests without an answer, or with a wrong one
	Seconds float64   // that all requests took
	Took    []float64 // of each request that did not fail, in milliseconds, in their order
}

// ParseWeb reads what the web client has printed.
func ParseWeb(out []byte) (WebResult, error) {
	var raw struct {
		Failed  int       `json:"failed"`
		Seconds float64   `json:"seconds"`
		Took    []float64 `json:"took_ns"`
	}
	if err := json.Unmarshal(out, &raw); err != nil {
		return WebResult{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if raw.Failed < 0 || raw.Seconds <= 0 || raw.Failed+len(raw.Took) == 0 {
		return WebResult{}, fmt.Errorf("%w: web: %.200q", ErrForeign, out)
	}
	for i, ns := range raw.Took {
		if ns <= 0 {
			return WebResult{}, fmt.Errorf("%w: web: request %d took %v ns", ErrForeign, i, ns)
		}
		raw.Took[i] = ns / float64(time.Millisecond)
	}
	return WebResult{raw.Failed, raw.Seconds, raw.Took}, nil
}
