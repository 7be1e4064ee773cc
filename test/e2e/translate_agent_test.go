package e2e

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// pythonObeys does what each line of its standard input says, and prints the result.
const pythonObeys = `
import errno, socket, sys, threading
def stream(to):
    s = socket.create_connection(to)
    s.settimeout(50)
    return s
def datagrams():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(50)
    return s
def name(of):
    return socket.getaddrinfo(of, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
def ask(s, to=None):
    s.sendto(b"?", to) if to else s.sendall(b"?")
    return s.recv(100).decode().strip()
def failed(call, *args):
    try:
        return call(*args)
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))
def serve(s):
    while True:
        data, peer = s.recvfrom(100)
        s.sendto(peer[0].encode(), peer)
def serve_stream(s):
    while True:
        c, peer = s.accept()
        c.recv(100)
        c.sendall(peer[0].encode())
        c.close()
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except SyntaxError:
        exec(line)
        print("done", flush=True)
`

// translatedBy starts a container of an agent with a program that obeys.
func (w *ipv6World) translatedBy(t *testing.T, d *daemon, flags ...string) *obedient {
	t.Helper()
	flags = append([]string{"--translate", "--ipv6", sourceAddr6, "--dns", fmt.Sprintf("[%s]:53", remoteAddr6)}, flags...)
	o := &obedient{name: uniqueName("obey"), runDir: d.run}
	args := slices.Concat([]string{tsugiki, "run", "--run-dir", d.run, "--name", o.name}, flags, []string{"--", python(t), "-c", pythonObeys})
	args = resolving(t, "192.0.2.53", args...)
	o.held = hold(t, command(t, w.h, args[0], args[1:]...), "ready")
	return o
}

// echoStreams echoes streams at a port, which it returns.
func echoStreams(t *testing.T, ns *testkit.Namespace) (number int) {
	t.Helper()
	var l net.Listener
	err := ns.Do(func() (err error) {
		l, err = net.Listen("tcp6", "[::]:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// A translated container of an agent that is killed goes on: its connections without the agent, and
// with the next agent its names, with the same virtual addresses, its connects, its datagrams and
// its servers. While no agent is there, nothing that it sends to a virtual address reaches a service
// of the host's.
func TestTranslatedOverAgents(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	observe(t, w.srv)
	const published, private = 8000, 8102
	echo := echoStreams(t, w.srv)
	var service *net.UDPConn
	err := w.h.Do(func() (err error) {
		service, err = net.ListenUDP("udp4", &net.UDPAddr{Port: private})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { service.Close() })
	at := netip.AddrPortFrom(netip.MustParseAddr(sourceAddr6), published)
	d := startDaemon(t, w.h)
	o := w.translatedBy(t, d, "-i", fmt.Sprintf("0.0.0.0:%d=%s", published, at))
	o.want("done", "names = [name(n) for n in (%q, %q)]", serverName, secondName)
	o.want(fmt.Sprintf("['%s', '198.18.0.2']", virtualAddr4), "names")
	o.want("done", "s = stream((names[0], %d))", echo)
	o.want("?", "ask(s)")
	o.want("done", "u = datagrams(); u.connect((names[0], %d)); v = datagrams()", observerPort)
	for _, socket := range []string{"u", fmt.Sprintf("v, (names[0], %d)", observerPort)} {
		o.want(sourceAddr6, "ask(%s)", socket)
	}
	o.want("done", "p = datagrams(); p.bind(('0.0.0.0', %d)); threading.Thread(target=serve, args=(p,), daemon=True).start()", published)
	o.want("done", "l = socket.create_server(('0.0.0.0', %d)); threading.Thread(target=serve_stream, args=(l,), daemon=True).start()", published)
	asking := dialUDP(t, w.srv, at)
	peer := askUDP(t, asking, "?")
	servesStream := func() {
		t.Helper()
		var conn net.Conn
		err := w.srv.Do(func() (err error) {
			conn, err = net.Dial("tcp6", at.String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		buf := make([]byte, 100)
		_, err = conn.Write([]byte("?"))
		n := 0
		if err == nil {
			n, err = conn.Read(buf)
		}
		if got := string(buf[:n]); err != nil || got != virtualAddr4 {
			t.Errorf("the server has seen %q, %v", got, err)
		}
	}
	servesStream()

	for range testkit.Times(2, 20) {
		d.kill()
		o.want("?", "ask(s)")
		o.want("EPERM", "failed(ask, v, (names[0], %d))", private)
		o.want("EPERM", "failed(ask, u)")
		d.start()

		o.want("?", "ask(s)")
		o.want("True", "names == [name(n) for n in (%q, %q)]", serverName, secondName)
		o.want("?", "ask(stream((names[0], %d)))", echo)
		o.want("True", "s.getpeername() == (names[0], %d)", echo)
		for _, socket := range []string{"u", fmt.Sprintf("v, (names[0], %d)", observerPort), fmt.Sprintf("datagrams(), (names[0], %d)", observerPort)} {
			o.want(sourceAddr6, "ask(%s)", socket)
		}
		if again := askUDP(t, asking, "?"); again != peer {
			t.Errorf("the remote is %s, and was %s", again, peer)
		}
		servesStream()
		if err := w.h.Do(func() error {
			guard, err := net.ListenUDP("udp6", net.UDPAddrFromAddrPort(at))
			if err == nil {
				guard.Close()
				err = fmt.Errorf("the host's %s is free", at)
			} else {
				err = nil
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	o.want("198.18.0.3", "name(%q)", thirdName)
	checkHearsOnly(t, service, fmt.Sprintf("127.0.0.1:%d", private))
	o.release()
}
