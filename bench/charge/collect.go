package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// collector is the argument that makes this program one daemon that logs for several
// containers, as dockerd does: collect DIR ID… reads DIR/ID/ID-stdout, which it makes,
// and writes DIR/ID/ID-json.log. For each line that it is asked on standard input it
// prints what it has worked for each of them, by the clocks of its own threads.
const collector = "collect"

// pot is one of the collector's containers.
type pot struct {
	fifo *os.File
	log  *lineLog
	cpu  atomic.Int64 // nanoseconds
}

func collect(args []string) int {
	if len(args) < 2 {
		fmt.Fprintf(os.Stderr, "charge %s: want a folder and containers\n", collector)
		return 2
	}
	pots := make(map[string]*pot)
	for _, id := range args[1:] {
		p, err := newPot(filepath.Join(args[0], id), id)
		if err != nil {
			fmt.Fprintf(os.Stderr, "charge %s: %v\n", collector, err)
			return 1
		}
		pots[id] = p
		go p.serve()
	}
	questions, answers := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		worked := make(map[string]int64)
		for id, p := range pots {
			worked[id] = p.cpu.Load()
		}
		if err := answers.Encode(worked); err != nil || !questions.Scan() {
			return 0 // nobody asks any more
		}
	}
}

func newPot(dir, id string) (*pot, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	name := filepath.Join(dir, id+"-stdout")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	fifo, err := os.OpenFile(name, os.O_RDWR, 0) // so that it never ends
	if err != nil {
		return nil, err
	}
	log, err := openLog(filepath.Join(dir, id+"-json.log"))
	return &pot{fifo: fifo, log: log}, err
}

// serve logs until the program is killed. What waits for input is no work for anyone,
// and is not measured.
func (p *pot) serve() {
	conn, err := p.fifo.SyscallConn()
	var rest []byte
	for buffer := make([]byte, 32<<10); err == nil; {
		var n int
		var readErr error
		err = conn.Read(func(fd uintptr) bool {
			defer p.measure()()
			n, readErr = syscall.Read(int(fd), buffer)
			return !errors.Is(readErr, syscall.EAGAIN)
		})
		if err = errors.Join(err, readErr); err == nil {
			rest, err = p.write(append(rest, buffer[:n]...))
		}
	}
	fmt.Fprintf(os.Stderr, "charge %s: %v\n", collector, err)
}

// write logs whole lines, and returns what is left.
func (p *pot) write(text []byte) (rest []byte, err error) {
	defer p.measure()()
	for {
		line, after, found := bytes.Cut(text, []byte("\n"))
		if !found {
			return bytes.Clone(text), nil
		}
		if err := p.log.write("stdout", string(line)+"\n"); err != nil {
			return nil, err
		}
		text = after
	}
}

// measure begins a piece of work; what it returns ends it.
func (p *pot) measure() (end func()) {
	runtime.LockOSThread()
	before := threadCPU()
	return func() {
		p.cpu.Add(int64(threadCPU() - before))
		runtime.UnlockOSThread()
	}
}

// threadCPU is the CPU clock of the thread, which there always is.
func threadCPU() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
