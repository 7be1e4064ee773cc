package vm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/uml"
	"github.com/tsugiki/tsugiki/outsource/vsock"
)

// bridge is the part of a VMM that makes hybrid vsock of its guest's connections, as Firecracker's
// documentation has it. User-Mode Linux has none, so this is a device for it.
type bridge struct {
	path   string
	device *vsock.Device
}

// serveHybrid serves a guest's device at a socket. The VMM's socket of hybrid vsock is at path.
func serveHybrid(t *testing.T, socket, path string) {
	t.Helper()
	devices, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	t.Cleanup(func() {
		devices.Close()
		hosts.Close()
		if err := <-ended; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("the device of the guest: %v", err)
		}
	})
	go func() {
		c, err := devices.AcceptUnix()
		if err != nil {
			ended <- err
			return
		}
		ended <- vsock.Serve(c, 3, func(d *vsock.Device) vsock.Handler {
			b := &bridge{path, d}
			go b.accept(hosts)
			return b
		})
	}()
}

// fileOf returns a duplicate of a connection's file, and closes the connection.
func fileOf(c *net.UnixConn) (int, error) {
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var file int
	cerr := raw.Control(func(fd uintptr) { file, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	return file, errors.Join(cerr, err)
}

// Request implements vsock.Handler: the guest connects to a port of the host.
func (b *bridge) Request(r *vsock.Request) {
	go func() {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: fmt.Sprintf("%s_%d", b.path, r.To), Net: "unix"})
		if err != nil {
			r.Refuse()
			return
		}
		file, err := fileOf(c)
		if err != nil {
			r.Refuse()
			return
		}
		r.Accept(vsock.Socket{File: file})
	}()
}

// accept takes connections of the host to ports of the guest.
func (b *bridge) accept(l *net.UnixListener) {
	for port := uint32(1 << 30); ; port++ {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		line, err := bufio.NewReaderSize(c, 16).ReadString('\n')
		var to uint32
		if err == nil {
			_, err = fmt.Sscanf(line, "CONNECT %d\n", &to)
		}
		var file int
		if err == nil {
			file, err = fileOf(c)
		}
		if err != nil {
			c.Close()
			continue
		}
		b.device.Dial(vsock.Stream, port, to, vsock.Socket{File: file}, func(err error) {
			if err != nil {
				unix.Close(file)
				return
			}
			_, _ = unix.Write(file, fmt.Appendf(nil, "OK %d\n", port)) // no bytes of the guest are before it
		})
	}
}

// TestHybridGuest has unmodified programs in a guest whose VMM has hybrid vsock, over a restart of what
// serves it on the host.
func TestHybridGuest(t *testing.T) {
	top := testkit.Build(t, testkit.Options{})
	echoServer(t, top.Remote, netip.AddrPortFrom(testkit.RemoteAddr4, echoPort))
	answerDatagrams(t, top.Remote, netip.AddrPortFrom(testkit.RemoteAddr4, echoPort))
	finish := web(t, top.Remote, netip.AddrPortFrom(testkit.RemoteAddr4, 8080), "page of the remote")
	dir := t.TempDir()
	flags := []string{
		"-e", "0.0.0.0/0=0.0.0.0", "-p", "8081:80", "-p", "9000:9000", "-i", "0.0.0.0:9002=" + testkit.HostAddr4.String() + ":9003",
	}
	p, path := attachFake(t, top.Host, "v", dir, flags...)
	socket := filepath.Join(dir, "device")
	serveHybrid(t, socket, path)
	g := uml.Start(t, top.Host, socket, uml.Options{Files: map[string]string{"bin/program": self(t)}, Script: fmt.Sprintf(`
tsugiki guest run -- wget -q -O - http://%[1]s:8080/; echo wget says $?
tsugiki guest run -- wget -O - http://%[1]s:8081/ 2>&1; echo closed port $?
%[2]s=%[1]s tsugiki guest run -- /bin/program; echo program says $?
echo page of the guest > /tmp/index.html
tsugiki guest run -- httpd -f -vv -p 0.0.0.0:80 -h /tmp 2>&1 &
(echo all; echo ready; while sleep 1; do echo more; done) | tsugiki guest run -- nc %[1]s %[3]d; echo nc has ended
until tsugiki guest run -- wget -q -O - http://%[1]s:8080/; do sleep 1; done; echo wget says again $?
tsugiki guest run -- httpd -f -p 0.0.0.0:80 -h /tmp &
tsugiki guest run -- wget -q -O /dev/null http://%[1]s:8080/finish
`, testkit.RemoteAddr4, programEnv, echoPort)})
	g.Expect(fmt.Sprintf("page of the remote for %s:", testkit.HostAddr4))
	g.Expect("wget says 0")
	g.Expect("Connection refused")
	g.Expect("closed port 1")
	expectDatagrams(t, g, top.Remote, netip.AddrPortFrom(testkit.HostAddr4, 9003))
	g.Expect("listening at 0.0.0.0:9000")
	for _, word := range []string{"hello", "end"} {
		c, err := reach(top, fmt.Sprintf("%s:9000", testkit.HostAddr4))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, word); err != nil {
			t.Error(err)
		}
		if b, err := io.ReadAll(c); err != nil || string(b) != word {
			t.Errorf("%q, %v", b, err)
		}
		g.Expect(fmt.Sprintf("client %s says %q", c.LocalAddr(), word))
		c.Close()
	}
	g.Expect("program says 0")
	page := func() {
		t.Helper()
		testkit.Eventually(t, func() error {
			page, err := get(top.Remote, fmt.Sprintf("http://%s:8081/", testkit.HostAddr4))
			if err == nil && page != "page of the guest\n" {
				err = fmt.Errorf("page %q", page)
			}
			return err
		})
	}
	g.Expect("ready")
	page()
	g.Expect(testkit.RemoteAddr4.String()) // httpd names its client
	p.end(unix.SIGKILL)
	g.Expect("nc has ended")
	attachFake(t, top.Host, "v", dir, flags...)
	g.Expect("wget says again 0")
	page()
	finish()
}

