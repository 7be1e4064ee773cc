package policy_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/policytest"
)

func TestParseSaysWhatIsWrong(t *testing.T) {
	tests := []struct{ flag, in, says string }{
		{"-i", "0.0.0.0:80", "=ENDPOINT"},
		{"-i", "0.0.0.0:80=", "=ENDPOINT"},
		{"-i", "0.0.0.0:80=nope", "unknown endpoint"},
		{"-i", "0.0.0.0=a", "port is missing"},
		{"-i", "0.0.0.0:=a", "port after"},
		{"-i", "0.0.0.0:x=a", "neither a port"},
		{"-i", "0.0.0.0:81-80=a", "neither a port"},
		{"-i", "host:80=a", "no IP address"},
		{"-i", "[::]:80=a", "ipv4"},
		{"-i", "0.0.0.0:80=six", "ipv6"},
		{"-i", "[::1=six", `"]" is missing`},
		{"-i", "[::]80=six", ":PORT is meant"},
		{"-i", "[::ffff:1.2.3.4]:80=six", "no IP address"},
		{"-i", "[fe80::1%eth0]:80=six", "no IP address"},
		{"-i", "0.0.0.0:80/sctp=a", "neither a port"},
		{"-i", "0.0.0.0/tcp=a", "port is missing"},
		{"-e", "10.0.0.0/8:53/sctp=a", "neither a port"},
		{"-i", "0.0.0.0:80-81=web", "2 ports do not fit"},
		{"-i", "0.0.0.0:80-81=un", "2 ports do not fit"},
		{"-i", "0.0.0.0:8090-8100=range", "not all in the range"},
		{"-i", "0.0.0.0:53/udp+own=a", "for TCP servers"},
		{"-i", "0.0.0.0:80+own/tcp=a", "unknown word \"+own/tcp\""},
		{"-i", "127.0.0.1:80+own=a", "loopback"},
		{"-i", "0.0.0.0:0+own=a", "port other than 0"},
		{"-i", "0.0.0.0:80+own=un", "unix"},
		{"-e", "10.0.0.0/8:80+own=a", "neither a port"},
		{"-e", "0.0.0.0/0", "=ENDPOINT"},
		{"-e", "10.0.0.0/8:=a", "port after"},
		{"-e", "[2001:db8::/32=six", `"]" is missing`},
		{"-e", "0.0.0.0/0=nope", "unknown endpoint"},
		{"-e", "0.0.0.0/33=a", "neither an IP prefix"},
		{"-e", "10.0.0.1/8=a", "10.0.0.0/8 is meant"},
		{"-e", "::/0=a", "ipv4"},
		{"-e", "10.0.0.0/8=six", "ipv6"},
		{"-e", "::ffff:0:0/96=six", "no IP prefix"},
		{"-e", "10.0.0.0/8:99999=a", "neither a port"},
		{"-e", "10.0.0.0/8=range", "dynamic"},
		{"-e", "0.0.0.0=a", "write 0.0.0.0/0"},
		{"-e", "0.0.0.0:80=a", "write 0.0.0.0/0"},
		{"-e", "::=six", "write ::/0"},
		{"-e", "[::]=six", "write ::/0"},
		{"-e", "[::]:80=six", "write ::/0"},
	}
	eps := policytest.Endpoints(t)
	for _, tt := range tests {
		var err error
		if tt.flag == "-i" {
			_, err = policy.ParseIngress(tt.in, eps)
		} else {
			_, err = policy.ParseEgress(tt.in, eps)
		}
		if !errors.Is(err, policy.ErrRule) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s %q: %v; want ErrRule that says %q", tt.flag, tt.in, err, tt.says)
		}
	}
}

