package forward

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/lock"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// start calls a function in the host's namespace, and returns where its error comes.
func (r *rig) start(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- r.host.Do(f) }()
	return done
}

// Rows of addresses that lead to no pod are nobody's, whether their link is there or not.
func TestRowsOfNobody(t *testing.T) {
	r := newRig(t, false, 0)
	p := r.newPod(0).Pod
	for name, device := range map[string]uint32{"no link": 9999, "another link": uint32(r.bridge)} {
		must(t, errors.Join(r.table.maps.DeviceByAddr.Put(addrKey(p.Network, p.Addrs[0]), device),
			r.table.maps.DeviceByMac.Put(macKey(p), device)))
		if err := r.table.Found(p); err == nil {
			t.Errorf("%s: found before it was added", name)
		}
		select {
		case err := <-r.start(func() error { return errors.Join(r.table.Add(p), r.table.Found(p), r.table.Remove(p.Device)) }):
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("%s: Add does not return", name)
		}
		r.empty()
	}
}

// Who changes the table waits for who does so already.
func TestChangesWait(t *testing.T) {
	r := newRig(t, false, 2)
	a, b := r.pods[0], r.pods[1]
	late := r.newPod(2)
	pods := func() int {
		list, err := r.table.Pods()
		must(t, err)
		return len(list)
	}
	for _, c := range []struct {
		name   string
		change func() error
		after  int // pods
	}{
		{"SetPair", func() error { return r.table.SetPair(a.Device, b.Device, Slow) }, 2},
		{"SetDirect", func() error { return r.table.SetDirect(a.Device, false) }, 2},
		{"Sweep", func() error { return r.table.Sweep() }, 2},
		{"Add", func() error { return r.table.Add(late.Pod) }, 3},
		{"Remove", func() error { return r.table.Remove(b.Device) }, 2},
	} {
		dir, err := os.Open(r.table.dir)
		must(t, err)
		t.Cleanup(func() { dir.Close() })
		must(t, lock.Take(dir))
		before := pods()
		done := r.start(c.change)
		testkit.Eventually(t, func() error {
			select {
			case err := <-done:
				t.Fatalf("%s did not wait: %v", c.name, err)
				return nil
			default:
				return waits(dir)
			}
		})
		if n := pods(); n != before {
			t.Errorf("%s: %d pods, then %d", c.name, before, n)
		}
		must(t, dir.Close())
		must(t, <-done)
		if n := pods(); n != c.after {
			t.Errorf("%s: then %d pods", c.name, n)
		}
	}
}

// waits tells whether somebody waits for a file's lock (proc_locks(5)).
func waits(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	list, err := os.ReadFile("/proc/locks")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(list)) {
		if strings.Contains(line, "-> FLOCK") && strings.Contains(line, fmt.Sprintf(":%d ", st.Ino)) {
			return nil
		}
	}
	return fmt.Errorf("nobody waits for the lock:\n%s", list)
}
