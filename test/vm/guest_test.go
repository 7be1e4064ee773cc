package vm

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/uml"
)

// web serves a page in a namespace. A request for /finish waits until the test calls finish.
func web(t *testing.T, ns *testkit.Namespace, at netip.AddrPort, page string) (finish func()) {
	t.Helper()
	finished := make(chan struct{})
	finish = sync.OnceFunc(func() { close(finished) })
	var l net.Listener
	err := ns.Do(func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/finish" {
			<-finished
		}
		fmt.Fprintf(w, "%s for %s\n", page, r.RemoteAddr)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		finish()
		server.Close()
		<-done
	})
	return finish
}

// get asks for a page from a namespace.
func get(ns *testkit.Namespace, url string) (string, error) {
	var dialer net.Dialer
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = ns.Do(func() error {
			c, err = dialer.DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}}
	client := http.Client{Transport: transport, Timeout: testkit.Patience}
	r, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return string(b), err
}

// TestGuestWithoutNetworkCard has unmodified programs in a guest that has only a loopback.
func TestGuestWithoutNetworkCard(t *testing.T) {
	top := testkit.Build(t, testkit.Options{})
	finish := web(t, top.Remote, netip.AddrPortFrom(testkit.RemoteAddr4, 8080), "page of the remote")
	g := uml.Boot(t, top.Host, uml.Options{Script: fmt.Sprintf(`
tsugiki guest run -- wget -q -O - http://%[1]s:8080/; echo wget says $?
tsugiki guest run -- wget -O - http://%[1]s:8081/ 2>&1; echo closed port $?
wget -q -O - http://%[1]s:8080/; echo bare wget says $?
echo page of the guest > /tmp/index.html
tsugiki guest run -- httpd -f -p 0.0.0.0:80 -h /tmp &
httpd -p 127.0.0.1:81 -h /tmp
tsugiki guest run -- wget -q -O - http://127.0.0.1:81/; echo loopback says $?
tsugiki guest run -- wget -q -O /dev/null http://%[1]s:8080/finish
`, testkit.RemoteAddr4), Flags: []string{"-e", "0.0.0.0/0=0.0.0.0", "-p", "8081:80"}})
	g.Expect(fmt.Sprintf("page of the remote for %s:", testkit.HostAddr4))
	g.Expect("wget says 0")
	g.Expect("Connection refused")
	g.Expect("closed port 1")
	g.Expect("bare wget says 1")
	g.Expect("page of the guest")
	g.Expect("loopback says 0")
	testkit.Eventually(t, func() error {
		page, err := get(top.Remote, fmt.Sprintf("http://%s:8081/", testkit.HostAddr4))
		if err == nil && page != "page of the guest\n" {
			err = fmt.Errorf("page %q", page)
		}
		return err
	})
	finish()
}

// nat64 is the prefix behind which the remote has an address: it is the IPv4-only host's, as a program
// in the guest sees it.
var nat64 = netip.MustParsePrefix("2001:db8:64::/96")

// TestTranslatedGuest has an IPv4-only guest on a host without IPv4: the paper's case. The guest's
// program names an IPv4 address, or a name that has only an IPv6 address, and is answered by an IPv6-only
// server. Datagrams are translated, too.
func TestTranslatedGuest(t *testing.T) {
	top := testkit.Build(t, testkit.Options{IPv6Only: true})
	server := netip.MustParseAddr("2001:db8:64::198.51.100.2")
	run(t, top.Remote, "ip", "addr", "add", server.String()+"/128", "dev", "h")
	run(t, top.Host, "ip", "route", "add", nat64.String(), "via", testkit.RemoteAddr6.String())
	resolver := top.Remote.Command(context.Background(), testkit.Program(t, "dnsmasq"), "--keep-in-foreground", "--conf-file=/dev/null",
		"--pid-file=", "--user=root", "--no-resolv", "--no-hosts", "--local=/#/", "--host-record=ipv4only.arpa,2001:db8:64::192.0.0.170",
		"--host-record=www.test,"+testkit.RemoteAddr6.String())
	if err := resolver.Start(); err != nil {
		t.Fatal(err)
	}
	if err := top.Remote.WaitListen(t.Context(), "tcp", 53); err != nil {
		t.Fatal(err)
	}
	finish := web(t, top.Remote, netip.AddrPortFrom(server, 8080), "page of an IPv6 server")
	web(t, top.Remote, netip.AddrPortFrom(testkit.RemoteAddr6, 8080), "page of www.test")
	answerDatagrams(t, top.Remote, netip.AddrPortFrom(testkit.RemoteAddr6, echoPort))
	answerDatagrams(t, top.Remote, netip.AddrPortFrom(server, echoPort))
	g := uml.Boot(t, top.Host, uml.Options{Script: `
tsugiki guest run -- wget -q -O - http://198.51.100.2:8080/; echo wget says $?
tsugiki guest run -- wget -q -O - http://www.test:8080/; echo wget of a name says $?
tsugiki guest run -- dig +short +tries=1 www.test A
tsugiki guest run -- dig +short +tcp www.test AAAA
` + programEnv + `=198.51.100.2 ` + datagramsEnv + `=1 ` + translatedEnv + `=1 tsugiki guest run -- /bin/program; echo program says $?
` + programEnv + `=www.test ` + datagramsEnv + `=1 ` + translatedEnv + `=1 tsugiki guest run -- /bin/program; echo program of a name says $?
echo page of the guest > /tmp/index.html
tsugiki guest run -- httpd -f -vv -p 0.0.0.0:80 -h /tmp 2>&1 &
tsugiki guest run -- wget -q -O /dev/null http://198.51.100.2:8080/finish
`, Flags: []string{
		"--translate", "--dns", "[" + testkit.RemoteAddr6.String() + "]:53", "-e", "::/0=::",
		"-i", fmt.Sprintf("0.0.0.0:80=[%s]:8081", testkit.HostAddr6), "-i", fmt.Sprintf("0.0.0.0:9002=[%s]:9003", testkit.HostAddr6),
	}, Programs: []string{"dig"}, Files: map[string]string{"bin/program": self(t)}, Texts: map[string]string{"etc/resolv.conf": "nameserver 192.0.2.53\n"}})
	g.Expect(fmt.Sprintf("page of an IPv6 server for [%s]:", testkit.HostAddr6))
	g.Expect("wget says 0")
	g.Expect(fmt.Sprintf("page of www.test for [%s]:", testkit.HostAddr6))
	g.Expect("wget of a name says 0")
	g.Expect("198.18.0.")
	g.Expect(testkit.RemoteAddr6.String())
	for _, end := range []string{"program says 0", "program of a name says 0"} {
		expectDatagrams(t, g, top.Remote, netip.AddrPortFrom(testkit.HostAddr6, 9003))
		g.Expect(end)
	}
	testkit.Eventually(t, func() error {
		page, err := get(top.Remote, fmt.Sprintf("http://[%s]:8081/", testkit.HostAddr6))
		if err == nil && page != "page of the guest\n" {
			err = fmt.Errorf("page %q", page)
		}
		return err
	})
	g.Expect("198.18.0.") // httpd names its client
	finish()
}

func run(t *testing.T, ns *testkit.Namespace, name string, args ...string) {
	t.Helper()
	if out, err := ns.Command(context.Background(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}
