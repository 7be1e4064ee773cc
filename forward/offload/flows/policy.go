package flows

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Rule allows or denies connections. A rule about a connection's first packet decides about its
// answers too.
type Rule struct {
	Allow    bool
	From, To netip.Prefix // not valid: any
	Protocol string       // tcp, udp, sctp, icmp, icmp6; empty: any
	Ports    []uint16     // the destination's, of tcp, udp and sctp; none: any
}

// Policy is a list of rules, of which the first that covers a packet decides.
type Policy struct {
	Rules []Rule
	Allow bool // what no rule covers
}

// RulesMax is the number of rules that a policy can have.
const RulesMax = 50000

const rulesTop = 60000 // the priority of the first rule

// Check says what is wrong with a rule.
func (r *Rule) Check() error {
	if r.From.IsValid() && r.To.IsValid() && r.From.Addr().Is4() != r.To.Addr().Is4() {
		return fmt.Errorf("from %s and to %s are of different families", r.From, r.To)
	}
	for _, p := range []netip.Prefix{r.From, r.To} {
		if p.IsValid() && p != p.Masked() {
			return fmt.Errorf("%s has bits behind its length; write %s", p, p.Masked())
		}
		switch {
		case p.IsValid() && r.Protocol == "icmp" && p.Addr().Is6():
			return fmt.Errorf("icmp is of IPv4, and %s is not; write icmp6", p)
		case p.IsValid() && r.Protocol == "icmp6" && p.Addr().Is4():
			return fmt.Errorf("icmp6 is of IPv6, and %s is not; write icmp", p)
		}
	}
	if slices.Contains(r.Ports, 0) {
		return errors.New("there is no port 0; leave out ports for any")
	}
	switch r.Protocol {
	case "tcp", "udp", "sctp":
	case "", "icmp", "icmp6":
		if len(r.Ports) > 0 {
			return errors.New(`ports belong to a protocol; write protocol = "tcp", "udp" or "sctp"`)
		}
	default:
		return fmt.Errorf("unknown protocol %q; write tcp, udp, sctp, icmp or icmp6", r.Protocol)
	}
	return nil
}

// policy writes the rules.
func (b *builder) policy(p *Policy) {
	b.add(tablePolicy, rulesTop+2, "ct_state=+trk+inv", "drop")
	// Errors about a connection that is allowed.
	for _, ip := range []string{"ip", "ipv6"} {
		b.add(tablePolicy, rulesTop+1, "ct_state=+trk+rel-inv,"+ip, "goto_table:%d", tableCommit)
	}
	seen := map[string]bool{}
	for i, r := range p.Rules {
		for _, match := range r.matches() {
			if !seen[match] { // an earlier rule has decided
				seen[match] = true
				b.add(tablePolicy, rulesTop-i, match, "%s", verdict(r.Allow))
			}
		}
	}
	for _, ip := range []string{"ip", "ipv6"} {
		b.add(tablePolicy, 0, ip, "%s", verdict(p.Allow))
	}
}

func verdict(allow bool) string {
	if allow {
		return fmt.Sprintf("goto_table:%d", tableCommit)
	}
	return "drop"
}

// matches are those of a rule, without table and priority: for packets of the connection's client,
// and for its server's.
func (r *Rule) matches() (list []string) {
	for _, w := range []words{wordsOf(netip.IPv4Unspecified()), wordsOf(netip.IPv6Unspecified())} {
		is4 := w.ip == "ip"
		if r.From.IsValid() && r.From.Addr().Is4() != is4 || r.To.IsValid() && r.To.Addr().Is4() != is4 ||
			r.Protocol == "icmp" && !is4 || r.Protocol == "icmp6" && is4 {
			continue
		}
		protocol := w.ip
		switch {
		case r.Protocol == "icmp" || r.Protocol == "icmp6" || r.Protocol != "" && is4:
			protocol = r.Protocol
		case r.Protocol != "":
			protocol = r.Protocol + "6"
		}
		ports := r.Ports
		if len(ports) == 0 {
			ports = []uint16{0}
		}
		for _, port := range ports {
			list = append(list,
				match("-rpl", protocol, w.src, r.From, w.dst, r.To, "tp_dst", port),
				match("+rpl", protocol, w.src, r.To, w.dst, r.From, "tp_src", port))
		}
	}
	return list
}

func match(direction, protocol, src string, from netip.Prefix, dst string, to netip.Prefix, portField string, port uint16) string {
	text := "ct_state=+trk" + direction + "," + protocol
	if from.IsValid() {
		text += fmt.Sprintf(",%s=%s", src, from)
	}
	if to.IsValid() {
		text += fmt.Sprintf(",%s=%s", dst, to)
	}
	if port != 0 {
		text += fmt.Sprintf(",%s=%d", portField, port)
	}
	return text
}
