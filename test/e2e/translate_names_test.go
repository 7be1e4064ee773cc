package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// What names stand for in the world of newNamedWorld. Each server is one of the remote's addresses.
const (
	allowedAddr6 = "2001:db8:1::a1"
	otherAddr6   = "2001:db8:1::a2"
	behindNAT64  = "2001:db8:64::203.0.113.4" // of an IPv4 host
	besideNAT64  = "2001:db8:64::203.0.113.5"
)

// newNamedWorld is an ipv6World whose remote has more addresses, and whose resolver has names for them.
func newNamedWorld(t *testing.T) *ipv6World {
	t.Helper()
	top := testkit.Build(t, testkit.Options{IPv6Only: true})
	w := &ipv6World{top.Host, top.Remote}
	for _, addr := range []string{allowedAddr6, otherAddr6, behindNAT64, besideNAT64} {
		addAddr(t, w.srv, addr+"/128", "lo")
	}
	succeed(t, command(t, w.h, "ip", "route", "add", "2001:db8:64::/96", "via", remoteAddr6))
	for _, addr := range []string{allowedAddr6, otherAddr6} {
		succeed(t, command(t, w.h, "ip", "route", "add", addr, "via", remoteAddr6))
	}
	var hosts strings.Builder
	for name, addr := range map[string]string{
		"www.example.com": allowedAddr6, "deep.www.example.com": otherAddr6, "other.example.net": otherAddr6,
		"loopback.example.com": "::1", "link.example.com": "fe80::1", "mapped.example.com": "::ffff:127.0.0.1", "host.example.com": hostAddr6,
		"group.example.com": "ff02::1", "four.example.com": "203.0.113.4", "ipv4only.arpa": "2001:db8:64::192.0.0.170",
	} {
		fmt.Fprintln(&hosts, addr, name)
	}
	path := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(path, []byte(hosts.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	line := append(dnsmasq(t, 53), "--addn-hosts="+path, "--cname=evil.example.net,www.example.com", "--cname=good.example.com,other.example.net")
	serve(t, command(t, w.srv, line[0], line[1:]...), port{w.srv, "udp", 53})
	return w
}

// namedPort is where the servers of answerAt are.
const namedPort = 7171

// answerAt has the remote answer at some of its addresses: by TCP, and by UDP, from the address that was
// asked.
func (w *ipv6World) answerAt(t *testing.T, addrs ...string) *observer {
	t.Helper()
	o := &observer{}
	for _, addr := range addrs {
		at := net.JoinHostPort(addr, fmt.Sprint(namedPort))
		var l net.Listener
		var p net.PacketConn
		listenAgain(t, w.srv, func() (err error) {
			l, err = net.Listen("tcp", at)
			return err
		})
		listenAgain(t, w.srv, func() (err error) {
			p, err = net.ListenPacket("udp", at)
			return err
		})
		s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprintln(rw, o.note(r.RemoteAddr)) })}
		go s.Serve(l) // until Close
		go func() {
			buf := make([]byte, 2048)
			for {
				_, from, err := p.ReadFrom(buf)
				if err != nil {
					return // closed
				}
				_, _ = p.WriteTo([]byte(o.note(from.String())+"\n"), from) // the asker may be gone
			}
		}()
		t.Cleanup(func() {
			s.Close()
			p.Close()
		})
	}
	return o
}

