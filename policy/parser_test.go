package policy_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// lines are endpoints as they are written.
func lines(eps *endpoint.Set) []string {
	var list []string
	for _, ep := range eps.All() {
		list = append(list, ep.String())
	}
	return list
}

func TestParserMakesEndpoints(t *testing.T) {
	tests := []struct {
		name            string
		endpoints       []string
		ingress, egress []string
		rules, made     []string
	}{
		{
			name:    "another port",
			ingress: []string{"0.0.0.0:80=198.51.100.1:8080", "[::]:80=[2001:db8::1]:8080"},
			rules:   []string{"0.0.0.0:80=i-1", "[::]:80=i-2"},
			made:    []string{"i-1 type ipv4 addr 198.51.100.1 port 8080", "i-2 type ipv6 addr 2001:db8::1 port 8080"},
		},
		{
			name:    "the same ports",
			ingress: []string{"0.0.0.0:80=198.51.100.1", "0.0.0.0:8000-8099=198.51.100.1", "[::]:80=2001:db8::1", "[::]:81=[2001:db8::1]"},
			rules:   []string{"0.0.0.0:80=i-1", "0.0.0.0:8000-8099=i-2", "[::]:80=i-3", "[::]:81=i-4"},
			made: []string{
				"i-1 type ipv4 addr 198.51.100.1 port 80", "i-2 type ipv4 addr 198.51.100.1 port 8000-8099",
				"i-3 type ipv6 addr 2001:db8::1 port 80", "i-4 type ipv6 addr 2001:db8::1 port 81",
			},
		},
		{
			name:    "the same range, written again",
			ingress: []string{"0.0.0.0:8000-8099=0.0.0.0:8000-8099"},
			rules:   []string{"0.0.0.0:8000-8099=i-1"},
			made:    []string{"i-1 type ipv4 addr 0.0.0.0 port 8000-8099"},
		},
		{
			name:    "a port of the host's choice",
			ingress: []string{"0.0.0.0:0=198.51.100.1"},
			rules:   []string{"0.0.0.0:0=i-1"},
			made:    []string{"i-1 type ipv4 addr 198.51.100.1 port dynamic"},
		},
		{
			name:   "egress of one address",
			egress: []string{"0.0.0.0/0=198.51.100.1", "::/0=::", "10.0.0.0/8:53=198.51.100.1", "[2001:db8::/32]:443=[::]"},
			rules:  []string{"0.0.0.0/0=e-1", "::/0=e-2", "10.0.0.0/8:53=e-1", "[2001:db8::/32]:443=e-2"},
			made:   []string{"e-1 type ipv4 addr 198.51.100.1 port dynamic", "e-2 type ipv6 addr :: port dynamic"},
		},
		{
			name:      "beside names",
			endpoints: []string{"out type ipv4 addr 0.0.0.0 port dynamic"},
			ingress:   []string{"0.0.0.0:80=out", "0.0.0.0:81=0.0.0.0"},
			egress:    []string{"10.0.0.0/8=out", "0.0.0.0/0=0.0.0.0"},
			rules:     []string{"0.0.0.0:80=out", "0.0.0.0:81=i-2", "10.0.0.0/8=out", "0.0.0.0/0=e-2"},
			made:      []string{"e-2 type ipv4 addr 0.0.0.0 port dynamic", "i-2 type ipv4 addr 0.0.0.0 port 81", "out type ipv4 addr 0.0.0.0 port dynamic"},
		},
		{
			name:      "both families",
			endpoints: []string{"web type ip addr 198.51.100.1 addr6 2001:db8::1 port 8080 netns n", "db type unix path /x"},
			ingress:   []string{":80/tcp=web", ":81=db"},
			rules:     []string{"0.0.0.0:80/tcp=web.4", "[::]:80/tcp=web.6", "0.0.0.0:81=db", "[::]:81=db"},
			made: []string{
				"db type unix path /x", "web.4 type ipv4 addr 198.51.100.1 port 8080 netns n", "web.6 type ipv6 addr 2001:db8::1 port 8080 netns n",
			},
		},
		{
			name:      "a name that could be an address",
			endpoints: []string{"198.51.100.1 type ipv4 addr 203.0.113.1 port dynamic"},
			egress:    []string{"0.0.0.0/0=198.51.100.1"},
			rules:     []string{"0.0.0.0/0=198.51.100.1"},
			made:      []string{"198.51.100.1 type ipv4 addr 203.0.113.1 port dynamic"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rules, made, err := parseAll(tt.endpoints, tt.ingress, tt.egress)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.rules, rules); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.made, made); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
		})
	}
}

