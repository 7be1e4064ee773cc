// Package load runs tsugiki-load (density/load/c), the program with which the density study
// loads its containers. It owns the program's command lines, the parsing of its output, and the
// barrier at which programs in many containers wait for each other.
//
// Containers belong to density/rig, and figures to density/figures. The package needs no
// privilege. A barrier needs a file system with shared mappings. Linux 5.15.
package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Program is the program's file name.
const Program = "tsugiki-load"

// ErrForeign is wrapped by errors about output that is not a result of the program.
var ErrForeign = errors.New("not a result of " + Program)

// Idle returns the arguments for a program that does nothing until SIGTERM.
func Idle() []string { return []string{"idle"} }

// Serve returns the arguments for a minimal web server, which serves Web until SIGTERM.
func Serve(port uint16) []string { return []string{"serve", strconv.Itoa(int(port))} }

// Ready is the line that Idle and Serve print when they are ready.
const Ready = "ready"

// At returns the arguments for executing a command when a barrier opens. The file is the
// barrier's path as the program sees it.
func At(file string, command ...string) []string {
	return append([]string{"at", file}, command...)
}

// Stencil returns the arguments for the stencil kernel, which computes for a number of whole
// seconds, at least one. Its grid is Himeno's small one: 64 by 64 by 128.
func Stencil(d time.Duration) []string {
	return []string{"stencil", "-s", strconv.Itoa(max(1, int(math.Ceil(d.Seconds()))))}
}

// StencilResult is the result of the stencil kernel. The program has compared the residual with
// the expected one.
type StencilResult struct {
	MFLOPS             float64 // millions of floating point operations per second of wall time
	Iterations         int
	Seconds            float64
	Residual, Expected float64 // of the last iteration
}

// ParseStencil parses the output of the stencil kernel.
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

// Web returns the arguments for the web client. It makes requests one after the other, each on a
// new connection. The seed determines the server (ADDR:PORT) of each request.
func Web(requests int, seed uint64, servers ...string) []string {
	args := []string{"web", "-n", strconv.Itoa(requests), "-r", strconv.FormatUint(seed>>1, 10)}
	return append(args, servers...)
}

// WebResult is the result of the web client.
type WebResult struct {
	Failed  int       // requests without an answer, or with a wrong one
	Seconds float64   // of all requests together
	Took    []float64 // milliseconds of each request that did not fail, in their order
}

// ParseWeb parses the output of the web client.
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
