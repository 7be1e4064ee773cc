package cputime

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/cgroup"
)

// The files of a group are those of cgroup v2, or those of v1, whose cpu.stat says how it
// was throttled.
func TestGroup(t *testing.T) {
	const v1stat = "nr_periods 7\nnr_throttled 2\nthrottled_time 5\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  time.Duration
		err   error
	}{
		{"v2", map[string]string{"cpu.stat": "usage_usec 1234567\nuser_usec 1\nsystem_usec 2\nnr_periods 3\nnr_throttled 4\nthrottled_usec 5\n"}, 1234567 * time.Microsecond, nil},
		{"v1, of cpuacct alone", map[string]string{"cpuacct.usage": "1234567\n"}, 1234567, nil},
		{"v1, with cpu", map[string]string{"cpu.stat": v1stat, "cpuacct.usage": "1234567\n"}, 1234567, nil},
		{"v1, of cpu alone", map[string]string{"cpu.stat": v1stat}, 0, os.ErrProcessDone},
		{"none", nil, 0, os.ErrProcessDone},
		{"no number", map[string]string{"cpuacct.usage": "x\n"}, 0, errAny},
	} {
		dir := t.TempDir()
		for name, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := Group(dir).Elapsed()
		if wrong := !errors.Is(err, c.err) && (!errors.Is(c.err, errAny) || err == nil); got != c.want || wrong {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, got, err, c.want, c.err)
		}
	}
}

var errAny = errors.New("any error")

// A group counts what its processes use: here, what this test does.
func TestOwnGroup(t *testing.T) {
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	before, err := Group(own).Elapsed()
	if err != nil {
		t.Fatal(err)
	}
	for {
		spin(int64(time.Millisecond))
		now, err := Group(own).Elapsed()
		if err != nil {
			t.Fatal(err)
		}
		if now > before {
			return
		}
	}
}
