package bandwidth

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// MinQuota is the smallest quota that the kernel accepts (min_cfs_quota_period).
const MinQuota = time.Millisecond

// None is the quota of a group without a quota.
const None time.Duration = -1

// Limit is the CPU limit of a group: Quota in each Period, and up to Burst of unused earlier quota.
// A negative quota means no quota.
type Limit struct {
	Quota, Period, Burst time.Duration
}

// Limit reads the group's limit. On a kernel without burst, before 5.14, Burst is 0.
func (g *Group) Limit() (Limit, error) {
	l, err := g.Quota()
	if err != nil || g.Root() {
		return l, err
	}
	l.Burst, err = g.Burst()
	if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrGone) {
		return l, nil
	}
	return l, err
}

// Quota reads only the group's quota and period.
func (g *Group) Quota() (Limit, error) {
	if g.Root() {
		return Limit{Quota: None}, nil
	}
	text, err := g.read(quotaFile)
	if err != nil {
		return Limit{}, err
	}
	period := ""
	if !g.all.cpu.v2 {
		if period, err = g.read(periodFile); err != nil {
			return Limit{}, err
		}
		text += " " + period
	} else {
		_, period, _ = strings.Cut(text, " ")
	}
	l, err := parseLimit(text)
	if err != nil {
		return Limit{}, fmt.Errorf("read %s: %w", g.QuotaFile(), err)
	}
	g.mu.Lock()
	g.period = period
	g.mu.Unlock()
	return l, nil
}

// QuotaText returns the text of QuotaFile.
func (g *Group) QuotaText() (string, error) { return g.read(quotaFile) }

// Burst reads the group's burst. fs.ErrNotExist: the kernel has no burst.
func (g *Group) Burst() (time.Duration, error) {
	text, err := g.read(burstFile)
	if err != nil {
		return 0, err
	}
	return micros(text)
}

// parseLimit parses "QUOTA PERIOD" in microseconds. A quota of "max" or "-1" means none.
func parseLimit(text string) (Limit, error) {
	quota, period, _ := strings.Cut(text, " ")
	l := Limit{Quota: None}
	var err error
	if l.Period, err = micros(period); err != nil {
		return Limit{}, err
	}
	if l.Period == 0 {
		return Limit{}, errors.New("a period of zero")
	}
	if quota == "max" || quota == "-1" {
		return l, nil
	}
	l.Quota, err = micros(quota)
	return l, err
}

// micros parses microseconds. They must not be negative.
func micros(text string) (time.Duration, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, err
	}
	if n < 0 || n > int64(1<<63-1)/int64(time.Microsecond) {
		return 0, fmt.Errorf("%d microseconds are out of range", n)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// SetQuota writes the quota, in whole microseconds, and keeps the period. A negative quota removes
// the limit. The kernel refuses (EINVAL) a quota below MinQuota or below the burst. In v1 it also
// refuses a quota below a child's or above a parent's.
func (g *Group) SetQuota(d time.Duration) error {
	if !g.all.cpu.v2 {
		return g.write(quotaFile, g.FormatQuota(d))
	}
	burst, err := g.Burst()
	hasBurst := err == nil
	if hasBurst && d >= 0 && burst > d {
		// Before 6.11 the kernel refuses only the burst below, after it has taken the quota.
		return g.fault("write a quota below the burst to "+g.name(quotaFile), unix.EINVAL)
	}
	if err := g.write(quotaFile, g.FormatQuota(d)); err != nil || !hasBurst || burst == 0 {
		return err
	}
	// Before kernel commit 49217ea147df (6.11) writing cpu.max wrote a thousandth of
	// the burst.
	return g.SetBurst(burst)
}

// SetBurst writes the burst, in whole microseconds. The kernel refuses (EINVAL) a burst above the
// quota. fs.ErrNotExist: the kernel has no burst.
func (g *Group) SetBurst(d time.Duration) error {
	return g.write(burstFile, FormatBurst(d))
}

// QuotaFile returns the path of the file that SetQuota writes.
func (g *Group) QuotaFile() string { return filepath.Join(g.path, g.name(quotaFile)) }

// BurstFile returns the path of the file that SetBurst writes.
func (g *Group) BurstFile() string { return filepath.Join(g.path, g.name(burstFile)) }

// FormatQuota returns the text of QuotaFile for a quota, as it is written and read. In v2 the text
// contains the period that was read last.
func (g *Group) FormatQuota(d time.Duration) string {
	if !g.all.cpu.v2 {
		if d < 0 {
			return "-1"
		}
		return strconv.FormatInt(d.Microseconds(), 10)
	}
	g.mu.Lock()
	period := g.period
	g.mu.Unlock()
	if period == "" {
		if _, err := g.Quota(); err == nil {
			return g.FormatQuota(d)
		}
		period = "100000" // the group was removed, so the text is not used
	}
	if d < 0 {
		return "max " + period
	}
	return strconv.FormatInt(d.Microseconds(), 10) + " " + period
}

// FormatBurst returns the text of BurstFile for a burst.
func FormatBurst(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }
