package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Names that the resolver of an ipv6World has, besides serverName.
const (
	loopbackName  = "loopback.example.org" // ::1
	linkLocalName = "link-local.example.org"
	mappedName    = "mapped.example.org" // ::ffff:127.0.0.1
	hostName      = "host.example.org"   // the host's own address
	nobodyName    = "nobody.example.org" // ::
	groupName     = "group.example.org"  // ff02::1
	nat64Name     = "nat64.example.org"  // 127.0.0.1 behind the well-known NAT64
	sixToFourName = "6to4.example.org"   // 127.0.0.1 by 6to4 (RFC 3056)
	secondName    = "second.example.org" // secondAddr6
	thirdName     = "third.example.org"  // another one
)

// Addresses that no host has at first.
const (
	secondAddr6 = "2001:db8:7::2"
	thirdAddr6  = "2001:db8:1::73"
)

// What programs see: the container's own IPv4 address, and that of the first host whose name they
// have asked for.
const (
	ownAddr4     = "192.0.0.2"
	virtualAddr4 = "198.18.0.1"
)

// inTranslatingModes runs a test in each mode in which IPv4 is translated.
func inTranslatingModes(t *testing.T, test func(t *testing.T, mode string)) {
	t.Helper()
	for _, mode := range []string{"auto", "seccomp"} {
		t.Run(mode, func(t *testing.T) { test(t, mode) })
	}
}

// ipv6World has no IPv4 but on loopbacks. The remote has a resolver.
type ipv6World struct {
	h, srv *testkit.Namespace
}

func newIPv6World(t *testing.T) *ipv6World {
	t.Helper()
	top := testkit.Build(t, testkit.Options{IPv6Only: true})
	w := &ipv6World{top.Host, top.Remote}
	addAddr(t, w.h, sourceAddr6+"/64", "srv")
	hosts := fmt.Sprintf("%s %s\n::1 %s\nfe80::1 %s\n::ffff:127.0.0.1 %s\n%s %s\n",
		remoteAddr6, serverName, loopbackName, linkLocalName, mappedName, hostAddr6, hostName)
	hosts += fmt.Sprintf(":: %s\nff02::1 %s\n64:ff9b::7f00:1 %s\n2002:7f00:1:: %s\n", nobodyName, groupName, nat64Name, sixToFourName)
	hosts += fmt.Sprintf("%s %s\n%s %s\n", secondAddr6, secondName, thirdAddr6, thirdName)
	path := filepath.Join(t.TempDir(), "hosts6")
	if err := os.WriteFile(path, []byte(hosts), 0o644); err != nil {
		t.Fatal(err)
	}
	line := append(dnsmasq(t, 53), "--addn-hosts="+path)
	serve(t, command(t, w.srv, line[0], line[1:]...), port{w.srv, "udp", 53})
	return w
}

// translated prepares a program that may know IPv4 only. What comes before "--" in args are flags. Its
// resolv.conf names a resolver that is not there.
func (w *ipv6World) translated(t *testing.T, args ...string) *testkit.Cmd {
	t.Helper()
	flags := []string{"--translate"}
	if !slices.Contains(args, "--dns") {
		flags = append(flags, "--dns", fmt.Sprintf("[%s]:53", remoteAddr6))
	}
	for i, arg := range args {
		if arg == "--" {
			line := slices.Concat([]string{tsugiki, "run", "--run-dir", runDir}, flags, args[:i], args[i:])
			line = resolving(t, "192.0.2.53", line...)
			return command(t, w.h, line[0], line[1:]...)
		}
	}
	t.Fatal("no command")
	return nil
}

// pythonClient connects with a socket that waits, and prints which families and names it sees.
const pythonClient = `
import socket, sys
addr = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), socket.AF_INET, socket.SOCK_STREAM)[0][4]
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
s.connect(addr)
print(s.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_INET, s.getsockname()[0], *s.getpeername())
s.sendall(b"GET / HTTP/1.0\r\n\r\n")
print(s.makefile().read().split()[-1])
`

