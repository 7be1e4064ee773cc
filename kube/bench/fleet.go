package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// process is a process of controllers, seen from the bench.
type process struct {
	cmd   *testkit.Cmd
	stdin io.WriteCloser
	nodes int

	mu        sync.Mutex // guards a question and its answer
	questions *json.Encoder
	answers   *json.Decoder
}

// start starts a process of controllers in a namespace.
func start(place *testkit.Namespace, o *order) (p *process, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p = &process{cmd: place.Command(context.Background(), self, controllersArg), nodes: len(o.Nodes)}
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a process of controllers: %w", err)
	}
	p.questions, p.answers = json.NewEncoder(p.stdin), json.NewDecoder(bufio.NewReader(stdout))
	if err := p.questions.Encode(o); err != nil {
		p.stop()
		return nil, fmt.Errorf("order controllers: %w", err)
	}
	return p, nil
}

func (p *process) ask(question string) (a answer, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err = p.questions.Encode(question); err == nil {
		err = p.answers.Decode(&a)
	}
	if err != nil {
		return a, fmt.Errorf("ask a process of controllers: %w", err)
	}
	return a, nil
}

// stop kills the process: tsugiki-kube may end at any time.
func (p *process) stop() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
	p.stdin.Close()
}

// fleet are all processes of nodes.
type fleet struct {
	processes []*process
}

func (f *fleet) stop() {
	for _, p := range f.processes {
		p.stop()
	}
	f.processes = nil
}

// ask asks all processes, and adds up their answers.
func (f *fleet) ask(question string) (answer, error) {
	list := make([]answer, len(f.processes))
	var all errgroup.Group
	for i, p := range f.processes {
		all.Go(func() (err error) {
			list[i], err = p.ask(question)
			return err
		})
	}
	sum := answer{Nodes: map[string]traffic{}, Seconds: map[int64]int64{}, Longest: map[string]float64{}}
	if err := all.Wait(); err != nil {
		return sum, err
	}
	for i := range list {
		for name, t := range list[i].Nodes {
			sum.Nodes[name] = t
		}
		for second, n := range list[i].Seconds {
			sum.Seconds[second] += n
		}
		sum.addWaits(list[i].Longest, list[i].Pause)
		sum.CPU += list[i].CPU
		sum.RSS += list[i].RSS
		sum.Heap += list[i].Heap
	}
	return sum, nil
}
