package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

const publishUsage = "write -p [ADDR:]HOST:CONTAINER[/tcp|/udp]"

// published returns the ingress rules of a -p as docker writes it. Without an address of the host
// there is a rule for IPv4, and one for IPv6 if the host has it.
func published(s string, hasIPv6 bool) ([]string, error) {
	text, protocol := policy.CutProtocol(s)
	cut := strings.LastIndex(text, ":")
	if cut < 0 {
		return nil, fmt.Errorf("-p %q: the host's port is missing; %s", s, publishUsage)
	}
	host, inside := text[:cut], text[cut+1:]
	ports, err := endpoint.ParsePortRange(inside)
	if err != nil {
		return nil, fmt.Errorf("-p %q: %w; %s", s, err, publishUsage)
	}
	var addrs []netip.Addr
	if cut := strings.LastIndex(host, ":"); cut >= 0 {
		addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host[:cut], "["), "]"))
		if err != nil {
			return nil, fmt.Errorf("-p %q: %q is no address; %s", s, host[:cut], publishUsage)
		}
		addrs, host = []netip.Addr{addr}, host[cut+1:]
	} else if addrs = []netip.Addr{netip.IPv4Unspecified()}; hasIPv6 {
		addrs = append(addrs, netip.IPv6Unspecified())
	}
	var rules []string
	for _, addr := range addrs {
		any := "0.0.0.0"
		if addr.Is6() {
			any = "[::]"
		}
		at := addr.String()
		if addr.Is6() {
			at = "[" + at + "]"
		}
		rules = append(rules, fmt.Sprintf("%s:%s%s=%s:%s", any, ports, protocol, at, host))
	}
	return rules, nil
}

// publish appends the rules of all -p to those of -i.
func (f *runFlags) publish() error {
	addresses, err := os.ReadFile("/proc/net/if_inet6")
	hasIPv6 := err == nil && len(addresses) > 0
	for _, s := range f.published {
		rules, err := published(s, hasIPv6)
		if err != nil {
			return err
		}
		f.ingress = append(f.ingress, rules...)
	}
	return nil
}
