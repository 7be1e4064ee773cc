package vm

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/uml"
)

const nginxConf = `
daemon off;
worker_processes 2;
user root;
pid /tmp/nginx.pid;
error_log stderr;
events {}
http {
	access_log off;
	client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy; fastcgi_temp_path /tmp/fastcgi;
	uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;
	sendfile on;
	server { listen 80; root /www; }
}
`

// TestPrograms has Debian's programs in the guest, as clients and as servers.
func TestPrograms(t *testing.T) {
	top := testkit.Build(t, testkit.Options{})
	finish := web(t, top.Remote, netip.AddrPortFrom(testkit.RemoteAddr4, 8080), "page of the remote")
	for _, server := range []struct {
		network string
		port    uint16
		command []string
	}{
		{"tcp", 53, []string{
			"dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root", "--no-resolv", "--no-hosts",
			"--local=/#/", "--host-record=www.test," + testkit.RemoteAddr4.String(),
		}},
		{"tcp", 6379, []string{"redis-server", "--save", "", "--protected-mode", "no", "--bind", testkit.RemoteAddr4.String()}},
		{"tcp", 5201, []string{"iperf3", "-s", "-p", "5201"}},
		{"tcp", 5202, []string{"iperf3", "-s", "-p", "5202"}},
		{"tcp", 5203, []string{"iperf3", "-s", "-p", "5203"}},
		{"tcp", 5204, []string{"iperf3", "-s", "-p", "5204"}},
	} {
		cmd := top.Remote.Command(context.Background(), testkit.Program(t, server.command[0]), server.command[1:]...)
		cmd.Dir = t.TempDir()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := top.Remote.WaitListen(t.Context(), server.network, server.port); err != nil {
			t.Fatal(err)
		}
	}
	host := testkit.HostAddr4.String()
	large := string(bytes.Repeat([]byte("0123456789abcdef"), 1<<16))
	g := uml.Boot(t, top.Host, uml.Options{
		Script: fmt.Sprintf(`
run() { tsugiki guest run -- "$@"; echo "$1 says $?"; }
run curl -sS http://www.test:8080/
run curl -sS http://%[1]s:8079/
run dig +short www.test
run dig +short +tcp www.test
run redis-cli -h %[1]s set key value
run redis-cli -h www.test get key
for how in "-p 5201" "-p 5202 -R" "-p 5203 -u -b 100M" "-p 5204 -u -b 100M -R"; do
	tsugiki guest run -- iperf3 -c %[1]s -n 4M -J $how > /tmp/iperf3; echo "iperf3 $how says $?"
	grep -q '"error"' /tmp/iperf3 && cat /tmp/iperf3
done
mkdir -p /var/log/nginx
tsugiki guest run -- nginx -c /nginx.conf &
tsugiki guest run -- redis-server --save "" --protected-mode no --bind 0.0.0.0 &
for port in 5201 5202 5203 5204; do tsugiki guest run -- iperf3 -s -p $port & done
run curl -sS http://%[1]s:8080/finish
kill %%1 %%2 %%3 %%4 %%5 %%6; wait
`, testkit.RemoteAddr4),
		Flags: []string{
			"-e", "0.0.0.0/0=0.0.0.0", "-i", "0.0.0.0:80=" + host + ":8081", "-i", "0.0.0.0:6379=" + host + ":6380", "-i", "0.0.0.0:5201=" + host + ":5301",
			"-i", "0.0.0.0:5202=" + host + ":5302", "-i", "0.0.0.0:5203=" + host + ":5303", "-i", "0.0.0.0:5204=" + host + ":5304",
		},
		Programs: []string{"curl", "dig", "redis-cli", "redis-server", "iperf3", "nginx"},
		Texts: map[string]string{
			"etc/resolv.conf": "nameserver " + testkit.RemoteAddr4.String() + "\n", "nginx.conf": nginxConf, "www/index.html": large,
		},
		Memory: 384,
	})
	remote := testkit.RemoteAddr4.String()
	for _, want := range []string{
		"page of the remote for " + host, "curl says 0", "curl says 7", remote, "dig says 0", remote, "dig says 0",
		"OK", "redis-cli says 0", "value", "redis-cli says 0",
		"iperf3 -p 5201 says 0", "iperf3 -p 5202 -R says 0", "iperf3 -p 5203 -u -b 100M says 0", "iperf3 -p 5204 -u -b 100M -R says 0",
	} {
		g.Expect(want)
	}
	testkit.Eventually(t, func() error {
		page, err := get(top.Remote, "http://"+host+":8081/")
		if err == nil && page != large {
			err = fmt.Errorf("%d bytes, not %d", len(page), len(large))
		}
		return err
	})
	ask := func(name string, args ...string) string {
		out, err := top.Remote.Command(t.Context(), testkit.Program(t, name), args...).CombinedOutput()
		if err != nil {
			t.Errorf("%s %q: %v\n%s", name, args, err, out)
		}
		return string(bytes.TrimSpace(out))
	}
	eventually(t, top.Remote, "redis-cli", "-h", host, "-p", "6380", "ping")
	for command, want := range map[string]string{"set key value": "OK", "ping": "PONG"} {
		if got := ask("redis-cli", append([]string{"-h", host, "-p", "6380"}, strings.Fields(command)...)...); got != want {
			t.Errorf("redis-cli %s: %q", command, got)
		}
	}
	ask("redis-benchmark", "-h", host, "-p", "6380", "-t", "set,get", "-d", "16384", "-c", "20", "-n", "2000", "-q")
	// A server of iperf3's refuses a test while it is not through with the one before, and takes a late
	// datagram of that for the first one of the next, so each test has a server of its own.
	for i, how := range []string{"-p 5301", "-p 5302 -R", "-p 5303 -u -b 100M", "-p 5304 -u -b 100M -R"} {
		args := append([]string{"-c", host, "-n", "4M"}, strings.Fields(how)...)
		if err := top.Host.WaitListen(t.Context(), "tcp", uint16(5301+i)); err != nil {
			t.Fatal(err)
		}
		ask("iperf3", args...)
	}
	finish()
	g.Expect("curl says 0")
}

// eventually waits until a command succeeds.
func eventually(t *testing.T, ns *testkit.Namespace, name string, args ...string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		out, err := ns.Command(t.Context(), name, args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
}
