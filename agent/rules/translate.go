package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/intercept/filter"
)

// Translation configures a container on an IPv6-only network whose programs know IPv4 only.
type Translation struct {
	// Resolvers are asked for names, in this order. If there is none, those of the host's
	// /etc/resolv.conf are to be asked.
	Resolvers []netip.AddrPort

	from netip.Addr // from which programs leave by name rules; invalid: an endpoint or the host says so
}

// resolversMax is the largest number of resolvers that one container may name. Each delays an
// answer when it is silent.
const resolversMax = 8

// text returns the translation as a text. Its address is that of an egress rule.
func (t *Translation) text() *api.Translate {
	if t == nil {
		return nil
	}
	text := &api.Translate{}
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
	return &Translation{Resolvers: resolvers, from: from}, append(errs, bad...)
}

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
