package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/proc"
	"github.com/tsugiki/tsugiki/internal/sys/thread"
)

// used is what was spent until now.
type used struct {
	host, dpu time.Duration // of Open vSwitch's daemons
	softirqs  uint64        // of received packets, on all CPUs
}

// usage reads what the switches of a way have spent. On the host counts every process of Open vSwitch in the
// host's namespace, whoever has started it.
func usage(w *way) (u used, err error) {
	for _, n := range w.nodes {
		host, err := switchTime(n.host.Inode())
		if err != nil {
			return u, err
		}
		u.host += host
		if n.place != n.host {
			dpu, err := switchTime(n.place.Inode())
			if err != nil {
				return u, err
			}
			u.dpu += dpu
		}
	}
	u.softirqs, err = received()
	return u, err
}

// switchTime sums the CPU time of Open vSwitch's processes in a network namespace.
func switchTime(namespace uint64) (sum time.Duration, err error) {
	pids, err := proc.All()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		var st unix.Stat_t
		if unix.Stat(filepath.Join(dir, "ns/net"), &st) != nil || st.Ino != namespace {
			continue
		}
		name, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil || !strings.HasPrefix(string(name), "ovs") {
			continue
		}
		// Clocks of processes are exact; the ticks of stat are not.
		var clock int32
		if clock = int32(^pid<<3) | 2; clock >= 0 { // CPUCLOCK_SCHED of linux/posix-timers.h
			continue
		}
		var t unix.Timespec
		if err := unix.ClockGettime(clock, &t); err != nil {
			return 0, fmt.Errorf("read clock of %s: %w", bytes.TrimSpace(name), err)
		}
		sum += time.Duration(t.Nano())
	}
	return sum, nil
}

// received counts NET_RX of /proc/softirqs.
func received() (sum uint64, err error) {
	f, err := os.Open("/proc/softirqs")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || words[0] != "NET_RX:" {
			continue
		}
		for _, w := range words[1:] {
			n, err := strconv.ParseUint(w, 10, 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
		return sum, nil
	}
	return 0, fmt.Errorf("/proc/softirqs has no NET_RX")
}

// Shares of the load.
const (
	slice    = 10 * time.Millisecond
	busy     = 8 * time.Millisecond
	loadPort = 9  // discard: nobody listens, and the answers are ICMP errors
	burst    = 32 // datagrams between two sleeps
	loadSize = 1400
)

// startLoad has a thread of CPU 0 busy, and sends datagrams on a way.
func startLoad(w *way) (stop func()) {
	var ended atomic.Bool
	var work sync.WaitGroup
	work.Go(func() {
		_ = thread.Do(func() error {
			var set unix.CPUSet
			set.Set(0)
			err := unix.SchedSetaffinity(0, &set)
			for !ended.Load() {
				for began := time.Now(); time.Since(began) < busy; {
				}
				time.Sleep(slice - busy)
			}
			return err
		})
	})
	work.Go(func() {
		_ = w.from.NS.Do(func() error {
			var set unix.CPUSet
			set.Set(0)
			c, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: w.to.Addr.AsSlice(), Port: loadPort})
			if err == nil {
				err = unix.SchedSetaffinity(0, &set)
			}
			if err != nil {
				return err
			}
			defer c.Close()
			for data := make([]byte, loadSize); !ended.Load(); time.Sleep(time.Millisecond) {
				for range burst {
					_, _ = c.Write(data) // refused: an ICMP error has come back
				}
			}
			return nil
		})
	})
	return func() {
		ended.Store(true)
		work.Wait()
	}
}
