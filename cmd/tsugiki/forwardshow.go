package main

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"

	"github.com/tsugiki/tsugiki/forward"
)

// forwardTable is what tsugiki forward show -o json prints.
type forwardTable struct {
	Pods    []forwardPod    `json:"pods"`
	Pairs   []forwardPair   `json:"pairs"`
	Reasons []forwardReason `json:"reasons"`
}

type forwardPod struct {
	Link        string            `json:"link"`
	Device      int               `json:"device"`
	Container   string            `json:"container"`
	Interface   string            `json:"interface"`
	Network     string            `json:"network"`
	MAC         string            `json:"mac"`
	Addresses   []netip.Addr      `json:"addresses"`
	Direct      bool              `json:"direct"`
	AntiSpoof   bool              `json:"anti_spoof"`
	AllPairs    bool              `json:"all_pairs"`
	Traced      bool              `json:"traced"`
	Routed      bool              `json:"routed"`
	Packets     map[string]uint64 `json:"packets"` // by reason
	DirectBytes uint64            `json:"direct_bytes"`
	Fault       string            `json:"fault,omitempty"`
}

type forwardPair struct {
	Links   [2]string       `json:"links"`
	Verdict forward.Verdict `json:"verdict"`
}

type forwardReason struct {
	Name    string `json:"name"`
	Outcome string `json:"outcome"` // direct, slow or dropped
	Meaning string `json:"meaning"`
}

func showForward(out io.Writer, t *forward.Table, o *output) error {
	entries, err := t.Entries()
	if err != nil {
		return err
	}
	pairs, err := t.Pairs()
	if err != nil {
		return err
	}
	all := forwardTable{Pods: []forwardPod{}, Pairs: []forwardPair{}}
	links := map[int]string{}
	for _, e := range entries {
		links[e.Device] = e.Link
		all.Pods = append(all.Pods, forwardPod{
			Link: e.Link, Device: e.Device, Container: e.Owner.Container, Interface: e.Owner.Interface, Network: e.Owner.Network,
			MAC: macText(e.MAC), Addresses: e.Addrs, Direct: e.Direct, AntiSpoof: e.Checked, AllPairs: e.AllPairs, Traced: e.Traced,
			Routed: e.Gateway != [6]byte{}, Packets: e.Packets, DirectBytes: e.DirectBytes, Fault: e.Fault,
		})
	}
	for _, p := range pairs {
		all.Pairs = append(all.Pairs, forwardPair{[2]string{links[p.A], links[p.B]}, p.Verdict})
	}
	for _, r := range forward.Reasons {
		all.Reasons = append(all.Reasons, forwardReason{r.Name, string(r.Outcome()), r.Meaning})
	}
	return o.write(out, all, func() error { return printForward(out, all) })
}

func printForward(out io.Writer, all forwardTable) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "LINK\tCONTAINER\tNETWORK\tADDRESSES\tSWITCH\tDIRECT\tSLOW\tDROPPED")
	for _, p := range all.Pods {
		state, sums, why := "off", map[string]uint64{}, map[string][]string{}
		if p.Direct {
			state = "on"
		}
		if p.Fault != "" {
			state = "fault: " + p.Fault
		}
		for _, r := range all.Reasons {
			if n := p.Packets[r.Name]; n > 0 {
				sums[r.Outcome] += n
				why[r.Outcome] = append(why[r.Outcome], fmt.Sprintf("%s %d", r.Name, n))
			}
		}
		column := func(outcome string) string {
			if len(why[outcome]) == 0 {
				return "0"
			}
			return fmt.Sprintf("%d (%s)", sums[outcome], strings.Join(why[outcome], ", "))
		}
		var addrs []string
		for _, a := range p.Addresses {
			addrs = append(addrs, a.String())
		}
		fmt.Fprintf(w, "%s\t%.12s\t%s\t%s\t%s\t%d\t%s\t%s\n",
			p.Link, p.Container, p.Network, strings.Join(addrs, ", "), state, sums["direct"], column("slow"), column("dropped"))
	}
	if len(all.Pairs) > 0 {
		fmt.Fprintln(w, "\nPAIR\t\tVERDICT")
	}
	for _, p := range all.Pairs {
		fmt.Fprintf(w, "%s\t%s\t%s\n", p.Links[0], p.Links[1], p.Verdict)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nREASONS")
	w = tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, r := range all.Reasons {
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.Name, r.Outcome, r.Meaning)
	}
	return w.Flush()
}
