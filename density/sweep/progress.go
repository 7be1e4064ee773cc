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
	since    time.Time // when the step began
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
func (p *progress) show(step string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step, p.since = step, time.Now()
	p.draw()
}

// done says that a step was made.
func (p *progress) done(expected float64, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.past += expected
	p.took += took
}

// left is what is expected to be left: as much longer, or shorter, than was expected as
// what is past.
func (p *progress) left() time.Duration {
	factor := 1.0
	if p.past > 0 {
		factor = p.took.Seconds() / p.past
	}
	left := (p.expected-p.past)*factor - time.Since(p.since).Seconds()
	return max(0, time.Duration(left*float64(time.Second)))
}

func (p *progress) draw() {
	if p.step == "" {
		return
	}
	share := 0.0
	if p.expected > 0 {
		share = min(1, p.past/p.expected)
	}
	left := p.left().Round(time.Second)
	if p.width == 0 {
		if time.Since(p.said) >= lineEvery {
			p.said = time.Now()
			fmt.Fprintf(p.out, "%3.0f %%, %v left: %s\n", 100*share, left, p.step)
		}
		return
	}
	full := int(share * barWidth)
	line := fmt.Sprintf("[%s%s] %3.0f %%  %v left  %s",
		strings.Repeat("#", full), strings.Repeat("-", barWidth-full), 100*share, left, p.step)
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
