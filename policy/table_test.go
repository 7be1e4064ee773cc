package policy_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/policytest"
)

// verdict is the name of the endpoint that an address goes to, "-" for the
// container's own namespace.
func verdict(tb *policy.Table, to string) string {
	if ep := tb.Egress(policy.TCP, netip.MustParseAddrPort(to)); ep != nil {
		return ep.Name
	}
	return "-"
}

func TestEgress(t *testing.T) {
	tests := []struct {
		name  string
		rules []string
		want  map[string]string
	}{
		{"none", nil, map[string]string{"198.51.100.2:80": "-", "[2001:db8::2]:80": "-"}},
		{"a default route leaves the special prefixes alone", []string{"0.0.0.0/0=any", "::/0=six"}, map[string]string{
			"198.51.100.2:80":            "any",
			"127.0.0.1:80":               "-",
			"127.255.255.254:80":         "-",
			"0.0.0.0:80":                 "-",
			"169.254.169.254:80":         "-",
			"224.0.0.251:5353":           "-",
			"255.255.255.255:67":         "-",
			"[2001:db8::2]:80":           "six",
			"[::1]:80":                   "-",
			"[::]:80":                    "-",
			"[fe80::1]:80":               "-",
			"[ff02::1]:80":               "-",
			"[::ffff:198.51.100.2]:80":   "any",
			"[::ffff:127.0.0.1]:80":      "-",
			"[::ffff:169.254.169.254]:1": "-",
		}},
		{"IPv6's default route is not IPv4's", []string{"::/0=six"}, map[string]string{
			"198.51.100.2:80": "-", "[::ffff:198.51.100.2]:80": "-",
		}},
		{"special prefixes can be named, whole or in part", []string{"0.0.0.0/0=any", "127.0.0.0/8=a", "169.254.169.254:80=b"}, map[string]string{
			"127.0.0.1:80": "a", "169.254.169.254:80": "b", "169.254.169.254:81": "-", "169.254.1.1:80": "-",
		}},
		{"a part of a special prefix leaves the rest", []string{"127.0.0.0/24=a"}, map[string]string{
			"127.0.0.1:80": "a", "127.0.1.1:80": "-",
		}},
		{"the longest prefix wins", []string{"0.0.0.0/0=any", "10.0.0.0/8=a", "10.1.0.0/16=b"}, map[string]string{
			"10.1.2.3:80": "b", "10.2.2.3:80": "a", "11.2.2.3:80": "any",
		}},
		{"ports that a prefix does not have are the wider one's", []string{"10.0.0.0/8=a", "10.1.0.0/16:53=b"}, map[string]string{
			"10.1.2.3:53": "b", "10.1.2.3:80": "a",
		}},
		{"the narrower range wins", []string{"10.0.0.0/8:1-1000=a", "10.0.0.0/8:53=b", "10.0.0.0/8=any"}, map[string]string{
			"10.1.2.3:53": "b", "10.1.2.3:80": "a", "10.1.2.3:2000": "any",
		}},
		{"only some ports", []string{"10.0.0.0/8:80-81=a"}, map[string]string{
			"10.1.2.3:79": "-", "10.1.2.3:80": "a", "10.1.2.3:81": "a", "10.1.2.3:82": "-",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tb, err := policytest.Table(t, nil, tt.rules)
			if err != nil {
				t.Fatal(err)
			}
			for to, want := range tt.want {
				if got := verdict(tb, to); got != want {
					t.Errorf("%s goes to %s, want %s", to, got, want)
				}
			}
		})
	}
}

