package main

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// resolveByHost appends the rules of "--dns host" to those of -e. With --translate, the DNS proxy
// asks the host's name servers anyway.
func (f *runFlags) resolveByHost() error {
	t := &f.translation
	if t.on || !slices.Equal(t.resolvers, []string{"host"}) {
		return nil
	}
	t.resolvers = nil
	text, err := os.ReadFile(resolvConf)
	if err != nil {
		return fmt.Errorf("--dns host: %w", err)
	}
	f.egress = append(f.egress, toNameServers(string(text))...)
	return nil
}

// toNameServers returns the rules by which programs ask the name servers of a resolv.conf(5) that
// are on the host's loopback, as systemd-resolved's stub is. Only a rule that names such a name
// server covers it. Rules for other hosts cover all other name servers.
func toNameServers(text string) (rules []string) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		addr, err := netip.ParseAddr(words[1])
		switch {
		case err != nil || !addr.IsLoopback():
		case addr.Is4():
			rules = append(rules, fmt.Sprintf("%s:53=127.0.0.1", addr))
		case addr.Is6() && !addr.Is4In6():
			rules = append(rules, fmt.Sprintf("[%s]:53=::1", addr))
		}
	}
	return rules
}
