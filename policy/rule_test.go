package policy

import (
	"errors"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/endpoint"
)

// endpoints are what the tests' rules name.
func endpoints(t testing.TB) *endpoint.Set {
	t.Helper()
	var s endpoint.Set
	for _, e := range []string{
		"a type ipv4 addr 198.51.100.1 port dynamic",
		"b type ipv4 addr 203.0.113.1 port dynamic",
		"any type ipv4 addr 0.0.0.0 port dynamic",
		"six type ipv6 addr 2001:db8::1 port dynamic",
		"web type ipv4 addr 198.51.100.1 port 8080",
		"range type ipv4 addr 198.51.100.1 port 8000-8099",
		"un type unix path /run/un.sock",
	} {
		ep, err := endpoint.Parse(e)
		if err == nil {
			err = s.Add(ep)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return &s
}

func table(t testing.TB, ingress, egress []string) (*Table, error) {
	t.Helper()
	eps := endpoints(t)
	var in []Ingress
	for _, s := range ingress {
		r, err := ParseIngress(s, eps)
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, r)
	}
	var out []Egress
	for _, s := range egress {
		r, err := ParseEgress(s, eps)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return NewTable(in, out)
}

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
		{"-i", "0.0.0.0:80-81=web", "2 ports do not fit"},
		{"-i", "0.0.0.0:80-81=un", "2 ports do not fit"},
		{"-i", "0.0.0.0:8090-8100=range", "not all in the range"},
		{"-e", "0.0.0.0/0", "=ENDPOINT"},
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
	eps := endpoints(t)
	for _, tt := range tests {
		var err error
		if tt.flag == "-i" {
			_, err = ParseIngress(tt.in, eps)
		} else {
			_, err = ParseEgress(tt.in, eps)
		}
		if !errors.Is(err, ErrRule) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s %q: %v; want ErrRule that says %q", tt.flag, tt.in, err, tt.says)
		}
	}
}

func TestParseForms(t *testing.T) {
	tests := []struct{ in, prefix, ports string }{
		{"10.0.0.0/8=a", "10.0.0.0/8", "0-65535"},
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
	eps := endpoints(t)
	for _, tt := range tests {
		r, err := ParseEgress(tt.in, eps)
		if err != nil || r.Prefix.String() != tt.prefix || r.Ports.String() != tt.ports {
			t.Errorf("%q: %s, %s, %v", tt.in, r.Prefix, r.Ports, err)
		}
	}
}

func FuzzParseRules(f *testing.F) {
	f.Add("[2001:db8::/32]:443=six")
	f.Add("0.0.0.0:8000-8099=range")
	f.Fuzz(func(t *testing.T, s string) {
		eps := endpoints(t)
		var in []Ingress
		var out []Egress
		if r, err := ParseIngress(s, eps); err == nil {
			in = append(in, r)
		}
		if r, err := ParseEgress(s, eps); err == nil {
			out = append(out, r)
		}
		if _, err := NewTable(in, out); err != nil {
			t.Errorf("%q alone is no table: %v", s, err)
		}
	})
}
