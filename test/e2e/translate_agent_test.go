package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
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
	// The remote's name was asked for. The host has an address that the kernel programs have chosen.
	asking := []*net.UDPConn{dialUDP(t, w.srv, at), dialUDP(t, w.h, at)}
	peers := []string{askUDP(t, asking[0], "?"), askUDP(t, asking[1], "?")}
	if peers[0] != virtualAddr4 || !strings.HasPrefix(peers[1], "198.19.") {
		t.Errorf("the server has seen %v", peers)
	}
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
		if err := d.cmd.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		o.begin("ask(stream((names[0], %d)))", echo) // the agent has not answered, and never will
		d.kill()
		d.start()
		if got := o.answer(); got != "?" {
			t.Errorf("a connect that another agent answers: %s", got)
		}
		d.kill()
		o.want("?", "ask(s)")
		o.want("EPERM", "failed(ask, v, (names[0], %d))", private)
		o.want("EPERM", "failed(ask, u)")
		d.start()

		o.want("?", "ask(s)")
		// In another order than before: a new table would give the first name the first address.
		o.want("True", "names[::-1] == [name(n) for n in (%q, %q)]", secondName, serverName)
		o.want("?", "ask(stream((names[0], %d)))", echo)
		o.want("True", "s.getpeername() == (names[0], %d)", echo)
		for _, socket := range []string{"u", fmt.Sprintf("v, (names[0], %d)", observerPort), fmt.Sprintf("datagrams(), (names[0], %d)", observerPort)} {
			o.want(sourceAddr6, "ask(%s)", socket)
		}
		for i, conn := range asking {
			if again := askUDP(t, conn, "?"); again != peers[i] {
				t.Errorf("who asks is %s, and was %s", again, peers[i])
			}
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
	var shown []api.Translation
	if err := json.Unmarshal([]byte(succeed(t, command(t, w.h, tsugiki, "translate", "show", "-j", "--run-dir", d.run, o.name))), &shown); err != nil {
		t.Fatal(err)
	}
	isPeer := func(m api.Mapping) bool { return m.V4 == peers[1] && m.V6 == sourceAddr6 && m.InUse }
	if !slices.ContainsFunc(shown[0].Mappings, isPeer) {
		t.Errorf("%s is not shown: %+v", peers[1], shown)
	}
	o.want("198.18.0.3", "name(%q)", thirdName)
	checkHearsOnly(t, service, fmt.Sprintf("127.0.0.1:%d", private))
	o.release()
}

// What is shown of a translated container is what its program sees, with and without an agent. What
// is in use is not forgotten. Metrics count it, and a trace has both addresses of a connect and of a
// datagram.
func TestTranslatedIsShown(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	observe(t, w.srv)
	echo := echoStreams(t, w.srv)
	n := &asked{daemon: startDaemon(t, w.h), w: &world{h: w.h, srv: w.srv}}
	n.http.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return n.dial("agent") },
	}
	alone := &daemon{t: t, ns: w.h, run: filepath.Join(t.TempDir(), "run")}
	for name, d := range map[string]*daemon{"agent": n.daemon, "alone": alone} {
		t.Run(name, func(t *testing.T) {
			d := &daemon{t: t, ns: d.ns, run: d.run}
			o := w.translatedBy(t, d)
			o.want("done", "s = stream((name(%q), %d))", serverName, echo)
			o.want("198.18.0.2", "name(%q)", secondName)
			show := func(args ...string) string {
				t.Helper()
				return succeed(t, command(t, w.h, tsugiki, append([]string{"translate", "--run-dir", d.run}, args...)...))
			}
			var list []api.Translation
			if err := json.Unmarshal([]byte(show("show", "-j")), &list); err != nil || len(list) != 1 {
				t.Fatalf("%+v, %v", list, err)
			}
			s := list[0]
			for i := range s.Mappings {
				m := &s.Mappings[i]
				if until, err := time.Parse(time.RFC3339, m.Until); err != nil || until.Before(time.Now()) {
					t.Errorf("%+v is in use until then: %v", m, err)
				}
				m.Until = ""
			}
			want := api.Translation{
				Container: o.name, Pool: "198.18.0.0/16", Peers: "198.19.0.0/16", Resolvers: []string{"[" + remoteAddr6 + "]:53"}, UDP: true,
				Counts:   api.TranslationStats{Addresses: api.Addresses{InUse: 2, Free: 65532}, Names: api.Names{Answered: 2}},
				Mappings: []api.Mapping{{V4: virtualAddr4, V6: remoteAddr6, Sockets: 1, InUse: true}, {V4: "198.18.0.2", V6: secondAddr6, InUse: true}},
			}
			if diff := cmp.Diff(want, s); diff != "" {
				t.Errorf("shown (-want +got):\n%s", diff)
			}
			if out := show("show", o.name); !strings.Contains(out, virtualAddr4+"   "+remoteAddr6+" ") {
				t.Errorf("shown is\n%s", out)
			}
			if out := show("flush", o.name); out != "0 forgotten, 2 in use\n" {
				t.Errorf("flush prints %q", out)
			}
			o.want("?", "ask(s)")
			if name == "agent" {
				checkTranslationMetrics(t, n, o, echo)
			}
			o.release()
		})
	}
}

// checkTranslationMetrics checks what metrics and a trace have of a container of TestTranslatedIsShown.
func checkTranslationMetrics(t *testing.T, n *asked, o *obedient, echo int) {
	t.Helper()
	m := n.metrics(t)
	for key, want := range map[string]float64{
		"addresses{container=%s,state=in_use}": 2, "addresses{container=%s,state=free}": 65532, "questions_total{container=%s,result=answered}": 2,
		"questions_total{container=%s,result=failed}": 0, "exhausted_total{container=%s}": 0,
		"relayed_connections_total{container=%s,protocol=ftp,result=relayed}": 0, "relayed_messages_total{container=%s,protocol=sip,result=refused}": 0,
		"relayed_datagrams_total{container=%s,result=lost}": 0,
	} {
		key = "tsugiki_translate_" + fmt.Sprintf(key, o.name)
		if got, is := m[key]; !is || got != want {
			t.Errorf("%s is %v, %v; want %v", key, got, is, want)
		}
	}
	trace := start(t, n.command(t, "trace", o.name))
	for protocol, at := range map[string]int{"tcp": echo, "udp": observerPort} {
		both := fmt.Sprintf("addr=%s:%d endpoint=e-1 protocol=%s to=[%s]:%d", virtualAddr4, at, protocol, remoteAddr6, at)
		testkit.Eventually(t, func() error {
			o.want("?", "ask(stream(('%s', %d)))", virtualAddr4, echo)
			o.want(sourceAddr6, "ask(datagrams(), ('%s', %d))", virtualAddr4, observerPort)
			if out := trace.output.String(); !strings.Contains(out, both) {
				return fmt.Errorf("no %q is traced:\n%s", both, out)
			}
			return nil
		})
	}
	trace.stop(t)
}
