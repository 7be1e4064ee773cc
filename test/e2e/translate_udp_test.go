package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// pythonDatagrams makes the calls of UDP clients in the forms in which programs make them. What it
// prints of them, besides the server's answers, is what it prints with IPv4.
const pythonDatagrams = `
import ctypes, errno, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
addr = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), socket.AF_INET, socket.SOCK_DGRAM)[0][4]
def new():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(50)
    return s
def raw(addr):
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", addr[1]) + socket.inet_aton(addr[0]) + bytes(8)
def received(s):
    # What the kernel writes: length, and the address.
    data, at, size = ctypes.create_string_buffer(100), ctypes.create_string_buffer(28), ctypes.c_uint32(28)
    while True:
        n = libc.recvfrom(s.fileno(), data, 100, 0, at, ctypes.byref(size))
        if n >= 0:
            return data.raw[:n].decode().strip(), size.value, at.raw[:16] == raw(addr), at.raw[16:] == bytes(12)
        if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            return errno.errorcode[ctypes.get_errno()]
        __import__("select").select([s], [], [])

s = new()
s.connect(addr)
s.send(b"?")
print("connected", s.recv(100).decode().strip(), s.getpeername() == addr, s.getsockname()[0], s.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_INET)
s.send(b"?")
print("recvfrom", *received(s))
s = new()
s.sendto(b"?", addr)
print("sendto", *received(s))
s.sendmsg([b"?"], [], 0, addr)
data, _, _, peer = s.recvmsg(100)
print("sendmsg", data.decode().strip(), peer == addr)

class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("length", ctypes.c_size_t)]
class Message(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("size", ctypes.c_uint32), ("vector", ctypes.POINTER(Vector)), ("count", ctypes.c_size_t),
        ("control", ctypes.c_void_p), ("controlled", ctypes.c_size_t), ("flags", ctypes.c_size_t), ("sent", ctypes.c_size_t)]
name, vector = raw(addr), Vector(b"?", 1)
list = (Message * 2)()
for m in list:
    m.name, m.size, m.vector, m.count = name, 16, ctypes.pointer(vector), 1
print("sendmmsg", libc.sendmmsg(s.fileno(), list, 2, 0), *received(s), *received(s))

here = new()
here.bind(("127.0.0.1", 0))
s.sendto(b"to the loopback", here.getsockname())
data, peer = here.recvfrom(100)
here.sendto(data, peer)
print("loopback", peer[0], s.recvfrom(100) == (data, here.getsockname()), s.getsockname()[0])
s.sendto(b"?", addr)
print("both", s.recvfrom(100)[1] == addr)
s.connect(here.getsockname())
print("again", s.getpeername() == here.getsockname(), s.getsockname()[0])
s.connect(addr)
s.send(b"?")
print("again", s.recv(100).decode().strip(), s.getpeername() == addr)
closed = (addr[0], 1)
s = new()
s.connect(closed)
s.send(b"?")
print("closed", received(s))
s = new()
s.setsockopt(socket.IPPROTO_IP, 11, 1) # IP_RECVERR
s.sendto(b"?", closed)
print("closed", received(s))
def refused(to):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sent = libc.sendto(s.fileno(), b"?", 1, 0, raw(to), 16)
    return errno.errorcode[s.connect_ex(to)], sent, errno.errorcode[ctypes.get_errno()]
print("nobody", *refused(("198.18.77.1", addr[1])))
print("alias", *refused(("127." + addr[0].split(".", 1)[1], addr[1])))
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
print("mapped", errno.errorcode[s.connect_ex(("::ffff:" + addr[0], addr[1]))])
`

const pythonDatagramsPrint = `connected %[1]s True 192.0.0.2 True
recvfrom %[1]s 16 True True
sendto %[1]s 16 True True
sendmsg %[1]s True
sendmmsg 2 %[1]s 16 True True %[1]s 16 True True
loopback 127.0.0.1 True 0.0.0.0
both True
again True 127.0.0.1
again %[1]s True
closed ECONNREFUSED
closed ECONNREFUSED
nobody ENETUNREACH -1 ENETUNREACH
alias ENETUNREACH -1 ENETUNREACH
mapped ENETUNREACH
`

