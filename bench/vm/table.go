package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tsugiki/tsugiki/bench/measure"
)

// paper are figures of "IPv4/IPv6 translation by socket outsourcing" (Ohashi, Shinjo, Saito): 10 GbE, one
// core, KVM, iperf and an echo server in the guest; DeleGate is the translator.
const paper = `The paper's figures (KVM, 10 GbE): Gbit/s of iperf, and ms of an echo
                    outsourced  virtio  virtio+DeleGate on host  virtio+DeleGate in guest  host  host+DeleGate
IPv4           Gbit/s     9.84    3.92                                                         9.89
                   ms     0.86    2.55                                                         0.74
IPv4 on IPv6   Gbit/s     9.78                             2.76                          1.26  9.87           5.27
                   ms     2.49                             9.98                          3.08  1.88           9.28
`

// writeTable prints medians in one table, then the paper's.
func writeTable(r *measure.Report, w io.Writer) error {
	fmt.Fprintf(w, "\n%s\n", r.Machine)
	fmt.Fprintf(w, "medians of %d rounds of %g s; in parentheses relative to %s in the same round\n\n", r.Rounds, r.DurationS, r.Base)
	if err := r.WriteBrief(w, modeNames); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, note := range r.Notes {
		fmt.Fprintln(w, note)
	}
	_, err := fmt.Fprintf(w, "\n%s", paper)
	return err
}

// noteAims compares the mode outsourced with the others whose guest has a network card, within each round.
func noteAims(r *measure.Report) {
	for _, of := range r.Results {
		stream, echo := strings.HasPrefix(of.Metric, "stream") && of.Unit == "Gbit/s", of.Metric == "echo p50"
		if of.Mode != outsourced || !stream && !echo {
			continue
		}
		for _, other := range r.Results {
			cards := []string{onTAP, onSlirp, proxyHost, proxyGuest}
			if other.Test != of.Test || other.Metric != of.Metric || !slices.Contains(cards, other.Mode) {
				continue
			}
			s := measure.Summarize(measure.Ratios(of.Values, other.Values))
			verdict := "reached"
			if stream && s.Median < 1 || echo && s.Median > 1 {
				verdict = "MISSED"
			}
			r.Note("aim %s: %s, %s, outsourced to %s: %.2f (quartiles %.2f..%.2f)", verdict, of.Test, of.Metric, other.Mode, s.Median, s.Q1, s.Q3)
		}
	}
}