func TestIngress(t *testing.T) {
	tb, err := policytest.Table(t, []string{
		"0.0.0.0:80=web", "0.0.0.0:9000-9099=a", "10.88.0.11:80=b", "127.0.0.1:81=b", "[::]:80=six", "0.0.0.0:0=any",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ bind, endpoint, port string }{
		{"0.0.0.0:80", "web", "8080"},
		{"10.88.0.12:80", "web", "8080"},
		{"10.88.0.11:80", "b", "80"},
		{"0.0.0.0:9005", "a", "9005"},
		{"0.0.0.0:9100", "-", "0"},
		{"0.0.0.0:0", "any", "0"},
		{"127.0.0.1:80", "-", "0"},
		{"127.0.0.1:81", "b", "81"},
		{"[::]:80", "six", "80"},
		{"[2001:db8::7]:80", "six", "80"},
		{"[::1]:80", "-", "0"},
		{"[::]:81", "-", "0"},
	}
	for _, tt := range tests {
		ep, port := tb.Ingress(policy.TCP, netip.MustParseAddrPort(tt.bind))
		name := "-"
		if ep != nil {
			name = ep.Name
		}
		if name != tt.endpoint || fmt.Sprint(port) != tt.port {
			t.Errorf("%s: %s port %d, want %s port %s", tt.bind, name, port, tt.endpoint, tt.port)
		}
	}
}

func TestDefault(t *testing.T) {
	tests := []struct {
		rules   []string
		v4, v6  string
		egress  bool
		comment string
	}{
		{nil, "-", "-", false, "no rules"},
		{[]string{"0.0.0.0/0=any"}, "any", "-", true, "IPv4 only"},
		{[]string{"0.0.0.0/0:80=any", "::/0=six"}, "-", "six", true, "not on every port"},
		{[]string{"0.0.0.0/0:80=a", "0.0.0.0/0=any"}, "any", "-", true, "on every port"},
		{[]string{"10.0.0.0/8=a"}, "-", "-", true, "a part"},
	}
	for _, tt := range tests {
		tb, err := policytest.Table(t, nil, tt.rules)
		if err != nil {
			t.Fatal(err)
		}
		for ip6, want := range map[bool]string{false: tt.v4, true: tt.v6} {
			got := "-"
			if ep := tb.Default(ip6); ep != nil {
				got = ep.Name
			}
			if got != want {
				t.Errorf("%s: default (IPv6: %v) is %s, want %s", tt.comment, ip6, got, want)
			}
		}
		if (tb.HasEgress(false) || tb.HasEgress(true)) != tt.egress {
			t.Errorf("%s: HasEgress is %v", tt.comment, !tt.egress)
		}
	}
}

func TestContradictions(t *testing.T) {
	var many []string
	for port := 1; port <= policy.RangesMax+1; port++ {
		many = append(many, fmt.Sprintf("10.0.0.0/8:%d=a", port))
	}
	tests := []struct {
		ingress, egress []string
		says            string
	}{
		{nil, []string{"10.0.0.0/8=a", "10.0.0.0/8=b"}, "is given to"},
		{nil, []string{"10.0.0.0/8:80=a", "10.0.0.0/8:80=b"}, "is given to"},
		{nil, many, "at most 32"},
		{[]string{"0.0.0.0:80=a", "0.0.0.0:79-81=b"}, nil, "overlap"},
		{[]string{"0.0.0.0:80/udp=a", "0.0.0.0:79-81=b"}, nil, "overlap"},
	}
	for _, tt := range tests {
		_, err := policytest.Table(t, tt.ingress, tt.egress)
		if !errors.Is(err, policy.ErrRule) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%v %v: %v; want ErrRule that says %q", tt.ingress, tt.egress, err, tt.says)
		}
	}
	if _, err := policytest.Table(t, nil, many[:policy.RangesMax]); err != nil {
		t.Errorf("%d ranges: %v", policy.RangesMax, err)
	}
}

// A rule for one protocol leaves the other alone.
func TestIngressOfProtocols(t *testing.T) {
	tb, err := policytest.Table(t, []string{"0.0.0.0:53/udp=a", "0.0.0.0:53/tcp=b", "[::]:53/udp=six"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		protocol   policy.Protocol
		bind, want string
	}{{policy.UDP, "0.0.0.0:53", "a"}, {policy.TCP, "0.0.0.0:53", "b"}, {policy.UDP, "[::]:53", "six"}, {policy.TCP, "[::]:53", "-"}} {
		got := "-"
		if ep, _ := tb.Ingress(tt.protocol, netip.MustParseAddrPort(tt.bind)); ep != nil {
			got = ep.Name
		}
		if got != tt.want {
			t.Errorf("%s%s: %s, want %s", tt.bind, tt.protocol, got, tt.want)
		}
	}
}

// The rule that is shown decides: for its ports and its protocol alone, and none where no rule leads.
func TestEgressRule(t *testing.T) {
	eps := map[string]*endpoint.Endpoint{"a": policytest.Fresh(t, "a", 1), "b": policytest.Fresh(t, "b", 2)}
	tb, err := policy.NewTable(nil, policytest.RulesOf(t, []string{"198.51.100.0/24:80-81/tcp=a", "198.51.0.0/16=b", "203.0.113.0/24:53/udp=b"}, eps))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		protocol policy.Protocol
		to, want string
	}{
		{policy.TCP, "198.51.100.1:80", "a"},
		{policy.TCP, "[::ffff:198.51.100.1]:81", "a"},
		{policy.UDP, "198.51.100.1:80", "b"}, // the wider prefix has what the narrower one leaves
		{policy.TCP, "198.51.100.1:82", "b"},
		{policy.UDP, "198.51.7.1:82", "b"},
		{policy.TCP, "192.0.2.1:80", ""},
		{policy.TCP, "203.0.113.1:53", ""},
		{policy.TCP, "[2001:db8::1]:80", ""},
	} {
		name := ""
		if r := tb.EgressRule(test.protocol, netip.MustParseAddrPort(test.to)); r.Endpoint != nil {
			name = r.Endpoint.Name
		}
		if name != test.want {
			t.Errorf("%s%s goes by %q, want %q", test.to, test.protocol, name, test.want)
		}
	}
}

func TestProtocols(t *testing.T) {
	for p, want := range map[policy.Protocol]string{0: "", policy.TCP: "/tcp", policy.UDP: "/udp", 132: "/132"} {
		if got := p.String(); got != want {
			t.Errorf("protocol %d is %q, want %q", int(p), got, want)
		}
	}
}