// Programs that know IPv4 only ask UDP servers that have only an IPv6 address, and see only IPv4. The
// server sees the address that the container was given. No IPv4 packet is on the host's link.
func TestTranslatedDatagrams(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	o := observe(t, w.srv)
	const dnsPort = 5353
	line := dnsmasq(t, dnsPort)
	serve(t, command(t, w.srv, line[0], line[1:]...), port{w.srv, "udp", dnsPort})
	watch := watchIPv4(t, w.h)
	at := fmt.Sprintf("%s:%d", serverName, observerPort)
	for name, tt := range map[string]struct {
		line []string
		want string
	}{
		"python": {
			[]string{"timeout", "10", python(t), "-u", "-c", pythonDatagrams, serverName, fmt.Sprint(observerPort)},
			fmt.Sprintf(pythonDatagramsPrint, sourceAddr6),
		},
		"static": {[]string{static(t, "fetch"), "udp4://" + at}, sourceAddr6 + "\n"},
		"dig": {
			[]string{"sh", "-c", fmt.Sprintf(`dig +short +tries=1 +timeout=50 -p %d @$(getent ahostsv4 %s | awk '{ print $1; exit }') %s AAAA`, dnsPort, serverName, serverName)},
			remoteAddr6 + "\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTranslatingModes(t, func(t *testing.T, mode string) {
				got := succeed(t, w.translated(t, append([]string{"--mode", mode, "--ipv6", sourceAddr6, "--"}, tt.line...)...))
				if got != tt.want {
					t.Errorf("it prints\n%s\nwant\n%s", got, tt.want)
				}
				if from := o.take(); len(from) == 0 && name != "dig" {
					t.Error("nobody has asked the server")
				}
			})
		})
	}
	watch.Nothing(t)
}

// pythonIPv4Hosts asks hosts by UDP, and prints which of their names it sees.
const pythonIPv4Hosts = `
import socket, sys
def new():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(50)
    return s
for host in sys.argv[2:]:
    to = socket.getaddrinfo(host, int(sys.argv[1]), socket.AF_INET, socket.SOCK_DGRAM)[0][4]
    s = new()
    for _ in range(2):
        s.sendto(b"?", to)
        data, peer = s.recvfrom(100)
    print(to[0], data.decode().strip(), peer == to)
    s = new()
    s.connect(to)
    s.send(b"?")
    print(s.recv(100).decode().strip(), s.getpeername() == to, s.getsockname()[0])
`

// Programs ask UDP servers that have only IPv4, behind the NAT64: by a name, and by an address that no
// name was answered with. They see the IPv4 addresses. No IPv4 packet is on the host's link.
func TestTranslatedDatagramsBehindNAT64(t *testing.T) {
	t.Parallel()
	w := newNamedWorld(t)
	w.answerAt(t, behindNAT64, besideNAT64)
	watch := watchIPv4(t, w.h)
	var want strings.Builder
	for _, addr := range []string{"203.0.113.4", "203.0.113.5"} {
		fmt.Fprintf(&want, "%s %s True\n%s True %s\n", addr, hostAddr6, hostAddr6, ownAddr4)
	}
	inTranslatingModes(t, func(t *testing.T, mode string) {
		line := []string{"--mode", mode, "--", python(t), "-c", pythonIPv4Hosts, fmt.Sprint(namedPort), "four.example.com", "203.0.113.5"}
		if got := succeed(t, w.translated(t, line...)); got != want.String() {
			t.Errorf("it prints\n%s\nwant\n%s", got, want.String())
		}
		line = []string{"--mode", mode, "--", static(t, "fetch"), fmt.Sprintf("udp4://four.example.com:%d", namedPort)}
		if got := succeed(t, w.translated(t, line...)); got != hostAddr6+"\n" {
			t.Errorf("a static program prints %q, want %s", got, hostAddr6)
		}
	})
	watch.Nothing(t)
}

// pythonDatagramServer answers each datagram with the names that it sees.
const pythonDatagramServer = `
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", int(sys.argv[1])))
while True:
    data, peer = s.recvfrom(100)
    s.sendto(f"{data.decode()} {s.getsockname()} {peer[0]}".encode(), peer)
`

// Servers that know IPv4 only answer at an IPv6 address, from there, and see only IPv4. Each remote
// has a virtual address of its own, also the host.
func TestTranslatedDatagramServers(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	watch := watchIPv4(t, w.h)
	for i, tt := range []struct {
		name string
		line func(port string) []string
		want string // the answer, of which the first group is the peer
	}{
		{"python", func(port string) []string { return []string{python(t), "-c", pythonDatagramServer, port} }, `^[123] \('0\.0\.0\.0', 8000\) (198\.19\.\d+\.\d+)$`},
		{"static", func(port string) []string { return []string{static(t, "serve"), "udp4://0.0.0.0:" + port} }, `^(198\.19\.\d+\.\d+)\n$`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			number := uint16(8000 + i)
			at := netip.AddrPortFrom(netip.MustParseAddr(sourceAddr6), number)
			line := append([]string{"-i", fmt.Sprintf("0.0.0.0:%d=%s", number, at), "--"}, tt.line(fmt.Sprint(number))...)
			serve(t, w.translated(t, line...), port{w.h, "udp6", number})
			seen := map[string]bool{}
			for _, ns := range []*testkit.Namespace{w.srv, w.h} {
				conn := dialUDP(t, ns, at)
				var first string
				for _, question := range []string{"1", "2", "3"} {
					answer := askUDP(t, conn, question)
					peer := regexp.MustCompile(tt.want).FindStringSubmatch(answer)
					if peer == nil || first != "" && peer[1] != first {
						t.Fatalf("the server answers %q, and has seen %q before", answer, first)
					}
					first = peer[1]
				}
				if seen[first] {
					t.Errorf("two hosts are %s", first)
				}
				seen[first] = true
			}
		})
	}
	watch.Nothing(t)
}