// pythonNamed does what each line of its input says, and prints how it has gone: "ask FAMILY NAME" prints
// the addresses that the program is told, "tcp TO PORT" and "udp TO PORT" whom a server has seen, or an
// errno. TO may be the number of an answer: its first address.
const pythonNamed = `
import errno, socket, sys
known = []
def ask(family, name):
    try:
        found = socket.getaddrinfo(name, 0, {"4": socket.AF_INET, "6": socket.AF_INET6}[family], socket.SOCK_STREAM)
    except socket.gaierror as e:
        return "no address"
    known.append(found[0][4][0])
    return " ".join(a[4][0] for a in found)
def to(addr):
    if addr.isdigit():
        addr = known[int(addr)]
    return addr, socket.AF_INET6 if ":" in addr else socket.AF_INET
def page(s):
    s.sendall(b"GET / HTTP/1.0\r\n\r\n")
    return s.makefile().read().split()[-1]
def tcp(addr, port):
    addr, family = to(addr)
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.connect((addr, int(port)))
        return page(s)
def udp(addr, port):
    addr, family = to(addr)
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        try:
            s.sendto(b"?", (addr, int(port)))
            sent = s.recv(100).split()[0].decode()
        except OSError as e:
            sent = errno.errorcode[e.errno]
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        try:
            s.connect((addr, int(port)))
            s.send(b"?")
            return sent + " " + s.recv(100).split()[0].decode()
        except OSError as e:
            return sent + " " + errno.errorcode[e.errno]
print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    try:
        print(line.strip() + ":", globals()[words[0]](*words[1:]), flush=True)
    except OSError as e:
        print(line.strip() + ":", errno.errorcode[e.errno], flush=True)
`

// namedProgram is a container that does what it is told.
type namedProgram struct {
	*held
}

func (w *ipv6World) named(t *testing.T, flags ...string) *namedProgram {
	t.Helper()
	return &namedProgram{hold(t, w.translated(t, append(flags, "--", python(t), "-c", pythonNamed)...), "ready")}
}

// does has the container do something, and checks what it prints.
func (n *namedProgram) does(what, want string) {
	n.t.Helper()
	fmt.Fprintln(n.stdin, what)
	n.await(what + ": ")
	if got, _ := strings.CutPrefix(n.said[len(n.said)-1], what+": "); got != want {
		n.t.Fatalf("%s: %s, want %s\n%s", what, got, want, n.stderr)
	}
}

// ends has the container end, and checks that nothing was wrong.
func (n *namedProgram) ends() {
	n.t.Helper()
	n.stdin.Close()
	if err := n.Wait(); err != nil {
		n.t.Errorf("%v\n%s", err, n.stderr)
	}
	checkLog(n.t, n.Cmd, n.stderr.String())
}

const (
	refused    = "ENETUNREACH"
	refusedUDP = "ENETUNREACH ENETUNREACH"
	// sendto(2) and connect(2) of an IPv6 socket.
	refusedUDP6 = "EPERM ENETUNREACH"
)

