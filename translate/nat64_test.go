package translate

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var addr = netip.MustParseAddr

func nat64(t testing.TB, prefix string) NAT64 {
	t.Helper()
	n, err := NewNAT64(netip.MustParsePrefix(prefix))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The table of RFC 6052 section 2.4.
func TestEmbedAsInRFC6052(t *testing.T) {
	v4 := addr("192.0.2.33")
	for prefix, want := range map[string]string{
		"2001:db8::/32":             "2001:db8:c000:221::",
		"2001:db8:100::/40":         "2001:db8:1c0:2:21::",
		"2001:db8:122::/48":         "2001:db8:122:c000:2:2100::",
		"2001:db8:122:300::/56":     "2001:db8:122:3c0:0:221::",
		"2001:db8:122:344::/64":     "2001:db8:122:344:c0:2:2100::",
		"2001:db8:122:344::/96":     "2001:db8:122:344::192.0.2.33",
		"2001:db8:122:344::/72":     "",
		"2001:db8:122:344::1/96":    "",
		"2001:db8:122:344:500::/96": "",
	} {
		n, err := NewNAT64(netip.MustParsePrefix(prefix))
		if want == "" {
			if err == nil {
				t.Errorf("%s is taken for a NAT64 prefix", prefix)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		got, ok := n.Embed(v4)
		if !ok || got != addr(want) {
			t.Errorf("%s behind %s is %s (%v), want %s", v4, prefix, got, ok, want)
		}
		if back, ok := n.Extract(got); !ok || back != v4 {
			t.Errorf("%s of %s is %s (%v), want %s", got, prefix, back, ok, v4)
		}
	}
}

func TestNoNAT64(t *testing.T) {
	var none NAT64
	if _, ok := none.Embed(addr("192.0.2.1")); ok || none.IsValid() || none.Contains(addr("::")) || none.String() != "none" {
		t.Error("the zero value is a NAT64")
	}
	for _, prefix := range []string{"::/96", "::ffff:0:0/96", "fe80::/64", "ff00::/32", "100::/64"} {
		if _, err := NewNAT64(netip.MustParsePrefix(prefix)); !errors.Is(err, ErrSpecial) {
			t.Errorf("%s: %v, want %v", prefix, err, ErrSpecial)
		}
	}
	if _, err := NewNAT64(netip.MustParsePrefix("192.0.2.0/24")); err == nil {
		t.Error("an IPv4 prefix is taken for a NAT64 prefix")
	}
}

func TestEmbedRefuses(t *testing.T) {
	own, all := nat64(t, "2001:db8:64::/96"), nat64(t, "64:ff9b::/96")
	for _, c := range []struct {
		v4            string
		own, wellKnow bool
	}{
		{"198.41.0.4", true, true},
		{"10.1.2.3", true, false},
		{"192.168.0.1", true, false},
		{"198.18.0.1", true, false},
		{"127.0.0.1", false, false},
		{"0.0.0.0", false, false},
		{"169.254.169.254", false, false},
		{"224.0.0.1", false, false},
		{"255.255.255.255", false, false},
	} {
		if _, ok := own.Embed(addr(c.v4)); ok != c.own {
			t.Errorf("%s: %s is embedded: %v", own, c.v4, ok)
		}
		if _, ok := all.Embed(addr(c.v4)); ok != c.wellKnow {
			t.Errorf("%s: %s is embedded: %v", all, c.v4, ok)
		}
	}
	for _, v6 := range []string{"2001:db8:65::1.2.3.4", "2001:db8:64::127.0.0.1", "::ffff:1.2.3.4"} {
		if v4, ok := own.Extract(addr(v6)); ok {
			t.Errorf("%s is %s", v6, v4)
		}
	}
	if v4, ok := nat64(t, "2001:db8::/32").Extract(addr("2001:db8:c000:221:100::")); ok {
		t.Errorf("octet 8 is not zero, and the address is %s", v4)
	}
}

func TestDiscover(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer []string
		want   []string
	}{
		{"nothing", nil, nil},
		{"no NAT64", []string{"2001:db8::1"}, nil},
		{"well-known", []string{"64:ff9b::192.0.0.170", "64:ff9b::192.0.0.171"}, []string{"64:ff9b::/96"}},
		{"one is enough", []string{"64:ff9b::192.0.0.171"}, []string{"64:ff9b::/96"}},
		{"32", []string{"2001:db8:c000:aa::"}, []string{"2001:db8::/32"}},
		{"40", []string{"2001:db8:1c0:0:aa::"}, []string{"2001:db8:100::/40"}},
		{"48", []string{"2001:db8:122:c000:0:aa00::"}, []string{"2001:db8:122::/48"}},
		{"56", []string{"2001:db8:122:3c0:0:aa::"}, []string{"2001:db8:122:300::/56"}},
		{"64", []string{"2001:db8:122:344:c0:0:aa00::"}, []string{"2001:db8:122:344::/64"}},
		{"several", []string{"64:ff9b::192.0.0.170", "2001:db8:c000:aa::"}, []string{"64:ff9b::/96", "2001:db8::/32"}},
		{"in two places", []string{"2001:db8:c000:aa::192.0.0.170"}, nil},
		{
			"in two places, and the other tells",
			[]string{"2001:db8:c000:aa::192.0.0.170", "2001:db8:c000:aa::192.0.0.171"},
			[]string{"2001:db8:c000:aa::/96"},
		},
		{"mapped", []string{"::ffff:192.0.0.170"}, nil},
		{"link-local", []string{"fe80::192.0.0.170"}, nil},
		{"IPv4", []string{"192.0.0.170"}, nil},
		{"octet 8", []string{"2001:db8:c000:aa:100::"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var answer []netip.Addr
			for _, a := range c.answer {
				answer = append(answer, addr(a))
			}
			var got []string
			for _, n := range Discover(answer) {
				got = append(got, n.String())
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// For every prefix length, Extract returns the embedded address, and Embed returns the extracted
// one.
func FuzzNAT64(f *testing.F) {
	f.Add([]byte{0x20, 1, 0xd, 0xb8, 192, 0, 2, 33, 0, 1, 2, 3, 4, 5, 6, 7}, []byte{192, 0, 2, 33})
	f.Fuzz(func(t *testing.T, six, four []byte) {
		v6, ok6 := netip.AddrFromSlice(six)
		v4, ok4 := netip.AddrFromSlice(four)
		if !ok6 || !ok4 || !v6.Is6() || !v4.Is4() {
			return
		}
		for _, bits := range lengths {
			n, err := NewNAT64(netip.PrefixFrom(v6, bits).Masked())
			if err != nil {
				continue
			}
			if in, ok := n.Embed(v4); ok {
				if out, ok := n.Extract(in); !ok || out != v4 || special6(in) && n.prefix == wellKnownPrefix {
					t.Errorf("%s behind %s is %s, which is %s", v4, n, in, out)
				}
			}
			if out, ok := n.Extract(v6); ok {
				if in, ok := n.Embed(out); !ok || !n.Contains(in) {
					t.Errorf("%s of %s is %s, which is %s", v6, n, out, in)
				}
			}
		}
		Discover([]netip.Addr{v6, v4})
	})
}

func TestReverse(t *testing.T) {
	for a, want := range map[string]string{
		"198.18.1.20": "20.1.18.198.in-addr.arpa.",
		"2001:db8::1": "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.",
	} {
		if got := ReverseName(addr(a)); got != want {
			t.Errorf("%s: %s, want %s", a, got, want)
		}
	}
	for name, want := range map[string]string{
		"20.1.18.198.in-addr.arpa.":         "198.18.1.20",
		"20.1.18.198.IN-ADDR.arpa":          "198.18.1.20",
		"1.18.198.in-addr.arpa.":            "",
		"020.1.18.198.in-addr.arpa.":        "",
		"256.1.18.198.in-addr.arpa.":        "",
		"1.20.1.18.198.in-addr.arpa.":       "",
		"20.1.18.198.in-addr.arpa.example.": "",
		"in-addr.arpa.":                     "",
	} {
		got, ok := ParseReverse4(name)
		if ok != (want != "") || ok && got != addr(want) {
			t.Errorf("%s: %s (%v), want %q", name, got, ok, want)
		}
	}
}