// parseAll parses what makes a container, and writes it again.
func parseAll(endpoints, ingress, egress []string) (rules, made []string, err error) {
	var eps endpoint.Set
	for _, s := range endpoints {
		all, err := endpoint.ParseAll(s)
		for _, ep := range all {
			if err == nil {
				err = eps.Add(ep)
			}
		}
		if err != nil {
			return nil, nil, err
		}
	}
	p := policy.Parser{Endpoints: &eps}
	for _, s := range ingress {
		list, err := p.Ingress(s)
		if err != nil {
			return nil, nil, err
		}
		for _, r := range list {
			rules = append(rules, r.String())
		}
	}
	for _, s := range egress {
		list, err := p.Egress(s)
		if err != nil {
			return nil, nil, err
		}
		for _, r := range list {
			rules = append(rules, r.String())
		}
	}
	return rules, lines(&eps), nil
}

func TestParserSaysWhatIsWrong(t *testing.T) {
	for _, tt := range []struct{ flag, in, says string }{
		{"-i", "0.0.0.0:80", "=ENDPOINT"},
		{"-i", "0.0.0.0:80=nope", "unknown endpoint"},
		{"-i", "0.0.0.0:80=198.51.100.300", "unknown endpoint"},
		{"-i", ":80=nope", `unknown endpoint "nope.4"`},
		{"-i", "0.0.0.0:80=nope:80", `"nope" is neither an endpoint nor a host address`},
		{"-i", "0.0.0.0:80=198.51.100.1:", "port after"},
		{"-i", "0.0.0.0:80=198.51.100.1:0", "cannot be 0"},
		{"-i", "0.0.0.0:80=198.51.100.1:dynamic", "neither a port"},
		{"-i", "0.0.0.0:80-81=198.51.100.1:8080", "the ports 80-81 do not fit 8080"},
		{"-i", "0.0.0.0:80=198.51.100.1:80-81", "the ports 80 do not fit 80-81"},
		{"-i", "0.0.0.0:80-81=198.51.100.1:90-91", "do not fit"},
		{"-i", "0.0.0.0:80=2001:db8::1", "IPv6 address, and the rule is for IPv4"},
		{"-i", "[::]:80=198.51.100.1:80", "IPv4 address, and the rule is for IPv6"},
		{"-i", "[::]:80=::ffff:198.51.100.1", "neither an endpoint"},
		{"-i", "[::]:80=fe80::1%eth0", "neither an endpoint"},
		{"-i", "[::]:80=[::1", `"]" is missing`},
		{"-i", "0.0.0.0=198.51.100.1", "port is missing"},
		{"-e", "0.0.0.0/0=198.51.100.1:80", "no port here"},
		{"-e", "::/0=[::]:80", "no port here"},
		{"-e", "0.0.0.0/0=0.0.0.0/0", "neither an endpoint"},
		{"-e", "0.0.0.0/0=::", "IPv6 address"},
		{"-e", "10.0.0.1/8=198.51.100.1", "10.0.0.0/8 is meant"},
		{"-i", "0.0.0.0:80=10.0.0.1", `"i-1", which is taken`},
		{"-e", "0.0.0.0/0=10.0.0.1", `"e-1", which is taken`},
	} {
		eps := &endpoint.Set{}
		if strings.Contains(tt.says, "taken") {
			for _, name := range []string{"i-1", "e-1"} {
				if err := eps.Add(&endpoint.Endpoint{Name: name, Type: endpoint.Unix, Path: "/x"}); err != nil {
					t.Fatal(err)
				}
			}
		}
		before := lines(eps)
		p := policy.Parser{Endpoints: eps}
		var err error
		if tt.flag == "-i" {
			_, err = p.Ingress(tt.in)
		} else {
			_, err = p.Egress(tt.in)
		}
		if !errors.Is(err, policy.ErrRule) || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), tt.flag+" ") {
			t.Errorf("%s %q: %v; want ErrRule that says %q", tt.flag, tt.in, err, tt.says)
		}
		if diff := cmp.Diff(before, lines(eps)); diff != "" {
			t.Errorf("%s %q made endpoints:\n%s", tt.flag, tt.in, diff)
		}
	}
}

