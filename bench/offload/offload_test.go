package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// ready skips where something is missing.
func ready(t *testing.T) (bin string) {
	t.Helper()
	testkit.CheckLeaks(t)
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	if err := testkit.Programs("ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl", "ovs-appctl", "taskset"); err != nil {
		t.Skipf("skip: %v", err)
	}
	return testkit.BuildTsugiki(t)
}

func needsBPF(t *testing.T) {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/bpf", &fs); err != nil || fs.Type != unix.BPF_FS_MAGIC {
		t.Skip("skip: needs a BPF file system at /sys/fs/bpf")
	}
}

func run(t *testing.T, args ...string) *measure.Report {
	t.Helper()
	o := &options{}
	if err := o.parse(append(args, "-bin", ready(t)), io.Discard); err != nil {
		t.Fatal(err)
	}
	report, err := o.measure(context.Background(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// A short run measures every action, and each leaves the switch with the flows that it should have.
func TestControl(t *testing.T) {
	r := run(t, "-figure", "control", "-rounds", "1", "-pods", "20", "-rules", "5")
	found := map[string]bool{}
	for _, res := range r.Results {
		found[res.Mode] = found[res.Mode] || res.Metric == "took" && res.Values[0] > 0
	}
	for _, action := range actions {
		if !found[action] {
			t.Errorf("%s was not measured", action)
		}
	}
}

// A short run: with a DPU, Open vSwitch has spent nothing on the host, and the tables have all figures.
func TestLatency(t *testing.T) {
	needsBPF(t)
	r := run(t, "-rounds", "1", "-trips", "100")
	for _, res := range r.Results {
		onHost := res.Metric == "OVS on the host"
		if onHost && (res.Values[0] == 0) != (res.Mode != software) {
			t.Errorf("%s, %s: Open vSwitch on the host took %v", res.Test, res.Mode, res.Values)
		}
	}
	var out bytes.Buffer
	if err := writeTables(r, &out); err != nil {
		t.Fatal(err)
	}
	for _, c := range columns {
		if n := strings.Count(out.String(), c.title); n < 4 {
			t.Errorf("the tables have %q %d times:\n%s", c.title, n, out.String())
		}
	}
	if here := strings.Count(out.String(), " here"); here != 18 {
		t.Errorf("%d rows:\n%s", here, out.String())
	}
}

// A killed ovs-vswitchd of the DPU: packets to another node pass again.
func TestRestart(t *testing.T) {
	needsBPF(t)
	found := map[string]float64{}
	for _, res := range run(t, "-figure", "restart", "-rounds", "1").Results {
		found[res.Test+" "+res.Metric] = res.Values[0]
	}
	if found["remote longest silence"] <= 0 || found["remote start of ovs-vswitchd"] <= 0 || found["local longest silence"] <= 0 {
		t.Errorf("measured %v", found)
	}
}

func TestWrongOptions(t *testing.T) {
	for _, args := range [][]string{{"-figure", "x"}, {"-rounds", "0"}, {"-trips", "1"}, {"-pods", "1"}, {"-rules", "0"}, {"more"}} {
		if err := (&options{}).parse(args, io.Discard); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
	if r := rule(3, 20); r.Check() != nil {
		t.Error(fmt.Sprint(r), r.Check())
	}
}
