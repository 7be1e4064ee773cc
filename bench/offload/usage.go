package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/proc"
)

// used is what was spent until now.
type used struct {
	host, dpu time.Duration // of Open vSwitch's daemons
	softirqs  uint64        // of received packets, on all CPUs
}

// usage reads what the switches of a way have spent. On the host counts every daemon of Open vSwitch in the
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

// switchTime sums the CPU time of Open vSwitch's daemons in a network namespace. Programs that run for a
// moment, as the agent's ovs-ofctl, do not count: one that ends in between would count negative.
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
		if err != nil || !slices.Contains([]string{"ovs-vswitchd\n", "ovsdb-server\n"}, string(name)) {
			continue
		}
		// Clocks of processes are exact; the ticks of stat are not.
		var clock int32
		if clock = int32(^pid<<3) | 2; clock >= 0 { // CPUCLOCK_SCHED of linux/posix-timers.h
			continue
		}
		var t unix.Timespec
		err = unix.ClockGettime(clock, &t)
		if _, gone := os.Stat(dir); gone != nil {
			continue
		}
		if err != nil {
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
