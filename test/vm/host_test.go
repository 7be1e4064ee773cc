package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// TestConnections has a guest without network card be a client and a server, by hybrid vsock.
func TestConnections(t *testing.T) {
	top := testkit.Build(t, testkit.Options{})
	_, path := attachFake(t, top.Host, "a", t.TempDir(), "-e", "0.0.0.0/0=0.0.0.0", "-p", "8081:80")
	g := newFake(t, path)
	at := echoes(t, top)
	c, errno := g.connect(at)
	if c == nil {
		t.Fatal(errno)
	}
	if err := works(c); err != nil {
		t.Error(err)
	}
	if c, errno := g.connect(netip.AddrPortFrom(testkit.RemoteAddr4, closedPort)); c != nil || errno != unix.ECONNREFUSED {
		t.Errorf("closed port: %v", errno)
	}

	server := g.listen("0.0.0.0:80")
	client, err := reach(top, fmt.Sprintf("%s:8081", testkit.HostAddr4))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	d := g.next(server)
	m := g.ask(&wire.Message{Op: wire.Which, Handle: server, Number: d.port})
	if m.Errno != 0 || m.Handle == 0 || m.Handle == server {
		t.Fatalf("which: %+v", m)
	}
	if names := g.ask(&wire.Message{Op: wire.Names, Handle: m.Handle}); names.Peer.String() != client.LocalAddr().String() {
		t.Errorf("the peer of an accepted connection is %s, want %s", names.Peer, client.LocalAddr())
	}
	if m := g.ask(&wire.Message{Op: wire.Which, Handle: server, Number: 1}); unix.Errno(m.Errno) != unix.EBADF {
		t.Errorf("which of no connection: %+v", m)
	}
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(d, b); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestOnlyPublished has servers in a guest that no rule publishes. The host has no port for them.
func TestOnlyPublished(t *testing.T) {
	top := testkit.Build(t, testkit.Options{})
	_, path := attachFake(t, top.Host, "a", t.TempDir(), "-e", "0.0.0.0/0=0.0.0.0", "-p", "8081:80")
	g := newFake(t, path)
	for _, at := range []string{
		"0.0.0.0:81", "0.0.0.0:8081", "[::]:81", "127.0.0.1:81", fmt.Sprintf("%s:81", testkit.HostAddr4), fmt.Sprintf("%s:8081", testkit.HostAddr4),
		fmt.Sprintf("[%s]:81", testkit.HostAddr6), "0.0.0.0:0",
	} {
		handle, name, local, errno := g.bind(at)
		if !local || errno != 0 || handle != 0 {
			t.Errorf("bind %s: handle %d at %s, local %v, %v", at, handle, name, local, errno)
		}
	}
	// A handle that is not bound does not listen, and a guest cannot have the host listen for one.
	m := g.ask(&wire.Message{Op: wire.Connect, Type: unix.SOCK_STREAM, Name: netip.MustParseAddrPort("198.51.100.77:9")})
	if listen := g.ask(&wire.Message{Op: wire.Listen, Handle: m.Handle, Number: 5}); listen.Errno == 0 {
		t.Error("a client's handle listens")
	}
	server := g.listen("0.0.0.0:80")
	client, err := reach(top, fmt.Sprintf("%s:8081", testkit.HostAddr4)) // the sentinel
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	g.next(server)
	if open := listening(t, top.Host); !slices.Equal(open, []string{"8081"}) {
		t.Errorf("the host listens at %v", open)
	}
}

// listening returns the ports at which a namespace has TCP listeners.
func listening(t *testing.T, ns *testkit.Namespace) (ports []string) {
	t.Helper()
	out, err := ns.Command(context.Background(), "ss", "-Hltn").CombinedOutput()
	if err != nil {
		t.Fatalf("ss: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		at := strings.Fields(line)[3]
		ports = append(ports, at[strings.LastIndex(at, ":")+1:])
	}
	slices.Sort(ports)
	return ports
}

// TestOnlyOwnEndpoints has two guests with endpoints that programs may name. None serves at the other's, nor
// connects to where only the other's rule leads, nor has the other's handles.
func TestOnlyOwnEndpoints(t *testing.T) {
	top := testkit.Build(t, testkit.Options{})
	dir := t.TempDir()
	at := echoes(t, top)
	flags := func(port int, destination string) []string {
		return []string{
			"--endpoint", fmt.Sprintf("mine type ipv4 addr %s port %d nameable", testkit.HostAddr4, port),
			"-i", "0.0.0.0:80=mine", "-e", destination + "=0.0.0.0",
		}
	}
	_, first := attachFake(t, top.Host, "a", dir, flags(8001, testkit.RemoteAddr4.String()+"/32")...)
	_, second := attachFake(t, top.Host, "b", dir, flags(8002, "203.0.113.0/24")...)
	a, b := newFake(t, first), newFake(t, second)
	for _, g := range []*fakeGuest{b, a} { // none has it by now
		other := map[*fakeGuest]int{a: 8002, b: 8001}[g]
		if _, _, local, errno := g.bind(fmt.Sprintf("%s:%d", testkit.HostAddr4, other)); !local || errno != 0 {
			t.Errorf("a guest names another's endpoint: local %v, %v", local, errno)
		}
	}
	own := a.listen("0.0.0.0:80")
	b.listen("0.0.0.0:80")

	c, errno := a.connect(at)
	if c == nil {
		t.Fatal(errno)
	}
	if err := works(c); err != nil {
		t.Error(err)
	}
	if c, errno := b.connect(at); c != nil || errno == 0 {
		t.Errorf("a guest connects where no rule of its own leads: %v", errno)
	}
	// Handles are each guest's own: those of the other are nobody's, or another socket.
	for handle := range uint32(20) {
		if m := b.ask(&wire.Message{Op: wire.Names, Handle: handle + own}); m.Errno == 0 && m.Name.Port() == 8001 {
			t.Errorf("handle %d is the other guest's: %+v", handle+own, m)
		}
	}
	if open := listening(t, top.Host); !slices.Equal(open, []string{"8001", "8002"}) {
		t.Errorf("the host listens at %v", open)
	}
}

// TestProcessRestarts kills the process that serves a guest. Established streams end, and a reset tells the
// peer of it; with hybrid vsock, new ones work while the same guest goes on.
func TestProcessRestarts(t *testing.T) {
	top := testkit.Build(t, testkit.Options{})
	dir := t.TempDir()
	at := echoes(t, top)
	flags := []string{"-e", "0.0.0.0/0=0.0.0.0", "-p", "8081:80"}
	p, path := attachFake(t, top.Host, "a", dir, flags...)
	g := newFake(t, path)
	c, errno := g.connect(at)
	if c == nil {
		t.Fatal(errno)
	}
	if err := works(c); err != nil {
		t.Fatal(err)
	}
	server := g.listen("0.0.0.0:80")
	client, err := reach(top, fmt.Sprintf("%s:8081", testkit.HostAddr4))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted := g.next(server)
	p.end(unix.SIGKILL)
	<-g.ended
	for name, end := range map[string]net.Conn{"client": c, "accepted": accepted, "peer": client} {
		if err := end.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := end.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: %v", name, err)
		}
	}
	attachFake(t, top.Host, "a", dir, flags...)
	g.connectControl()
	if c, errno = g.connect(at); c == nil {
		t.Fatal(errno)
	}
	if err := works(c); err != nil {
		t.Error(err)
	}
	server = g.listen("0.0.0.0:80")
	if client, err = reach(top, fmt.Sprintf("%s:8081", testkit.HostAddr4)); err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	g.next(server)
}
