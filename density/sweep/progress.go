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
	lineEvery = 30 * time.Second // where there is no terminal
)

// progress shows how far a sweep is: on a terminal a bar with the time left, which is
// drawn again every second, elsewhere a line now and then.
type progress struct {
	out   io.Writer
	width int // of the terminal; 0: there is none
	stop  chan struct{}
	ended chan struct{}

	mu       sync.Mutex    // guards what follows
	expected float64       // seconds of all steps
	past     float64       // of expected: those of steps that were made
	took     time.Duration // what those took
	step     string
	what     string    // that the step does now
	share    float64   // of the step that is over, as it says; 0: it does not say
	guess    float64   // seconds that the step is expected to take
	since    time.Time // when it began
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

// show says which step is being made.
func (p *progress) show(step string, expected float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step, p.guess, p.since, p.what, p.share = step, expected, time.Now(), "", 0
	p.draw()
}

// within says how far the step is.
func (p *progress) within(what string, share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what, p.share = what, min(1, max(share, p.share))
	p.draw()
}

// say prints a line above the bar; so many seconds are left now.
func (p *progress) say(line string, left float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.width > 0 {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	fmt.Fprintln(p.out, line)
	p.expected = p.past + left
}

// done says that a step was made.
func (p *progress) done(expected float64, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.past += expected
	p.took += took
}

// state is the share that is made, and the time that is left: as much longer, or
// shorter, than was expected as what is past. A step is not over before it is.
func (p *progress) state() (share float64, left time.Duration) {
	past, took := p.past, p.took.Seconds()
	if p.share > 0 { // it counts as one that was made
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

// close ends the showing; what comes after begins on a line of its own.
func (p *progress) close() {
	close(p.stop)
	<-p.ended
	if p.width > 0 && p.step != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