// TestGuestDies kills a VMM with a vhost-user device while its guest has connections. Their peers see a reset,
// the host's process keeps nothing of them, and serves the next boot.
func TestGuestDies(t *testing.T) {
	top := testkit.Build(t, testkit.Options{})
	l := listenIn(t, top.Remote, fmt.Sprintf("%s:7000", testkit.RemoteAddr4))
	dir := t.TempDir()
	socket := filepath.Join(dir, "vsock")
	p := serve(t, top.Host, "guest", "attach", "--vsock", socket, "--name", fmt.Sprintf("vm%d", os.Getpid()), "--run-dir", filepath.Join(dir, "run"),
		"-e", "0.0.0.0/0=0.0.0.0", "-p", "8081:80")
	testkit.Eventually(t, func() error {
		_, err := os.Stat(socket)
		return err
	})
	before := socketsOf(t, p)
	script := fmt.Sprintf(`
tsugiki guest run -- httpd -f -p 0.0.0.0:80 -h /tmp &
for i in 1 2 3 4 5; do (echo hello; sleep 1000) | tsugiki guest run -- nc %[1]s 7000 & done
sleep 1000
`, testkit.RemoteAddr4)
	g := uml.Start(t, top.Host, socket, uml.Options{Script: script})
	var conns []net.Conn
	for range 5 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.ReadFull(c, make([]byte, len("hello\n"))); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	testkit.Eventually(t, func() error {
		c, err := reach(top, fmt.Sprintf("%s:8081", testkit.HostAddr4))
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	})
	g.Crash()
	for _, c := range conns {
		if n, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("a peer has read %d bytes, %v", n, err)
		}
	}
	testkit.Eventually(t, func() error {
		if now := socketsOf(t, p); now > before+pooled {
			return fmt.Errorf("%d sockets, and %d before", now, before)
		}
		if open := listening(t, top.Host); len(open) > 0 {
			return fmt.Errorf("the host listens at %v", open)
		}
		return nil
	})

	again := uml.Start(t, top.Host, socket, uml.Options{Script: fmt.Sprintf(`
tsugiki guest run -- nc %s 7000 < /dev/null; echo nc has ended
`, testkit.RemoteAddr4)})
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	again.Expect("nc has ended")
}

// TestVsockSockets has package stream's tests of AF_VSOCK in a guest, where the kernel has vsock_loopback.
func TestVsockSockets(t *testing.T) {
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	dir := t.TempDir()
	program := filepath.Join(dir, "stream.test")
	build := exec.Command("go", "test", "-c", "-o", program, "github.com/tsugiki/tsugiki/outsource/stream")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the tests: %v\n%s", err, out)
	}
	loopback, _ := filepath.Glob("/usr/lib/uml/modules/*/kernel/net/vmw_vsock/vsock_loopback.ko")
	if len(loopback) == 0 {
		t.Skip("needs User-Mode Linux (Debian package user-mode-linux, x86-64)")
	}
	socket := filepath.Join(dir, "device")
	serveHybrid(t, socket, filepath.Join(dir, "v"))
	g := uml.Start(t, top.Host, socket, uml.Options{
		Script: "insmod /extra/vsock_loopback.ko; /extra/stream.test -test.run TestVsock -test.v 2>&1; echo tests say $?",
		Files:  map[string]string{"extra/vsock_loopback.ko": loopback[0], "extra/stream.test": program},
	})
	for _, name := range []string{"TestVsockData", "TestVsockDial", "TestVsockOfAnother"} {
		g.Expect("--- PASS: " + name)
	}
	g.Expect("tests say 0")
}

// listenIn listens in a namespace.
func listenIn(t *testing.T, ns *testkit.Namespace, at string) (l net.Listener) {
	t.Helper()
	err := ns.Do(func() (err error) {
		l, err = net.Listen("tcp", at)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}