// pythonCalls makes calls of a client in the orders in which programs make them. What it prints is
// what it prints with IPv4.
const pythonCalls = `
import errno, os, select, socket, sys
def new():
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
def name(n):
    return errno.errorcode.get(n, n)
def get(s, *option):
    return s.getsockopt(socket.IPPROTO_IP, *option)
addr = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), socket.AF_INET, socket.SOCK_STREAM)[0][4]
closed = (addr[0], 1)
s = new()
print("refused", name(s.connect_ex(closed)), name(s.connect_ex(closed)), name(s.connect_ex(addr)), name(s.connect_ex(addr)))
s = new()
s.setblocking(False)
events = select.epoll()
events.register(s, select.EPOLLOUT)
print("begun", name(s.connect_ex(closed)))
select.select([], [s], [])
print("failed", name(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
print("begun", name(s.connect_ex(addr)), name(s.connect_ex(addr)))
select.select([], [s], [])
print("ready", events.poll() == [(s.fileno(), select.EPOLLOUT)], s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
print("again", name(s.connect_ex(addr)), name(s.connect_ex(addr)), s.getpeername() == addr)
s = new()
d = s.dup()
s.bind(("0.0.0.0", 0))
s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 33)
s.connect(addr)
s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, bytes([0x10]))
print("bound", d.getpeername() == addr, d.getsockname() == s.getsockname(), s.getsockname()[0])
print("options", get(d, socket.IP_TTL), get(d, socket.IP_TOS), get(d, socket.IP_TOS, 1))
print("IPv6", d.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS), d.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS))
`

const pythonCallsPrint = `refused ECONNREFUSED ECONNREFUSED 0 EISCONN
begun EINPROGRESS
failed ECONNREFUSED
begun ECONNABORTED EINPROGRESS
ready True 0
again 0 EISCONN True
bound True True 192.0.0.2
options 33 16 b'\x10'
IPv6 33 16
`

// Programs that know IPv4 only reach a server that has only an IPv6 address, by its name, and see
// only IPv4. The server sees the address that the container was given. No IPv4 packet is on the
// host's link.
func TestTranslatedClients(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	o := observe(t, w.srv)
	watch := watchIPv4(t, w.h)
	at := fmt.Sprintf("%s:%d", serverName, observerPort)
	seen := fmt.Sprintf("%s %s:%d\n%s\n", ownAddr4, virtualAddr4, observerPort, sourceAddr6)
	for name, tt := range map[string]struct {
		line []string
		want string
	}{
		"curl": {
			[]string{"curl", "-4", "-sS", "-w", "%{local_ip} %{remote_ip}:%{remote_port}\n", "http://" + at},
			fmt.Sprintf("%s\n%s %s:%d\n", sourceAddr6, ownAddr4, virtualAddr4, observerPort),
		},
		"python": {
			[]string{python(t), "-c", pythonClient, serverName, fmt.Sprint(observerPort)},
			fmt.Sprintf("True %s %s %d\n%s\n", ownAddr4, virtualAddr4, observerPort, sourceAddr6),
		},
		"calls":      {[]string{python(t), "-c", pythonCalls, serverName, fmt.Sprint(observerPort)}, pythonCallsPrint},
		"static":     {[]string{static(t, "fetch"), "http4://" + at}, seen},
		"dual stack": {[]string{static(t, "fetch"), "http://" + at}, sourceAddr6 + "\n"},
		"twice":      {[]string{static(t, "fetch"), "http4://" + at, "http4://" + at}, seen + seen},
	} {
		t.Run(name, func(t *testing.T) {
			inTranslatingModes(t, func(t *testing.T, mode string) {
				got := succeed(t, w.translated(t, append([]string{"--mode", mode, "--ipv6", sourceAddr6, "--"}, tt.line...)...))
				if got != tt.want {
					t.Errorf("it prints\n%s\nwant\n%s", got, tt.want)
				}
				if from := o.take(); len(from) == 0 && name != "calls" { // which asks for no page
					t.Error("nobody has asked the server")
				}
			})
		})
	}
	watch.Nothing(t)
}

