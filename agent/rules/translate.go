package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/intercept/filter"
)

// Translation configures a container on an IPv6-only network whose programs know IPv4 only.
type Translation struct {
	// Resolvers are asked for names, in this order. If there is none, those of the host's
	// /etc/resolv.conf are to be asked.
	Resolvers []netip.AddrPort
	// Pool has the virtual addresses, see ParsePool.
	Pool netip.Prefix
	// FTP are the ports whose connections are FTP's control connections. In those, the addresses of
	// data connections are translated.
	FTP []uint16
	// SIP are the ports of TCP and UDP at which SIP is spoken. The addresses in their messages are
	// translated.
	SIP []uint16

	from netip.Addr // from which programs leave by name rules; invalid: an endpoint or the host says so
}

// resolversMax is the largest number of resolvers that one container may name. Each delays an
// answer when it is silent.
const resolversMax = 8

// IsLike tells whether IPv4 is translated in one way, whatever the resolvers are. Both may be nil.
func (t *Translation) IsLike(o *Translation) bool {
	a, b := t.text(), o.text()
	if a == nil || b == nil {
		return a == b
	}
	a.DNS, b.DNS = nil, nil
	return reflect.DeepEqual(a, b)
}

// text returns the translation as a text. Its address is that of an egress rule.
func (t *Translation) text() *api.Translate {
	if t == nil {
		return nil
	}
	text := &api.Translate{Pool: t.Pool.String(), FTP: portsText(t.FTP), SIP: portsText(t.SIP)}
	for _, r := range t.Resolvers {
		text.DNS = append(text.DNS, r.String())
	}
	return text
}

// parseTranslation reads how IPv4 is translated; nil: it is not. It completes the rules of such a
// container: without an egress rule and a name rule, programs reach all of IPv6.
func parseTranslation(t *api.Rules) (*Translation, []*TextError) {
	if t.Translate == nil {
		return nil, nil
	}
	var errs []*TextError
	if t.Mode == filter.Preload.String() {
		errs = append(errs, &TextError{"mode", 0, errors.New("IPv4 is translated in the modes auto and seccomp")})
	}
	var from netip.Addr
	if text := t.Translate.IPv6; text != "" {
		addr, err := netip.ParseAddr(text)
		switch {
		case err != nil || !addr.Is6() || addr.Is4In6() || addr.Zone() != "":
			errs = append(errs, &TextError{"ipv6", 0, fmt.Errorf("bad ipv6 %q: it is no IPv6 address", text)})
		case len(t.Egress) > 0:
			errs = append(errs, &TextError{"ipv6", 0, errors.New("an egress rule names the address from which programs leave; leave ipv6 out")})
		}
		from = addr
	}
	if len(t.Egress) == 0 && len(t.NameRules) == 0 && len(errs) == 0 {
		if !from.IsValid() {
			from = netip.IPv6Unspecified()
		}
		t.Egress = []string{"::/0=" + from.String()}
	}
	resolvers, bad := parseList("dns", t.Translate.DNS, func(s string) ([]netip.AddrPort, error) {
		r, err := ParseResolver(s)
		return []netip.AddrPort{r}, err
	})
	if len(resolvers) > resolversMax {
		bad = append(bad, &TextError{"dns", resolversMax, fmt.Errorf("there are %d resolvers, at most %d may be", len(resolvers), resolversMax)})
	}
	pool, err := ParsePool(t.Translate.Pool)
	if err != nil {
		bad = append(bad, &TextError{"pool", 0, err})
	}
	ftp, err := parsePorts(t.Translate.FTP, []uint16{ftpPort})
	if err != nil {
		bad = append(bad, &TextError{"ftp", 0, err})
	}
	sip, err := parsePorts(t.Translate.SIP, nil)
	if err != nil {
		bad = append(bad, &TextError{"sip", 0, err})
	}
	return &Translation{Resolvers: resolvers, Pool: pool, FTP: ftp, SIP: sip, from: from}, append(errs, bad...)
}

// ftpPort is the port of FTP's control connections (RFC 959).
const ftpPort = 21

// gatewayPortsMax is the largest number of ports that one container may name for FTP, or for SIP: half
// of RELAYED_PORTS_MAX of the kernel programs.
const gatewayPortsMax = 4

// noPorts is the text for no port at all.
const noPorts = "none"

// parsePorts reads a list of ports, PORT[,PORT]... or none. An empty text is the default.
func parsePorts(text string, byDefault []uint16) (list []uint16, err error) {
	switch text {
	case "":
		return byDefault, nil
	case noPorts:
		return nil, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		port, err := strconv.ParseUint(word, 10, 16)
		if err != nil || port == 0 {
			return nil, fmt.Errorf("bad ports %q: they are not of the form PORT[,PORT]..., or none", text)
		}
		list = append(list, uint16(port))
	}
	if len(list) > gatewayPortsMax {
		return nil, fmt.Errorf("there are %d ports, at most %d may be", len(list), gatewayPortsMax)
	}
	return list, nil
}

// portsText is the text of parsePorts for a list.
func portsText(list []uint16) string {
	if len(list) == 0 {
		return noPorts
	}
	words := make([]string, len(list))
	for i, port := range list {
		words[i] = strconv.Itoa(int(port))
	}
	return strings.Join(words, ",")
}

// defaultPool is the range for benchmarks of devices (RFC 2544), which no network routes.
const defaultPool = "198.18.0.0/15"

// poolBits is the length of a pool. The kernel programs know no other (bpf/virtual.h).
const poolBits = 15

// ParsePool reads a pool of virtual addresses; an empty text is the default one. In the container, its
// addresses mean no other hosts. Aliases are the same addresses with 127 for the first octet, so a
// pool may not begin with N.0 or N.254: 127.0.0.1 and 127.255.255.255 are not aliases.
func ParsePool(s string) (netip.Prefix, error) {
	if s == "" {
		s = defaultPool
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || !p.Addr().Is4() || p.Bits() != poolBits || p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("bad pool %q: it is not an IPv4 prefix of %d bits, such as %s", s, poolBits, defaultPool)
	}
	first := p.Addr().As4()
	if kindOf(p) != "" || first[0] >= 224 || first[1] == 0 || first[1] == 254 || p.Overlaps(linkLocal4) {
		return netip.Prefix{}, fmt.Errorf("bad pool %q: its addresses are special, or their aliases in 127.%d.0.0/%d; take %s or 10.18.0.0/15", s, first[1], poolBits, defaultPool)
	}
	return p, nil
}

var linkLocal4 = netip.MustParsePrefix("169.254.0.0/16")

// ParseResolver reads a resolver, ADDR:PORT. Without an address it is on the host's loopback.
func ParseResolver(s string) (netip.AddrPort, error) {
	text := s
	if strings.HasPrefix(s, ":") {
		text = "[::1]" + s
	}
	r, err := netip.ParseAddrPort(text)
	if err != nil || r.Port() == 0 || strings.ContainsFunc(r.Addr().Zone(), unfitForZone) {
		return netip.AddrPort{}, fmt.Errorf("bad dns %q: it is not of the form ADDR:PORT, IPv6 in brackets", s)
	}
	return r, nil
}

// zoneLetters are those of names of links that are worth writing.
const zoneLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"

func unfitForZone(r rune) bool { return !strings.ContainsRune(zoneLetters, r) }