func TestParseForms(t *testing.T) {
	tests := []struct{ in, prefix, ports string }{
		{"10.0.0.0/8=a", "10.0.0.0/8", "0-65535"},
		{"10.0.0.0/8/tcp=a", "10.0.0.0/8", "0-65535"},
		{"[2001:db8::/32]:443/udp=six", "2001:db8::/32", "443"},
		{"10.0.0.5=a", "10.0.0.5/32", "0-65535"},
		{"0.0.0.0/32=a", "0.0.0.0/32", "0-65535"},
		{"::/128=six", "::/128", "0-65535"},
		{"10.0.0.0/8:53=a", "10.0.0.0/8", "53"},
		{"10.0.0.5:8000-8999=a", "10.0.0.5/32", "8000-8999"},
		{"::/0=six", "::/0", "0-65535"},
		{"2001:db8::5=six", "2001:db8::5/128", "0-65535"},
		{"[2001:db8::/32]:443=six", "2001:db8::/32", "443"},
		{"[2001:db8::5]=six", "2001:db8::5/128", "0-65535"},
	}
	eps := policytest.Endpoints(t)
	for _, tt := range tests {
		r, err := policy.ParseEgress(tt.in, eps)
		if err != nil || r.Prefix.String() != tt.prefix || r.Ports.String() != tt.ports {
			t.Errorf("%q: %s, %s, %v", tt.in, r.Prefix, r.Ports, err)
		}
	}
}

func FuzzParseRules(f *testing.F) {
	f.Add("[2001:db8::/32]:443=six")
	f.Add("0.0.0.0:8000-8099=range")
	f.Add("0.0.0.0:53/udp=a")
	f.Add("0.0.0.0:53/tcp+own=a")
	f.Add("0.0.0.0:53/tcp+own+from:10.0.0.0/8+except:10.1.0.0/16=a")
	f.Add("[::]:53+from:pod:0b5e6f6e-9c2f+from:2001:db8::/32=six")
	f.Fuzz(func(t *testing.T, s string) {
		eps := policytest.Endpoints(t)
		var in []policy.Ingress
		var out []policy.Egress
		if r, err := policy.ParseIngress(s, eps); err == nil {
			in = append(in, r)
		}
		if r, err := policy.ParseEgress(s, eps); err == nil {
			out = append(out, r)
		}
		if _, err := policy.NewTable(in, out); err != nil {
			t.Errorf("%q alone is no table: %v", s, err)
		}
	})
}

// A rule is written as it is read, and takes only an endpoint that fits.
func TestRulesWithOtherEndpoints(t *testing.T) {
	var set endpoint.Set
	for _, s := range []string{
		"any type ipv4 addr 0.0.0.0 port dynamic", "six type ipv6 addr :: port dynamic", "one type ipv4 addr 0.0.0.0 port 80",
		"few type ipv4 addr 0.0.0.0 port 8000-8009", "un type unix path /un",
	} {
		ep, err := endpoint.Parse(s)
		if err == nil {
			err = set.Add(ep)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	fitting := map[string]string{ // rule, the endpoints that fit
		"0.0.0.0:80=any": "any one un", "0.0.0.0:80/tcp+own=any": "any one", "[::]:80-81+own=six": "six", "0.0.0.0:80/udp=any": "any one un", "[::]:80-81/tcp=six": "six", "0.0.0.0:8000-8003=any": "any few", "[::]:80=six": "six un", "[::]:80-81=six": "six",
		"10.0.0.0/8=any": "any one un", "10.0.0.0/8:1-9=any": "any one un", "[::/0]:80=six": "six un", "2001:db8::/32=six": "six un",
	}
	for s, want := range fitting {
		var fits []string
		for _, ep := range set.All() {
			in, err := policy.ParseIngress(s, &set)
			text, with := in.String(), error(nil)
			if err == nil {
				_, with = in.With(ep)
			} else {
				var out policy.Egress
				if out, err = policy.ParseEgress(s, &set); err != nil {
					t.Fatal(err)
				}
				text = out.String()
				_, with = out.With(ep)
			}
			if text != s {
				t.Errorf("%s is written %s", s, text)
			}
			if with == nil {
				fits = append(fits, ep.Name)
			}
		}
		slices.Sort(fits)
		if got := strings.Join(fits, " "); got != want {
			t.Errorf("%s takes %s, want %s", s, got, want)
		}
	}
}
