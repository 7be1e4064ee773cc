package modes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

func newRig(t *testing.T, c Config) *Runner {
	t.Helper()
	r, err := New(context.Background(), c)
	var needs *testkit.NeedsError
	if errors.As(err, &needs) {
		t.Skipf("skip: %v", needs)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestParseModes(t *testing.T) {
	got, err := ParseModes("auto,host,pasta")
	if diff := cmp.Diff([]Mode{Auto, Host, Pasta}, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	for _, list := range []string{"", "host,", "bare"} {
		if _, err := ParseModes(list); err == nil {
			t.Errorf("ParseModes(%q) gives no error", list)
		}
	}
}

func TestRunsInItsMode(t *testing.T) {
	r := newRig(t, Config{Modes: []Mode{Host, NAT}})
	ctx := context.Background()
	for mode, address := range map[Mode]string{Host: "198.51.100.1/24", NAT: "10.88.0.11/24"} {
		run, err := r.Run(ctx, mode, "ip", "-4", "-o", "address")
		if err != nil || !strings.Contains(string(run.Stdout), address) {
			t.Errorf("mode %s has not %s: %v %s", mode, address, err, run.Stdout)
		}
		if run.Wall <= 0 {
			t.Errorf("it took %v", run.Wall)
		}
	}
	_, err := r.Run(ctx, NAT, "sh", "-c", "echo withered >&2; exit 1")
	if err == nil || !strings.Contains(err.Error(), "withered") || !strings.Contains(err.Error(), "nat") {
		t.Errorf("error does not explain: %v", err)
	}
}

func TestPin(t *testing.T) {
	r := newRig(t, Config{Modes: []Mode{Host}})
	if pinned, err := r.Pin(Anywhere); pinned != nil || err != nil {
		t.Errorf("anywhere: %+v, %v", pinned, err)
	}
	testkit.Program(t, "taskset")
	for _, p := range []Pinning{Apart, Together} {
		pinned, err := r.Pin(p)
		if err != nil {
			t.Fatal(err)
		}
		if pinned == nil && p == Apart && len(r.cpus) < 2 {
			continue
		}
		if (pinned.Client == pinned.Server) != (p == Together) {
			t.Errorf("%s: %+v", p, pinned)
		}
		run, err := r.Run(context.Background(), Host, "grep", "Cpus_allowed_list", "/proc/self/status")
		want := fmt.Sprintf("Cpus_allowed_list:\t%d\n", pinned.Client)
		if err != nil || string(run.Stdout) != want {
			t.Errorf("%s: client has %q, %v; want %q", p, run.Stdout, err, want)
		}
	}
}

func TestRunCountsDescendants(t *testing.T) {
	r := newRig(t, Config{Modes: []Mode{Host}})
	const busy = "import time\nwhile time.process_time() < 0.5: pass" // a clock of exact CPU time
	run, err := r.Run(context.Background(), Host, "sh", "-c", `python3 -c "$1"; true`, "sh", busy)
	if err != nil || run.CPU < 500*time.Millisecond {
		t.Errorf("a grandchild that was busy for half a second gave %v, %v", run.CPU, err)
	}
}

func TestShuffled(t *testing.T) {
	r := &Runner{modes: Modes}
	random := rand.New(rand.NewPCG(1, 1))
	first := make(map[Mode]int)
	for range 300 {
		order := r.Shuffled(random)
		first[order[0]]++
		slices.Sort(order)
		if diff := cmp.Diff([]Mode{Auto, Host, NAT, Preload, Seccomp}, order); diff != "" {
			t.Fatal(diff)
		}
	}
	for _, m := range Modes {
		if first[m] < 50 {
			t.Errorf("mode %s is first %d times of 300", m, first[m])
		}
	}
}

func TestCPU(t *testing.T) {
	machine, err := MachineCPU()
	if err != nil {
		t.Fatal(err)
	}
	self, err := ProcessCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	// Both clocks go on while this process is busy.
	testkit.Eventually(t, func() error {
		machineAfter, err := MachineCPU()
		if err != nil {
			t.Fatal(err)
		}
		selfAfter, err := ProcessCPU(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Millisecond); time.Now().Before(deadline); {
		}
		if m, s := machineAfter-machine, selfAfter-self; m < 20*time.Millisecond || s < 20*time.Millisecond {
			return fmt.Errorf("the machine has spent %v, this process %v", m, s)
		}
		return nil
	})
	if _, err := ProcessCPU(-1); err == nil {
		t.Error("no error for a process that is not there")
	}
}
