package vsock

import (
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// TestUrgentByte has a peer send an urgent byte (MSG_OOB) between others. A read ends at it, though there are
// more bytes: the guest gets those, too.
func TestUrgentByte(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(sock, &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}})
	}
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	testkit.SendUrgent(t, peer.(*net.TCPConn))
	testkit.Eventually(t, func() error { // the device is to find all of it
		if n, err := unix.IoctlGetInt(sock, unix.TIOCINQ); err != nil || n < len("before") {
			return fmt.Errorf("%d bytes: %w", n, err)
		}
		return nil
	})
	d := newDriver(t)
	d.start()
	d.send(header{fromPort: 1000, toPort: 80, op: opRequest, alloc: testAlloc}, nil)
	(<-d.asked).Accept(Socket{File: sock})
	d.expect(opResponse)
	got := ""
	for got != "beforeafter" {
		got += string(d.expect(opData).data)
		if len(got) > 11 {
			t.Fatalf("%q", got)
		}
	}
}