// A container reaches an address from when a name that matches was answered with it, and no others: by
// IPv4 and IPv6, TCP and UDP. What is answered for other names opens nothing, wherever they lead.
// Another container is not opened.
func TestNameRules(t *testing.T) {
	t.Parallel()
	w := newNamedWorld(t)
	o := w.answerAt(t, remoteAddr6, allowedAddr6, otherAddr6, behindNAT64, besideNAT64)
	at := func(to string) string { return fmt.Sprintf("%s %d", to, namedPort) }
	c, second := w.named(t, "--name-rule", "*.Example.com."), w.named(t, "--name-rule", "*.example.com")
	both := hostAddr6 + " " + hostAddr6
	c.does("tcp "+at(allowedAddr6), refused)
	c.does("udp "+at(allowedAddr6), refusedUDP6)

	// Names that do not match have virtual addresses which lead nowhere.
	c.does("ask 4 evil.example.net", "198.18.0.1")
	c.does("tcp "+at("0"), refused)
	c.does("udp "+at("0"), refusedUDP)
	c.does("ask 4 deep.www.example.com", "198.18.0.2")
	c.does("tcp "+at("1"), refused)
	c.does("ask 6 evil.example.net", allowedAddr6)
	c.does("tcp "+at("2"), refused)
	c.does("udp "+at("2"), refusedUDP6)

	// A name that matches opens what it is answered with, under each name that this has.
	c.does("ask 4 WWW.example.COM", "198.18.0.1")
	c.does("tcp "+at("3"), hostAddr6)
	c.does("udp "+at("3"), both)
	c.does("tcp "+at("2"), hostAddr6)
	c.does("udp "+at("2"), both)
	c.does("tcp "+at("1"), refused)
	c.does("tcp "+at(otherAddr6), refused)
	c.does("tcp "+at(remoteAddr6), refused)
	second.does("tcp "+at(allowedAddr6), refused)
	second.does("udp "+at(allowedAddr6), refusedUDP6)
	second.does("ask 4 evil.example.net", "198.18.0.1")
	second.does("tcp "+at("0"), refused)

	// An alias counts as the name that was asked for.
	second.does("ask 6 good.example.com", otherAddr6)
	second.does("tcp "+at("1"), hostAddr6)
	second.does("udp "+at("1"), both)
	c.does("tcp "+at(otherAddr6), refused)

	// A host that has IPv4 only is the one behind the NAT64.
	c.does("tcp "+at("203.0.113.4"), refused)
	c.does("ask 4 four.example.com", "203.0.113.4")
	c.does("tcp "+at("203.0.113.4"), hostAddr6)
	c.does("tcp "+at("203.0.113.5"), refused)
	c.does("tcp "+at(besideNAT64), refused)

	// The servers were asked by those that were let through, and by nobody else.
	c.ends()
	second.ends()
	if from := o.take(); len(from) != 10 || slices.ContainsFunc(from, func(f string) bool { return f != hostAddr6 }) {
		t.Errorf("the server was asked by %v", from)
	}
}

// A rule for ports and a protocol opens those, and -e opens what it says, from the same address.
func TestNameRulePorts(t *testing.T) {
	t.Parallel()
	w := newNamedWorld(t)
	addAddr(t, w.h, sourceAddr6+"/64", "srv")
	w.answerAt(t, allowedAddr6, otherAddr6)
	at := func(to string) string { return fmt.Sprintf("%s %d", to, namedPort) }
	for name, tt := range map[string]struct {
		flags               []string
		source, tcp, udp    string
		tcpOther, udpBefore string
	}{
		"port":       {[]string{"--name-rule", fmt.Sprintf("www.example.com:%d", namedPort)}, hostAddr6, hostAddr6, hostAddr6 + " " + hostAddr6, refused, refusedUDP6},
		"ports":      {[]string{"--name-rule", fmt.Sprintf("**.com:%d-%d/tcp", namedPort-1, namedPort)}, hostAddr6, hostAddr6, refusedUDP, refused, refusedUDP6},
		"other port": {[]string{"--name-rule", fmt.Sprintf("*:%d", namedPort+1)}, hostAddr6, refused, refusedUDP, refused, refusedUDP6},
		"UDP":        {[]string{"--ipv6", sourceAddr6, "--name-rule", "www.example.com/udp"}, sourceAddr6, refused, sourceAddr6 + " " + sourceAddr6, refused, refusedUDP6},
		"beside -e": {
			[]string{"--name-rule", "www.example.com/tcp", "-e", otherAddr6 + "=" + sourceAddr6, "-e", "2001:db8:1::/64/udp=" + sourceAddr6},
			sourceAddr6, sourceAddr6, sourceAddr6 + " " + sourceAddr6, sourceAddr6, sourceAddr6 + " " + sourceAddr6,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := w.named(t, tt.flags...)
			c.does("tcp "+at(allowedAddr6), refused)
			c.does("udp "+at(allowedAddr6), tt.udpBefore)
			c.does("ask 4 www.example.com", "198.18.0.1")
			c.does("tcp "+at("0"), tt.tcp)
			c.does("udp "+at("0"), tt.udp)
			c.does("tcp "+at(otherAddr6), tt.tcpOther)
			c.ends()
		})
	}
}