// Names of special addresses and of the host's own open nothing, nor do addresses that nobody has
// asked for, nor hosts that no rule covers: also for a program that has IPv6 sockets.
func TestTranslatedNamesOpenNothing(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	onHost, remote := observe(t, w.h), observe(t, w.srv)
	refused := func(t *testing.T, args ...string) {
		t.Helper()
		r := try(t, w.translated(t, args...))
		if exitStatus(r.err) == 0 {
			t.Errorf("%s reaches a server:\n%s", args, r.stdout)
		}
	}
	fetch := static(t, "fetch")
	for _, name := range []string{loopbackName, linkLocalName, mappedName, hostName, nobodyName, groupName, nat64Name, sixToFourName, "127.0.0.1", "198.18.77.1", "192.0.0.7", "198.51.100.2"} {
		t.Run(name, func(t *testing.T) {
			if strings.HasSuffix(name, ".org") {
				if got := succeed(t, command(t, w.srv, "dig", "+short", "@::1", name, "AAAA")); got == "" {
					t.Error("the resolver has no address of the name")
				}
			}
			refused(t, "--", fetch, fmt.Sprintf("http4://%s:%d", name, observerPort))
		})
	}
	for name, url := range map[string]string{"IPv4": "http4://" + serverName, "IPv6": "http://[" + remoteAddr6 + "]"} {
		t.Run("no rule/"+name, func(t *testing.T) {
			refused(t, "-e", "2001:db8:7::/48=::", "--", fetch, fmt.Sprintf("%s:%d", url, observerPort))
		})
	}
	if from := append(onHost.take(), remote.take()...); len(from) > 0 {
		t.Errorf("a server was asked by %v", from)
	}
	// The servers are there.
	succeed(t, w.translated(t, "--", fetch, fmt.Sprintf("http4://%s:%d", serverName, observerPort)))
	succeed(t, command(t, w.h, fetch, fmt.Sprintf("http://[%s]:%d", hostAddr6, observerPort)))
	if len(onHost.take()) != 1 || len(remote.take()) != 1 {
		t.Error("the servers are not asked")
	}
}

// pythonServer waits in accept(2) on 100 threads: more calls than a supervisor answers at once. While
// they wait, the program connects to another server by name. Its answers are the names that it sees.
const pythonServer = `
import socket, sys, threading
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("0.0.0.0", int(sys.argv[1])))
s.listen()
def serve():
    while True:
        c, peer = s.accept()
        c.recv(4096)
        same = s.family == c.family == socket.AF_INET and c.getpeername() == peer
        c.sendall(f"HTTP/1.0 200 OK\r\n\r\n{same} {s.getsockname()} {c.getsockname()[0]} {peer[0]}\n".encode())
        c.close()
for _ in range(100):
    threading.Thread(target=serve, daemon=True).start()
with socket.create_connection((sys.argv[2], int(sys.argv[3]))) as c:
    c.sendall(b"GET / HTTP/1.0\r\n\r\n")
    print("asked", c.makefile().read().split()[-1], flush=True)
threading.Event().wait()
`

// Servers that know IPv4 only serve an IPv6 address, and see only IPv4.
func TestTranslatedServers(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	observe(t, w.srv)
	const port8000 = 8000
	n := newNginx(t, fmt.Sprintf("listen 0.0.0.0:%d;", port8000), `location / { return 200 "$remote_addr $server_addr\n"; }`)
	for name, tt := range map[string]struct {
		line         []string
		want, onHost string
	}{
		"static": {
			[]string{static(t, "serve"), fmt.Sprintf("tcp4://0.0.0.0:%d", port8000)},
			virtualAddr4 + "\n", "192.0.0.7\n",
		},
		"nginx": {n.line(), virtualAddr4 + " " + ownAddr4 + "\n", "192.0.0.7 " + ownAddr4 + "\n"},
		"python": {
			[]string{python(t), "-c", pythonServer, fmt.Sprint(port8000), serverName, fmt.Sprint(observerPort)},
			fmt.Sprintf("True ('0.0.0.0', %d) %s %s\n", port8000, ownAddr4, virtualAddr4),
			fmt.Sprintf("True ('0.0.0.0', %d) %s 192.0.0.7\n", port8000, ownAddr4),
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTranslatingModes(t, func(t *testing.T, mode string) {
				rule := fmt.Sprintf("0.0.0.0:%d=[%s]:%d", port8000, sourceAddr6, port8000)
				serve(t, w.translated(t, append([]string{"--mode", mode, "-i", rule, "--"}, tt.line...)...), port{w.h, "tcp6", port8000})
				url := fmt.Sprintf("http://[%s]:%d/", sourceAddr6, port8000)
				for range 3 {
					for ns, want := range map[*testkit.Namespace]string{w.srv: tt.want, w.h: tt.onHost} {
						if got := succeed(t, command(t, ns, static(t, "fetch"), url)); got != want {
							t.Errorf("%s answers %q, want %q", name, got, want)
						}
					}
				}
				if name == "nginx" {
					n.checkErrors(t)
				}
			})
		})
	}
}

// watchIPv4 captures the IPv4 packets on the links of a namespace.
func watchIPv4(t *testing.T, ns *testkit.Namespace) *testkit.Capture {
	t.Helper()
	return testkit.StartCapture(t, ns.Path(), testkit.IPv4OnLinks)
}
