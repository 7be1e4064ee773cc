package machine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tscKHz is the rate of this machine's time stamp counter, by which QEMU's translated processor counts,
// too. A guest that measures it beside other processes may be wrong by any factor, and so is its clock.
// The kernel gives the factor to programs that read the counter themselves (perf_event_open(2),
// cap_user_time), but not where it is a guest. There /proc/cpuinfo has the rate.
func tscKHz() (uint64, error) {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY}
	attr.Size = uint32(unsafe.Sizeof(attr))
	fd, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("ask for the rate of the time stamp counter: %w", err)
	}
	defer unix.Close(fd)
	page, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("ask for the rate of the time stamp counter: %w", err)
	}
	defer func() { _ = unix.Munmap(page) }()
	const capUserTime = 1 << 3
	p := (*unix.PerfEventMmapPage)(unsafe.Pointer(&page[0]))
	if p.Capabilities&capUserTime == 0 || p.Time_mult == 0 {
		return cpuKHz("/proc/cpuinfo")
	}
	// ns = cycles * mult >> shift
	return 1_000_000 << p.Time_shift / uint64(p.Time_mult), nil
}

// cpuKHz reads the rate of the processor in a file such as /proc/cpuinfo, whose unit is MHz.
func cpuKHz(file string) (uint64, error) {
	info, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) != "cpu MHz" {
			continue
		}
		mhz, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil || mhz <= 0 {
			return 0, fmt.Errorf("read the processor's rate: %q in %s", value, file)
		}
		return uint64(mhz * 1000), nil
	}
	return 0, fmt.Errorf("read the processor's rate: no line \"cpu MHz\" in %s", file)
}
