package rules

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/api"
)

// A pool is a prefix whose addresses, and aliases, are nobody's.
func TestParsePool(t *testing.T) {
	for text, want := range map[string]string{
		"": "198.18.0.0/15", "198.18.0.0/15": "198.18.0.0/15", "10.2.0.0/15": "10.2.0.0/15", "10.252.0.0/15": "10.252.0.0/15", "223.252.0.0/15": "223.252.0.0/15",
		"10.0.0.0/15": "", "10.254.0.0/15": "", "0.2.0.0/15": "", "127.18.0.0/15": "", "169.254.0.0/15": "", "224.2.0.0/15": "", "255.2.0.0/15": "",
		"10.19.0.0/15": "", "10.18.0.0/16": "", "10.16.0.0/14": "", "10.18.0.0": "", "2001:db8::/15": "", "::ffff:10.18.0.0/111": "", "x": "",
	} {
		p, err := ParsePool(text)
		if (err == nil) != (want != "") || err == nil && p.String() != want {
			t.Errorf("%q: %s, %v; want %s", text, p, err, want)
		}
	}
}

// A translated container reaches all of IPv6 unless its rules say where, and what was read is read
// as the same again.
func TestParseTranslation(t *testing.T) {
	many := slices.Repeat([]string{"[2001:db8::53]:53"}, 9)
	for name, tt := range map[string]struct {
		in     api.Rules
		egress []string
		dns    []string
		bad    string // the key of an error
	}{
		"alone":           {in: api.Rules{Translate: &api.Translate{}}, egress: []string{"::/0=e-1"}},
		"from an address": {in: api.Rules{Mode: "seccomp", Translate: &api.Translate{IPv6: "2001:db8::9"}}, egress: []string{"::/0=e-1"}},
		"by rules": {
			in:     api.Rules{Egress: []string{"2001:db8::/32=::"}, Translate: &api.Translate{DNS: []string{":53", "192.0.2.1:5353", "[fe80::1%eth0]:53"}}},
			egress: []string{"2001:db8::/32=e-1"}, dns: []string{"[::1]:53", "192.0.2.1:5353", "[fe80::1%eth0]:53"},
		},
		"as many as may be": {in: api.Rules{Translate: &api.Translate{DNS: many[:8]}}, egress: []string{"::/0=e-1"}, dns: many[:8]},
		"by names": {
			in:  api.Rules{NameRules: []string{"*.example.com:443"}, Translate: &api.Translate{DNS: many[:1]}},
			dns: many[:1],
		},
		"too many":       {in: api.Rules{Translate: &api.Translate{DNS: many}}, bad: "dns"},
		"no port":        {in: api.Rules{Translate: &api.Translate{DNS: []string{"2001:db8::53"}}}, bad: "dns"},
		"port 0":         {in: api.Rules{Translate: &api.Translate{DNS: []string{"[2001:db8::53]:0"}}}, bad: "dns"},
		"a strange link": {in: api.Rules{Translate: &api.Translate{DNS: []string{"[fe80::1%\n]:53"}}}, bad: "dns"},
		"IPv4":           {in: api.Rules{Translate: &api.Translate{IPv6: "198.51.100.1"}}, bad: "ipv6"},
		"mapped":         {in: api.Rules{Translate: &api.Translate{IPv6: "::ffff:198.51.100.1"}}, bad: "ipv6"},
		"a zone":         {in: api.Rules{Translate: &api.Translate{IPv6: "fe80::1%eth0"}}, bad: "ipv6"},
		"both":           {in: api.Rules{Egress: []string{"::/0=::"}, Translate: &api.Translate{IPv6: "2001:db8::9"}}, bad: "ipv6"},
		"another mode":   {in: api.Rules{Mode: "preload", Translate: &api.Translate{}}, bad: "mode"},
		"another pool":   {in: api.Rules{Translate: &api.Translate{Pool: "10.18.0.0/15"}}, egress: []string{"::/0=e-1"}},
		"gateways":       {in: api.Rules{Translate: &api.Translate{FTP: "21,2121", SIP: "5060"}}, egress: []string{"::/0=e-1"}},
		"no gateways":    {in: api.Rules{Translate: &api.Translate{FTP: "none", SIP: "none"}}, egress: []string{"::/0=e-1"}},
		"port 0 of FTP":  {in: api.Rules{Translate: &api.Translate{FTP: "21,0"}}, bad: "ftp"},
		"many gateways":  {in: api.Rules{Translate: &api.Translate{SIP: "1,2,3,4,5"}}, bad: "sip"},
		"a bad pool":     {in: api.Rules{Translate: &api.Translate{Pool: "10.18.0.0/16"}}, bad: "pool"},
	} {
		r, err := Parse(tt.in)
		var bad *TextError
		if errors.As(err, &bad) != (tt.bad != "") || bad != nil && bad.Key != tt.bad {
			t.Errorf("%s: %v; want an error for %q", name, err, tt.bad)
		}
		if err != nil {
			continue
		}
		texts := r.Texts()
		if !slices.Equal(texts.Egress, tt.egress) || !slices.Equal(texts.Translate.DNS, tt.dns) {
			t.Errorf("%s: %+v, %+v", name, texts, texts.Translate)
		}
		again, err := Parse(texts)
		if err != nil {
			t.Fatalf("%s: what it became cannot be read: %v", name, err)
		}
		if diff := cmp.Diff(texts, again.Texts()); diff != "" {
			t.Errorf("%s: read again (-first +then):\n%s", name, diff)
		}
	}
	r, err := Parse(api.Rules{Translate: &api.Translate{}})
	if err != nil || !slices.Equal(r.Translation.FTP, []uint16{21}) || r.Translation.SIP != nil {
		t.Errorf("gateways by default: %+v, %v", r.Translation, err)
	}
	from := netip.MustParseAddr("2001:db8::9")
	r, err = Parse(api.Rules{Translate: &api.Translate{IPv6: from.String()}})
	if err != nil || r.Egress[0].Endpoint.Addr != from {
		t.Errorf("it leaves from %+v, %v; want %s", r.Egress, err, from)
	}
}
