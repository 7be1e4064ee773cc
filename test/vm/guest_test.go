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
