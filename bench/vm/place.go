package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// place is where programs of a way run.
type place interface {
	// start starts netdrive.
	start(ctx context.Context, args ...string) (*running, error)
	// output runs netdrive until it ends, and returns what it has printed.
	output(ctx context.Context, args ...string) (string, error)
}

// running is a program that runs.
type running struct {
	pid  int // on the host; 0 in a guest
	stop func(context.Context) error
}

// host is a network namespace of this machine.
type host struct {
	ns       *testkit.Namespace
	netdrive string
}

func (h host) start(ctx context.Context, args ...string) (*running, error) {
	cmd := h.ns.Command(ctx, h.netdrive, args...)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &running{cmd.Process.Pid, func(context.Context) error {
		_ = cmd.Process.Signal(unix.SIGTERM) // or it has ended
		_ = cmd.Wait()                       // by the signal
		return nil
	}}, nil
}

func (h host) output(ctx context.Context, args ...string) (string, error) {
	cmd := h.ns.Command(ctx, h.netdrive, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("run netdrive %q: %w: %s", args, err, stderr.Bytes())
	}
	return string(out), err
}

// guest is a virtual machine.
type guest struct {
	*console
	vmm    *testkit.Cmd
	prefix string // before the command line of a program
}

func (g *guest) line(args []string) string { return g.prefix + strings.Join(args, " ") }

// start starts it in the background. netdrive has a name of its own for clients, which stop ends.
func (g *guest) start(ctx context.Context, args ...string) (*running, error) {
	line := g.line(append([]string{"/bin/" + args[0]}, args...))
	if _, err := g.run(ctx, line+" >/tmp/said 2>&1 & job=$!"); err != nil {
		return nil, err
	}
	return &running{0, func(ctx context.Context) error {
		_, err := g.run(ctx, "killall "+args[0]+"; wait $job; true")
		return err
	}}, nil
}

func (g *guest) output(ctx context.Context, args ...string) (string, error) {
	return g.run(ctx, g.line(append([]string{"/bin/" + args[0]}, args...))+" 2>&1")
}

// end has the guest power off. A guest that does not is killed.
func (g *guest) end() error {
	g.number++
	_, err := fmt.Fprintf(g.keyboard, "%d poweroff -f\n", g.number)
	limit := time.After(testkit.Patience)
	for open := true; open; {
		select {
		case _, open = <-g.lines: // until the VMM closes it
		case <-limit:
			err = errors.Join(err, errors.New("the guest does not power off"), g.vmm.Cancel())
			limit = nil
		}
	}
	if werr := g.vmm.Wait(); err == nil && werr != nil {
		err = fmt.Errorf("the guest ended: %w", werr)
	}
	return err
}