// What has been read can be written without a host address, and is read as the
// same then.
func FuzzParser(f *testing.F) {
	f.Add("0.0.0.0:80=198.51.100.1:8080", "0.0.0.0/0=198.51.100.1")
	f.Add("[::]:8000-8099=2001:db8::1", "[2001:db8::/32]:443=::")
	f.Add("0.0.0.0:0=0.0.0.0", "10.0.0.0/8:53=[::1]:80")
	f.Fuzz(func(t *testing.T, ingress, egress string) {
		rules, made, err := parseAll(nil, []string{ingress}, []string{egress})
		if err != nil {
			return
		}
		again, same, err := parseAll(made, rules[:1], rules[1:])
		if err != nil {
			t.Fatalf("%q, %q: what it became cannot be read: %v", ingress, egress, err)
		}
		if diff := cmp.Diff(rules, again) + cmp.Diff(made, same); diff != "" {
			t.Errorf("%q, %q: read again (-first +then):\n%s", ingress, egress, diff)
		}
	})
}

// Where IPv4 is translated, an ingress rule for IPv4 may lead to an IPv6 address. Egress rules are for
// what they name.
func TestParserTranslated(t *testing.T) {
	for in, want := range map[string]string{
		"0.0.0.0:80=[2001:db8::1]:8080": "i-1 type ipv6 addr 2001:db8::1 port 8080",
		"0.0.0.0:80=2001:db8::1":        "i-1 type ipv6 addr 2001:db8::1 port 80",
		"0.0.0.0:80=198.51.100.1":       "i-1 type ipv4 addr 198.51.100.1 port 80",
	} {
		eps := &endpoint.Set{}
		p := policy.Parser{Endpoints: eps, Translated: true}
		if _, err := p.Ingress(in); err != nil {
			t.Errorf("%s: %v", in, err)
		} else if diff := cmp.Diff([]string{want}, lines(eps)); diff != "" {
			t.Errorf("%s:\n%s", in, diff)
		}
	}
	eps := &endpoint.Set{}
	six := endpoint.Endpoint{Name: "six", Type: endpoint.IPv6, Addr: netip.MustParseAddr("2001:db8::1"), Port: endpoint.PortRange{First: 80, Last: 80}}
	if err := eps.Add(&six); err != nil {
		t.Fatal(err)
	}
	for _, in := range []string{"0.0.0.0:80=six", "[::]:80=six"} {
		p := policy.Parser{Endpoints: eps, Translated: true}
		list, err := p.Ingress(in)
		if err != nil {
			t.Fatalf("%s: %v", in, err)
		}
		if _, err := list[0].With(&six); err != nil {
			t.Errorf("%s, again: %v", in, err)
		}
		if strings.HasPrefix(in, "0") {
			if _, err := policy.ParseIngress(in, eps); !errors.Is(err, policy.ErrRule) {
				t.Errorf("%s, where nothing is translated: %v", in, err)
			}
		}
	}
	p := policy.Parser{Endpoints: &endpoint.Set{}, Translated: true}
	if _, err := p.Egress("0.0.0.0/0=::"); !errors.Is(err, policy.ErrRule) {
		t.Errorf("an egress rule for IPv4 leads to IPv6: %v", err)
	}
}
