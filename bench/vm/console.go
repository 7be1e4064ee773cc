package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// consoleScript is what a guest runs: it executes numbered lines from its console, and tells the status
// of each.
const consoleScript = `
stty -echo
echo @0 0
while read -r number line; do
	eval "$line" </dev/null
	echo "@$number $?"
done
`

// console is a guest's shell.
type console struct {
	keyboard io.Writer
	lines    chan string
	number   int
}

// newConsole has a VMM's standard input and output as a console. The VMM is not started yet.
func newConsole(vmm *testkit.Cmd) (*console, error) {
	keyboard, err := vmm.StdinPipe()
	if err != nil {
		return nil, err
	}
	screen, err := vmm.StdoutPipe()
	if err != nil {
		return nil, err
	}
	vmm.Stderr = vmm.Stdout
	c := &console{keyboard: keyboard, lines: make(chan string, 1000)}
	go func() {
		for s := bufio.NewScanner(screen); s.Scan(); {
			c.lines <- strings.TrimSpace(s.Text())
		}
		close(c.lines)
	}()
	return c, nil
}

// run runs a line of the shell, and returns what it has printed.
func (c *console) run(ctx context.Context, line string) (string, error) {
	c.number++
	if _, err := fmt.Fprintf(c.keyboard, "%d %s\n", c.number, line); err != nil {
		return "", fmt.Errorf("write to a guest's console: %w", err)
	}
	said, status, err := c.await(ctx)
	if err == nil && status != "0" {
		err = errors.New("status " + status)
	}
	if err != nil {
		return "", fmt.Errorf("run %q in the guest: %w: %s", line, err, said)
	}
	return said, nil
}

// patience is for a guest that boots beside others, on a translated processor.
func patience() time.Duration { return 5 * testkit.Patience }

// await waits for the end of the line whose number is the last.
func (c *console) await(ctx context.Context) (said, status string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience())
	defer cancel()
	var lines []string
	for {
		select {
		case line, open := <-c.lines:
			if !open {
				return strings.Join(lines, "\n"), "", errors.New("the guest has ended")
			}
			if status, ended := strings.CutPrefix(line, fmt.Sprintf("@%d ", c.number)); ended {
				return strings.Join(lines, "\n"), status, nil
			}
			lines = append(lines, line)
		case <-ctx.Done():
			return strings.Join(lines, "\n"), "", ctx.Err()
		}
	}
}
