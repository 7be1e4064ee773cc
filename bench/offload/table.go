package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/tsugiki/tsugiki/bench/measure"
)

// columns are metrics of the latency figure, and their titles.
var columns = []struct{ metric, title string }{
	{"min", "min"},
	{"average", "avg"},
	{"p50", "p50"},
	{"p90", "p90"},
	{"p99", "p99"},
	{"OVS on the host", "OVS on host"},
	{"OVS on the DPU", "on DPU"},
	{"NET_RX softirqs", "softirqs/s"},
}

// paper is a row of the paper's: "OVS full offload with direct forward" on Kubernetes (Antrea 0.12,
// Open vSwitch 2.13, BlueField). Its last column is interrupts a second.
type paper struct{ test, mode, source, row string }

var papers = []paper{
	{"same node, idle", software, "Table 3", "12\t15.64\t15\t16\t31\t\t\t5400"},
	{"same node, idle", offload, "Table 3", "18\t25.25\t24\t29\t45\t\t\t120000"},
	{"same node, idle", direct, "Table 3", "9\t13.04\t13\t13\t30\t\t\t5400"},
	{"between nodes, idle", software, "Table 4", "49\t60.00\t53\t77\t104\t\t\t"},
	{"between nodes, idle", offload, "Table 4", "36\t47.96\t43\t62\t85\t\t\t"},
	{"between nodes, loaded", software, "Figures 5, 6", "\t\t347\t\t1298\t\t\t"},
	{"between nodes, loaded", offload, "Figures 5, 6", "\t\t-57 %\t\t<1000\t\t\t"},
}

// writeTables prints the medians of the rounds beside the paper's figures.
func writeTables(r *measure.Report, w io.Writer) error {
	median := map[[3]string]string{}
	for _, res := range r.Results {
		median[[3]string{res.Test, res.Mode, res.Metric}] = fmt.Sprintf("%.4g", res.Summary.Median)
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, test := range []string{"same node, idle", "same node, loaded", "between nodes, idle", "between nodes, loaded", "outside, idle", "outside, loaded"} {
		fmt.Fprintf(out, "\n%s\t\t", test)
		for _, c := range columns {
			fmt.Fprintf(out, "%s\t", c.title)
		}
		fmt.Fprintln(out)
		for _, mode := range []string{software, offload, direct} {
			fmt.Fprintf(out, "%s\there\t", mode)
			for _, c := range columns {
				fmt.Fprintf(out, "%s\t", median[[3]string{test, mode, c.metric}])
			}
			fmt.Fprintln(out)
			for _, p := range papers {
				if p.test == test && p.mode == mode {
					fmt.Fprintf(out, "\tpaper, %s\t%s\t\n", p.source, p.row)
				}
			}
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nRound trips are in us, medians of the rounds. CPU time of Open vSwitch is in ms for 1,000 round trips.")
	fmt.Fprintln(w, "The paper's last column is interrupts a second.")
	for _, note := range r.Notes {
		fmt.Fprintln(w, note)
	}
	return nil
}