// dialUDP connects an IPv6 socket, which hears nobody else.
func dialUDP(t *testing.T, ns *testkit.Namespace, to netip.AddrPort) (conn *net.UDPConn) {
	t.Helper()
	err := ns.Do(func() (err error) {
		conn, err = net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// askUDP asks until there is an answer: a server may be published a moment after its port is taken.
func askUDP(t *testing.T, conn *net.UDPConn, question string) (answer string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		buf := make([]byte, 2048)
		err := conn.SetDeadline(time.Now().Add(time.Second))
		if err == nil {
			_, err = conn.Write([]byte(question))
		}
		n := 0
		if err == nil {
			n, err = conn.Read(buf)
		}
		answer = string(buf[:n])
		return err
	})
	return answer
}

// hostileDatagrams sends to a virtual address, which no rule covers at this port, in each form, and
// each time to a port that a rule covers.
const hostileDatagrams = `
import errno, socket, sys
addr, forbidden = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), socket.AF_INET, socket.SOCK_DGRAM)[0][4], int(sys.argv[3])
bad = (addr[0], forbidden)
alias = ("127." + addr[0].split(".", 1)[1], forbidden)
def new():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(50)
    return s
def attempt(what):
    try:
        what()
        print("it is sent")
    except OSError as e:
        print(errno.errorcode[e.errno])
s = new()
for to in bad, alias, ("198.19.0.1", forbidden):
    attempt(lambda: s.sendto(b"forbidden", to))
    attempt(lambda: s.sendmsg([b"forbidden"], [], socket.MSG_DONTWAIT, to))
    attempt(lambda: new().connect(to))
# A datagram that waits for its rest, while the socket connects to where it may not.
s.setsockopt(socket.IPPROTO_UDP, 1, 1) # UDP_CORK
s.sendto(b"allowed", addr)
attempt(lambda: s.connect(bad))
s.setsockopt(socket.IPPROTO_UDP, 1, 0)
print(s.recv(100).decode())
# Connected to where it may, it names where it may not.
s = new()
s.connect(addr)
attempt(lambda: s.sendto(b"forbidden", bad))
s.send(b"allowed")
print(s.recv(100).decode())
`

// A translated UDP socket reaches what rules cover, and nothing else: no other port of a host that
// they cover, no service of the host's by an alias. A sentinel that is sent last is heard.
func TestTranslatedDatagramsForbidden(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	const allowed, forbidden = 8101, 8102
	var heard [3]*net.UDPConn
	for i, at := range []struct {
		ns      *testkit.Namespace
		network string
		addr    string
	}{
		{w.srv, "udp6", fmt.Sprintf("[%s]:%d", remoteAddr6, allowed)},
		{w.srv, "udp6", fmt.Sprintf("[%s]:%d", remoteAddr6, forbidden)},
		{w.h, "udp4", fmt.Sprintf("0.0.0.0:%d", forbidden)},
	} {
		err := at.ns.Do(func() (err error) {
			heard[i], err = net.ListenUDP(at.network, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at.addr)))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { heard[i].Close() })
	}
	go testkit.AnswerDatagrams(heard[0], testkit.Echo)
	inTranslatingModes(t, func(t *testing.T, mode string) {
		out := succeed(t, w.translated(t, "--mode", mode, "-e", fmt.Sprintf("[%s]:%d=%s", remoteAddr6, allowed, sourceAddr6), "--",
			python(t), "-c", hostileDatagrams, serverName, fmt.Sprint(allowed), fmt.Sprint(forbidden)))
		want := strings.Repeat("ENETUNREACH\n", 10) + "allowed\nENETUNREACH\nallowed\n"
		if out != want {
			t.Errorf("it prints\n%s\nwant\n%s", out, want)
		}
	})
	checkHearsOnly(t, heard[1], heard[1].LocalAddr().String())
	checkHearsOnly(t, heard[2], fmt.Sprintf("127.0.0.1:%d", forbidden))
}

// checkHearsOnly sends a last datagram to a socket, and fails if the socket has heard another before.
func checkHearsOnly(t *testing.T, l *net.UDPConn, at string) {
	t.Helper()
	const sentinel = "sentinel"
	buf := make([]byte, 2048)
	to, err := net.ResolveUDPAddr("udp", at)
	if err == nil {
		_, err = l.WriteTo([]byte(sentinel), to)
	}
	if err == nil {
		err = l.SetDeadline(time.Now().Add(testkit.Patience))
	}
	if err != nil {
		t.Fatal(err)
	}
	n, from, err := l.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	if string(buf[:n]) != sentinel {
		t.Errorf("%s hears %q from %s", l.LocalAddr(), buf[:n], from)
	}
}
