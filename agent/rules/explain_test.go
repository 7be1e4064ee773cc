package rules

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/policy"
)

// The rule that explain names is the one that decides, and what it says of misses is the reason.
func TestExplain(t *testing.T) {
	r, err := Parse(api.Rules{
		Endpoints: []string{"db type unix path /run/db.sock", "pool type ipv4 addr 198.51.100.1 port 8000-8099"},
		Ingress:   []string{"0.0.0.0:80=198.51.100.1:8080", "0.0.0.0:8000-8009=pool", "10.0.0.9:80=198.51.100.2:81", "0.0.0.0:53/udp=198.51.100.1:5353", "0.0.0.0:0=0.0.0.0"},
		Egress:    []string{"0.0.0.0/0=198.51.100.1", "10.0.0.0/8:443=0.0.0.0", "10.0.0.1:5432=db", "192.0.2.0/24:53=198.51.100.1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ call, addr, rule, result, why string }{
		{"connect", "10.0.0.1:5432", "-e 10.0.0.1/32:5432=db", "unix socket /run/db.sock", "10.0.0.1/32 is the longest prefix"},
		{"connect", "10.0.0.1:443", "-e 10.0.0.0/8:443=e-2", "an address that the host chooses", "10.0.0.0/8 is the longest"},
		{"connect", "10.0.0.1:80", "-e 0.0.0.0/0=e-1", "from 198.51.100.1", "0.0.0.0/0 is the longest"},
		{"connect", "127.0.0.1:80", "", "stays in the container", "-e 0.0.0.0/0=e-1 does not cover it: 127.0.0.1 is special, and is covered only by a rule that names 127.0.0.0/8"},
		{"connect", "[2001:db8::1]:80", "", "stays in the container", "no rule covers it; the rules are for IPv4"},
		{"bind", "0.0.0.0:80", "-i 0.0.0.0:80=i-1", "198.51.100.1, port 8080", "names 0.0.0.0 and port 80"},
		{"bind", "10.0.0.9:80", "-i 10.0.0.9:80=i-3", "198.51.100.2, port 81", "names 10.0.0.9"},
		{"bind", "10.0.0.8:8005", "-i 0.0.0.0:8000-8009=pool", "port 8005", "0.0.0.0 stands for any address"},
		{"bind", "0.0.0.0:0", "-i 0.0.0.0:0=i-5", "a port that the host chooses", "names 0.0.0.0 and port 0"},
		{"bind", "0.0.0.0:53/udp", "-i 0.0.0.0:53/udp=i-4", "port 5353", "port 53"},
		{"bind", "0.0.0.0:53/tcp", "", "stays", "-i 0.0.0.0:53/udp=i-4 is for the other protocol"},
		{"bind", "0.0.0.0:81", "", "stays in the container", "covers the address, and not port 81"},
		{"bind", "127.0.0.1:80", "", "stays in the container", "-i 0.0.0.0:80=i-1 does not cover loopback addresses; name 127.0.0.1"},
		{"bind", "[::]:80", "-i 0.0.0.0:80=i-1", "port 8080", "not IPV6_V6ONLY"},
		{"bind", "[::1]:80", "", "stays in the container", "the rules are for IPv4"},
	} {
		ask := r.ExplainConnect
		if tt.call == "bind" {
			ask = r.ExplainBind
		}
		addr, protocol := policy.CutProtocol(tt.addr)
		v, err := ask(protocol, netip.MustParseAddrPort(addr))
		if err != nil || v.Rule != tt.rule || !strings.Contains(v.Result, tt.result) || !strings.Contains(v.Why, tt.why) {
			t.Errorf("%s %s: %+v, %v", tt.call, tt.addr, v, err)
		}
	}
	list, err := r.Explain()
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, v := range list {
		order = append(order, v.Call+" "+v.Address)
	}
	const want = "connect 10.0.0.1/32:5432, connect 192.0.2.0/24:53, connect 10.0.0.0/8:443, connect 0.0.0.0/0, connect any other, " +
		"bind 10.0.0.9:80, bind 0.0.0.0:80, bind 0.0.0.0:8000-8009, bind 0.0.0.0:53/udp, bind 0.0.0.0:0, bind any other"
	if got := strings.Join(order, ", "); got != want {
		t.Errorf("the order is %s", got)
	}
}

// The rules of a container come back from what the API says of its endpoints.
func TestOfEndpoints(t *testing.T) {
	r, err := OfEndpoints([]api.Endpoint{
		{Name: "e-1", Definition: api.Definition{Type: "ipv4", Addr: "198.51.100.1", Port: "dynamic"}, Rules: []string{"-e 0.0.0.0/0=e-1", "-i 0.0.0.0:80=e-1"}},
		{Name: "db", Definition: api.Definition{Type: "unix", Path: "/run/db.sock"}, Rules: []string{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := r.Texts()
	if strings.Join(got.Egress, " ") != "0.0.0.0/0=e-1" || strings.Join(got.Ingress, " ") != "0.0.0.0:80=e-1" || len(got.Endpoints) != 2 {
		t.Errorf("%+v", got)
	}
}
