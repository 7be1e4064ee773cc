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
	g := boot(t, top.Host, fmt.Sprintf(`
tsugiki guest run -- wget -q -O - http://%[1]s:8080/; echo wget says $?
tsugiki guest run -- wget -O - http://%[1]s:8081/ 2>&1; echo closed port $?
wget -q -O - http://%[1]s:8080/; echo bare wget says $?
echo page of the guest > /tmp/index.html
tsugiki guest run -- httpd -f -p 0.0.0.0:80 -h /tmp &
httpd -p 127.0.0.1:81 -h /tmp
tsugiki guest run -- wget -q -O - http://127.0.0.1:81/; echo loopback says $?
tsugiki guest run -- wget -q -O /dev/null http://%[1]s:8080/finish
`, testkit.RemoteAddr4), "-e", "0.0.0.0/0=0.0.0.0", "-p", "8081:80")
	g.expect(fmt.Sprintf("page of the remote for %s:", testkit.HostAddr4))
	g.expect("wget says 0")
	g.expect("Connection refused")
	g.expect("closed port 1")
	g.expect("bare wget says 1")
	g.expect("page of the guest")
	g.expect("loopback says 0")
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
// program names an IPv4 address, and is answered by an IPv6-only server.
func TestTranslatedGuest(t *testing.T) {
	top := testkit.Build(t, testkit.Options{IPv6Only: true})
	server := netip.MustParseAddr("2001:db8:64::198.51.100.2")
	run(t, top.Remote, "ip", "addr", "add", server.String()+"/128", "dev", "h")
	run(t, top.Host, "ip", "route", "add", nat64.String(), "via", testkit.RemoteAddr6.String())
	resolver := top.Remote.Command(context.Background(), testkit.Program(t, "dnsmasq"), "--keep-in-foreground", "--conf-file=/dev/null",
		"--pid-file=", "--user=root", "--no-resolv", "--no-hosts", "--local=/#/", "--host-record=ipv4only.arpa,2001:db8:64::192.0.0.170")
	if err := resolver.Start(); err != nil {
		t.Fatal(err)
	}
	if err := top.Remote.WaitListen(t.Context(), "tcp", 53); err != nil {
		t.Fatal(err)
	}
	finish := web(t, top.Remote, netip.AddrPortFrom(server, 8080), "page of an IPv6 server")
	g := boot(t, top.Host, `
tsugiki guest run -- wget -q -O - http://198.51.100.2:8080/; echo wget says $?
echo page of the guest > /tmp/index.html
tsugiki guest run -- httpd -f -vv -p 0.0.0.0:80 -h /tmp 2>&1 &
tsugiki guest run -- wget -q -O /dev/null http://198.51.100.2:8080/finish
`, "--translate", "--dns", "["+testkit.RemoteAddr6.String()+"]:53", "-e", "::/0=::", "-i", fmt.Sprintf("0.0.0.0:80=[%s]:8081", testkit.HostAddr6))
	g.expect(fmt.Sprintf("page of an IPv6 server for [%s]:", testkit.HostAddr6))
	g.expect("wget says 0")
	testkit.Eventually(t, func() error {
		page, err := get(top.Remote, fmt.Sprintf("http://[%s]:8081/", testkit.HostAddr6))
		if err == nil && page != "page of the guest\n" {
			err = fmt.Errorf("page %q", page)
		}
		return err
	})
	g.expect("198.18.0.") // httpd names its client
	finish()
}

func run(t *testing.T, ns *testkit.Namespace, name string, args ...string) {
	t.Helper()
	if out, err := ns.Command(context.Background(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}
