package host

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// naming is a guest that sees another port of the host than the host says. The host hears of the guest's
// answer when the test says so.
type naming struct {
	dialed  chan vsock.Socket
	answers chan error
}

const namedPort = 1 << 30

func (g *naming) Dial(_ uint16, _, _ uint32, s vsock.Socket, done func(error)) {
	g.dialed <- s
	go func() {
		err := <-g.answers
		if err == nil {
			s.Named(namedPort)
		}
		done(err)
	}()
}
func (*naming) Close() error { return nil }

// TestWhich has a guest ask for a connection that it knows, and the host does not yet.
func TestWhich(t *testing.T) {
	r := newRig(t)
	g := &naming{dialed: make(chan vsock.Socket, 1), answers: make(chan error)}
	t.Cleanup(func() { close(g.answers) }) // a dial that waits ends
	r.vm.guest = g
	m := r.bound(netip.MustParseAddrPort("127.0.0.1:0"))
	r.want(m, 0)
	r.want(r.ask(&wire.Message{Op: wire.Listen, Handle: m.Handle, Number: 5}), 0)
	which := func(listener uint32) *wire.Message {
		return r.ask(&wire.Message{Op: wire.Which, Handle: listener, Number: namedPort})
	}
	r.want(which(m.Handle), unix.EBADF)
	c, err := net.Dial("tcp", m.Name.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := <-g.dialed
	asked := make(chan *wire.Message, 1)
	r.mu.Lock()
	r.last++
	question := &wire.Message{Op: wire.Which, ID: r.last, Handle: m.Handle, Number: namedPort}
	r.replies[question.ID] = asked
	r.mu.Unlock()
	r.write(question)
	for range 50 { // others come behind it, and do not wait
		r.want(which(m.Handle+100), unix.EBADF)
	}
	if len(asked) > 0 {
		t.Fatalf("answered before the guest has: %+v", <-asked)
	}
	g.answers <- nil
	got := <-asked
	r.want(got, 0)
	if names := r.ask(&wire.Message{Op: wire.Names, Handle: got.Handle}); names.Peer.String() != c.LocalAddr().String() {
		t.Errorf("handle %d is that of %s, want %s", got.Handle, names.Peer, c.LocalAddr())
	}
	unix.Close(s.File)
	s.Ended()
}

// TestAliasOfALaterHandle has the VMM give a port again before the former connection's handle is removed. The
// name is the later one's.
func TestAliasOfALaterHandle(t *testing.T) {
	r := newRig(t)
	name := alias{listener: 1, port: namedPort}
	var both [2]*handle
	for i := range both {
		sock, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if both[i], err = r.vm.add(sock, nil); err != nil {
			t.Fatal(err)
		}
		both[i].nameIt(name)
	}
	both[0].remove()
	if id, err := r.vm.which(name); id != both[1].id || err != nil {
		t.Errorf("handle %d, %v, want %d", id, err, both[1].id)
	}
	both[1].remove()
	if id, err := r.vm.which(name); err == nil {
		t.Errorf("handle %d of a connection that has ended", id)
	}
}