// Names of special addresses and of the host's own open nothing, also if they match.
func TestNameRulesOpenNothingSpecial(t *testing.T) {
	t.Parallel()
	w := newNamedWorld(t)
	onHost, remote := observe(t, w.h), observe(t, w.srv)
	at := func(to string) string { return fmt.Sprintf("%s %d", to, observerPort) }
	c := w.named(t, "--name-rule", "*")
	for _, name := range []string{"loopback", "link", "mapped", "host", "group"} {
		c.does("ask 4 "+name+".example.com", "no address")
	}
	c.does("ask 6 host.example.com", hostAddr6)
	c.does("tcp "+at(hostAddr6), refused)
	c.does("udp "+at(hostAddr6), refusedUDP6)
	// ::1 is the container's own loopback, where nobody listens.
	c.does("ask 6 loopback.example.com", "::1")
	c.does("tcp "+at("::1"), "ECONNREFUSED")
	c.does("ask 6 mapped.example.com", "::ffff:127.0.0.1")
	c.does("tcp "+at("::ffff:127.0.0.1"), "ECONNREFUSED")
	c.does("ask 6 link.example.com", "fe80::1")
	c.does("tcp "+at("fe80::1"), "EINVAL")
	c.does("ask 6 group.example.com", "ff02::1")
	c.does("udp "+at("ff02::1"), refusedUDP6)
	// The rule and the servers are there.
	c.does("ask 4 www.example.com", "198.18.0.1")
	c.does("tcp "+at("5"), hostAddr6)
	c.ends()
	if on, at := onHost.take(), remote.take(); len(on) != 0 || len(at) != 1 {
		t.Errorf("the host was asked by %v, the remote by %v", on, at)
	}
	succeed(t, command(t, w.h, static(t, "fetch"), fmt.Sprintf("http://[%s]:%d", hostAddr6, observerPort)))
	if len(onHost.take()) != 1 {
		t.Error("the host's server does not answer")
	}
}

// What -v, --dry-run and wrong rules say.
func TestNameRulesAreShown(t *testing.T) {
	t.Parallel()
	w := newNamedWorld(t)
	observe(t, w.srv)
	url := fmt.Sprintf("http4://www.example.com:%d", observerPort)
	r := try(t, w.translated(t, "-v", "--name-rule", "*.example.com:7000-7999/tcp", "--", static(t, "fetch"), url))
	for _, says := range []string{
		`msg="opened by its name" `, " name=www.example.com. host=" + allowedAddr6 + " ",
		fmt.Sprintf("addr=198.18.0.1:%d to=[%s]:%d endpoint=names", observerPort, allowedAddr6, observerPort),
	} {
		if r.err != nil || !strings.Contains(r.stderr, says) {
			t.Errorf("%v: -v does not say %q:\n%s", r.err, says, r.stderr)
		}
	}
	out := succeed(t, w.translated(t, "--dry-run", "--name-rule", "*.Example.com:443", "--name-rule", "db.example.org.", "-i", "0.0.0.0:80="+hostAddr6, "--", "true"))
	for _, says := range []string{
		"connect   hosts named *.example.com:443   --name-rule *.example.com:443   through the host, from an address that the host chooses\n",
		"connect   hosts named db.example.org      --name-rule db.example.org      through the host, ", "connect   any other ",
	} {
		if !strings.Contains(out, says) {
			t.Errorf("--dry-run does not say %q:\n%s", says, out)
		}
	}
	for rule, says := range map[string]string{"2001:db8::/32": "write an address in -e", "a..b": "between two dots"} {
		r := try(t, w.translated(t, "--name-rule", rule, "--", "true"))
		if exitStatus(r.err) != 2 || !strings.Contains(r.stderr, "bad rule --name-rule \""+rule+"\": ") || !strings.Contains(r.stderr, says) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: %v\n%s", rule, r.err, r.stderr)
		}
	}
}
