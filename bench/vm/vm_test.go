package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/machine"
)

// A short run boots all guests of User-Mode Linux and measures each way: its bytes came, and somebody has
// spent CPU time on them. The table has all columns.
func TestMeasure(t *testing.T) {
	testkit.CheckLeaks(t)
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	if err := errors.Join(machine.UML.Needs(), testkit.Programs("gcc", "haproxy", "dnsmasq", "slirp4netns")); err != nil {
		t.Skipf("skip: %v", err)
	}
	testkit.BuildTsugiki(t)
	o := &options{}
	if err := o.parse([]string{"-rounds", "1", "-duration", "50ms"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	report, err := o.measure(context.Background(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, res := range report.Results {
		// A short time may be less than a tick of the machine's clock.
		found[res.Test+", "+res.Mode+", "+res.Metric] = len(res.Values) == 1 && (res.Values[0] > 0 || strings.HasSuffix(res.Metric, "machine"))
	}
	settings := map[string][]string{
		plain:      {outsourced, onTAP, onSlirp, native},
		translated: {outsourced, proxyHost, proxyGuest, native, hostProxy},
	}
	for setting, modes := range settings {
		for _, mode := range modes {
			for _, metric := range []string{
				"stream out", "stream out, CPU processes", "stream out, CPU machine", "stream in", "stream in, CPU processes",
				"stream in, CPU machine", "echo p50", "echo p99",
			} {
				if name := "uml " + setting + ", " + mode + ", " + metric; !found[name] {
					t.Errorf("not measured: %s", name)
				}
			}
		}
	}
	var table bytes.Buffer
	if err := writeTable(report, &table); err != nil {
		t.Fatal(err)
	}
	for _, want := range append(modeNames, "aim ", "outsourced to tap:", "outsourced to tap+guest proxy:", "DeleGate") {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, table.String())
		}
	}
}

// The aims are about medians of ratios within a round, and not about ratios of medians.
func TestAims(t *testing.T) {
	r := &measure.Report{}
	for mode, values := range map[string][]float64{outsourced: {2, 30, 8}, onTAP: {1, 20, 10}, native: {9, 9, 9}} {
		for _, v := range values {
			r.Add(measure.Metric{Test: "t", Name: "stream out", Unit: "Gbit/s"}, mode, v)
			r.Add(measure.Metric{Test: "t", Name: "echo p50", Unit: "us"}, mode, v)
		}
	}
	noteAims(r)
	want := "aim reached: t, stream out, outsourced to tap: 1.50 (quartiles 1.15..1.75)\naim MISSED: t, echo p50, outsourced to tap: 1.50 (quartiles 1.15..1.75)"
	if got := strings.Join(r.Notes, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// CPU time of descendants counts.
func TestSpent(t *testing.T) {
	const loops = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; "
	cmd := exec.Command("sh", "-c", "sh -c '"+loops+" echo ready; read -r line'; true")
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(output, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	all, err := spent([]int{os.Getpid()})
	its, ierr := spent([]int{cmd.Process.Pid})
	none, nerr := spent([]int{1 << 30})
	if err := errors.Join(err, ierr, nerr); err != nil {
		t.Fatal(err)
	}
	if its <= 0 || all <= its || none != 0 {
		t.Errorf("it has spent %s, with this process %s, and a process that is not there %s", its, all, none)
	}
	input.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestWrongOptions(t *testing.T) {
	for _, args := range [][]string{
		{"-rounds", "0"}, {"-duration", "1ms"}, {"-accelerators", "kvm"}, {"-accelerators", "uml,tcg"}, {"-accelerators", ""}, {"more"},
	} {
		if err := (&options{}).parse(args, io.Discard); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}
