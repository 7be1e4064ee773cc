package sweep

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	barWidth  = 24
	lineEvery = 30 * time.Second // without a terminal
)

// progress shows how much of a sweep is done. On a terminal it draws a bar with the remaining time
// every second. Elsewhere it prints a line every lineEvery.
type progress struct {
	out   io.Writer
	width int // of the terminal in columns; 0: there is no terminal
	stop  chan struct{}
	ended chan struct{}

	mu       sync.Mutex    // guards the fields below
	expected float64       // seconds of all steps
	past     float64       // the part of expected for steps that were made
	took     time.Duration // the real time of these steps
	step     string
	what     string    // what the present step does now
	share    float64   // the done part of the present step; 0: unknown
	guess    float64   // expected seconds of the present step
	since    time.Time // start of the present step
	said     time.Time // when the last line was written
}

func newProgress(out io.Writer, expected float64) *progress {
	p := &progress{out: out, expected: expected, stop: make(chan struct{}), ended: make(chan struct{})}
	if f, ok := out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			p.width = max(int(size.Col), 40)
		}
	}
	go p.tick()
	return p
}

func (p *progress) tick() {
	defer close(p.ended)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.mu.Lock()
			p.draw()
			p.mu.Unlock()
		case <-p.stop:
			return
		}
	}
}

// show shows the step that starts.
func (p *progress) show(step string, expected float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step, p.guess, p.since, p.what, p.share = step, expected, time.Now(), "", 0
	p.draw()
}

// within shows the progress of the present step.
func (p *progress) within(what string, share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what, p.share = what, min(1, max(share, p.share))
	p.draw()
}

// say prints a line above the bar. seconds is the expected time of the steps that are left.
func (p *progress) say(line string, left float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.width > 0 {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	fmt.Fprintln(p.out, line)
	p.expected = p.past + left
}

// done records that a step was made.
func (p *progress) done(expected float64, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.past += expected
	p.took += took
}

// state returns the done share of the sweep and the remaining time. It scales the expected time by
// the ratio of real to expected time so far. A step counts as not done before it ends.
func (p *progress) state() (share float64, left time.Duration) {
	past, took := p.past, p.took.Seconds()
	if p.share > 0 { // it counts like a step that was made
		past, took = past+p.share*p.guess, took+time.Since(p.since).Seconds()
	}
	factor := 1.0
	if past > 0 {
		factor = took / past
	}
	if p.share == 0 {
		past += min(time.Since(p.since).Seconds()/factor, p.guess)
	}
	if p.expected > 0 {
		share = min(1, past/p.expected)
	}
	left = time.Duration((p.expected - past) * factor * float64(time.Second))
	return share, max(0, left).Round(time.Second)
}

func (p *progress) draw() {
	if p.step == "" {
		return
	}
	share, left := p.state()
	step := p.step
	if p.what != "" {
		step += ", " + p.what
	}
	if p.width == 0 {
		if time.Since(p.said) >= lineEvery {
			p.said = time.Now()
			fmt.Fprintf(p.out, "%3.0f %%, %v left: %s\n", 100*share, left, step)
		}
		return
	}
	full := int(share * barWidth)
	line := fmt.Sprintf("[%s%s] %3.0f %%  %v left  %s",
		strings.Repeat("#", full), strings.Repeat("-", barWidth-full), 100*share, left, step)
	fmt.Fprintf(p.out, "\r\x1b[K%s", line[:min(len(line), p.width-1)])
}

// close ends the display. Later output begins on a new line.
func (p *progress) close() {
	close(p.stop)
	<-p.ended
	if p.width > 0 && p.step != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
