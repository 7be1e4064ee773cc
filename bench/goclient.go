package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tsugiki/tsugiki/bench/drive"
)

// goClientCommand makes this program the client of a test: bench go-client ADDR:PORT AT-ONCE WARMUP
// DURATION. Go programs make their system calls themselves, so that no preloaded library sees them,
// and set options and ask for names as C programs seldom do.
const goClientCommand = "go-client"

// goClient makes connections to a netdrive server of tcp_crr, so many at once, and prints a sample.
func goClient(args []string, stdout io.Writer) error {
	if len(args) != 4 {
		return fmt.Errorf("%s: want 4 arguments", goClientCommand)
	}
	atOnce, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	warmup, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	duration, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	var s drive.Sample
	first, err := connectOnce(args[0])
	if err != nil {
		return err
	}
	s.Connect = microseconds(first)
	var stop, measuring atomic.Bool
	took := make([][]time.Duration, atOnce)
	errs, counted := make(chan error, atOnce), make(chan struct{}, 1)
	var all sync.WaitGroup
	for i := range atOnce {
		all.Add(1)
		go func() {
			defer all.Done()
			for !stop.Load() {
				d, err := connectOnce(args[0])
				if err != nil {
					errs <- err
					return
				}
				if measuring.Load() {
					took[i] = append(took[i], d)
					select {
					case counted <- struct{}{}:
					default:
					}
				}
			}
		}()
	}
	time.Sleep(warmup)
	before, err := machineCPU()
	if err != nil {
		return err
	}
	began := time.Now()
	measuring.Store(true)
	time.Sleep(duration)
	select {
	case <-counted: // one at least, as netdrive counts, where others have the machine
	case err := <-errs:
		return err
	}
	measuring.Store(false)
	s.Seconds = time.Since(began).Seconds()
	after, err := machineCPU()
	stop.Store(true)
	all.Wait()
	if len(errs) > 0 {
		err = <-errs
	}
	if err != nil {
		return err
	}
	list := slices.Concat(took...)
	slices.Sort(list)
	if len(list) > 0 {
		s.P50, s.P99 = microseconds(list[len(list)/2]), microseconds(list[len(list)*99/100])
	}
	s.Ops, s.Bytes = uint64(len(list)), 2*uint64(len(list))
	s.TotalBytes, s.CPUMachine = s.Bytes, after-before
	return json.NewEncoder(stdout).Encode(s)
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// connectOnce connects, sends a byte, and reads until the server closes.
func connectOnce(to string) (time.Duration, error) {
	began := time.Now()
	c, err := net.Dial("tcp", to)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := c.Write([]byte{0}); err != nil {
		return 0, err
	}
	answer, err := io.ReadAll(c)
	if err == nil && len(answer) != 1 {
		err = fmt.Errorf("an answer of %d bytes", len(answer))
	}
	return time.Since(began), err
}

// machineCPU is the CPU time of the whole machine, in seconds, as netdrive counts it.
func machineCPU() (float64, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 {
		return 0, fmt.Errorf("read /proc/stat: %q", line)
	}
	const ticks = 100 // USER_HZ
	var sum float64
	for _, i := range []int{1, 2, 3, 6, 7} { // not idle and iowait
		n, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return 0, err
		}
		sum += n / ticks
	}
	return sum, nil
}
