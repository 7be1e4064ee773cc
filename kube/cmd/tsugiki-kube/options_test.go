package main

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/kube/grant"
)

func TestParse(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	t.Setenv("NODE_IPS", "")
	for _, tt := range []struct {
		args string
		want grant.Node
		err  string
	}{
		{"--node n1 --node-ips 198.51.100.1", grant.Node{Name: "n1", IPv4: netip.MustParseAddr("198.51.100.1")}, ""},
		{
			"--node n1 --node-ips 2001:db8::1,198.51.100.1,198.51.100.2 --runtime-class a --runtime-class b",
			grant.Node{Name: "n1", IPv4: netip.MustParseAddr("198.51.100.1"), IPv6: netip.MustParseAddr("2001:db8::1")}, "",
		},
		{"--node-ips 198.51.100.1", grant.Node{}, "--node is missing"},
		{"--node n1", grant.Node{}, `--node-ips "": write addresses`},
		{"--node n1 --node-ips 0.0.0.0", grant.Node{}, "write addresses"},
		{"--node n1 --node-ips fe80::1%eth0", grant.Node{}, "write addresses"},
		{"--node n1 --node-ips 198.51.100.1 x", grant.Node{}, `unexpected argument "x"`},
		{"--namespace x", grant.Node{}, "not defined: -namespace"},
	} {
		o, err := parse("node", strings.Fields(tt.args))
		switch {
		case tt.err == "" && (err != nil || o.node != tt.want):
			t.Errorf("%s: %+v, %v", tt.args, o, err)
		case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
			t.Errorf("%s: %v, want %q", tt.args, err, tt.err)
		}
	}
	if o, err := parse("cluster", []string{"--namespace", "x", "--log-level", "debug"}); err != nil || o.namespace != "x" {
		t.Errorf("cluster: %+v, %v", o, err)
	}
	if status := run([]string{"nodes"}); status != 2 {
		t.Errorf("an unknown command: status %d", status)
	}
}

func TestFree(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	if free(at) {
		t.Errorf("%s is free, and this test has it", at)
	}
	l.Close()
	if !free(at) {
		t.Errorf("%s is taken, and nobody has it", at)
	}
}
