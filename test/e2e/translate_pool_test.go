package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// pooledPrint is what testdata/pooled.py prints. Sockets are translated ones before they connect.
const pooledPrint = `new ('0.0.0.0', 0) True
translated True 0 True
names 192.0.0.2 True
own True peer True
system calls True True
bad pointers EFAULT EFAULT EFAULT EFAULT
answer %[1]s
refused ECONNREFUSED ECONNREFUSED ENETUNREACH 0 EISCONN True
nobody ENETUNREACH ENETUNREACH 0
begun EINPROGRESS
failed ECONNREFUSED
peer ENOTCONN
begun EINPROGRESS
ready 0 0 EISCONN True
child 0 True
parent EISCONN True
options 33 16 33 16
system call 0 EISCONN
system call 0 EISCONN
system call ECONNREFUSED 0
system call ENETUNREACH 0
system call ECONNREFUSED 0 True
loopback 0 127.0.0.1 True
accepted True True
loopback ECONNREFUSED 0 True
loopback ECONNREFUSED 0 True
unbound 0.0.0.0 0 True
accept True -1 EAGAIN
bound 0.0.0.0 0 192.0.0.2 True
bound 127.0.0.1 0
IPv6 EINVAL EAFNOSUPPORT
IPv6 EINVAL EAFNOSUPPORT
IPv6 EINVAL EAFNOSUPPORT
IPv6 EINVAL EAFNOSUPPORT
IPv6 EINVAL EAFNOSUPPORT
IPv6 EINVAL EAFNOSUPPORT
IPv6 EINVAL EAFNOSUPPORT
resolver 0 ('192.0.2.53', 53)
resolver True True
`

// A program that makes many sockets gets translated ones from the gate, in advance from the preloaded
// library in mode auto. They do all that IPv4 ones do, also where the library does not see the calls.
func TestTranslatedPool(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	o := observe(t, w.srv)
	watch := watchIPv4(t, w.h)
	for _, tt := range []struct{ mode, v6only string }{
		{"auto", "0"},
		{"auto", "1"}, // of the host's new sockets
		{"seccomp", "0"},
	} {
		t.Run(tt.mode+"/"+tt.v6only, func(t *testing.T) {
			if err := w.h.SetSysctl("net.ipv6.bindv6only", tt.v6only); err != nil {
				t.Fatal(err)
			}
			got := succeed(t, w.translated(t, "--mode", tt.mode, "--ipv6", sourceAddr6, "--",
				python(t), "testdata/pooled.py", serverName, fmt.Sprint(observerPort)))
			want := fmt.Sprintf(pooledPrint, sourceAddr6)
			if difference := firstDifference(want, got); difference != "" {
				t.Errorf("%s\nit prints\n%s", difference, got)
			}
			if from := o.take(); len(from) != 1 || !strings.Contains(from[0], sourceAddr6) {
				t.Errorf("the server is asked by %v", from)
			}
		})
	}
	watch.Nothing(t)
}

// hostilePool tries what no rule covers on the library's sockets, and on sockets that the program has
// made translated ones itself, past the library.
const hostilePool = `
import ctypes, errno, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
name, forbidden, allowed, host, remote = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
addr = socket.getaddrinfo(name, forbidden, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
for _ in range(8):
    socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()
def pooled():
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) # or it is an IPv4 one
    return s
def own():
    s = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    s.setsockopt(socket.IPPROTO_IPV6, 0x7474, 1)
    return s
def attempt(s, to):
    n = s.connect_ex(to)
    print(to[0].replace(addr, "VIRTUAL"), errno.errorcode.get(n, n))
for to in addr, "127.0.0.1", "127.18.0.1", "198.18.77.1", "192.0.2.1", "0.0.0.0":
    attempt(pooled(), (to, forbidden))
for to in "::ffff:" + addr, "::ffff:127.0.0.1", "::ffff:198.18.77.1", "::ffff:192.0.2.1", remote, host, "::1", "::":
    attempt(own(), (to, forbidden))
s = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
attempt(s, ("::ffff:" + addr, allowed))
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
try:
    s.setsockopt(socket.IPPROTO_IPV6, 0x7474, 1)
except OSError as e:
    print(errno.errorcode[e.errno])
for s, to in (pooled(), addr), (own(), "::ffff:" + addr):
    attempt(s, (to, allowed))
    s.sendall(b"GET / HTTP/1.0\r\n\r\n")
    print(s.makefile().read().split()[-1])
`

const hostilePoolPrints = `VIRTUAL ENETUNREACH
127.0.0.1 ECONNREFUSED
127.18.0.1 ECONNREFUSED
198.18.77.1 ENETUNREACH
192.0.2.1 ENETUNREACH
0.0.0.0 ECONNREFUSED
::ffff:VIRTUAL ENETUNREACH
::ffff:127.0.0.1 ECONNREFUSED
::ffff:198.18.77.1 EPROTONOSUPPORT
::ffff:192.0.2.1 EPROTONOSUPPORT
%[2]s ENETUNREACH
%[1]s ENETUNREACH
::1 ECONNREFUSED
:: ECONNREFUSED
::ffff:VIRTUAL ENETUNREACH
ENOPROTOOPT
VIRTUAL 0
%[3]s
::ffff:VIRTUAL 0
%[3]s
`

// A program reaches what rules cover, and no service of the host's, by the sockets of the library and
// by such that it has made itself.
func TestTranslatedPoolForbidden(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	onHost, remote := observe(t, w.h), observe(t, w.srv)
	const allowed = 8080
	serve(t, command(t, w.srv, static(t, "serve"), fmt.Sprintf("tcp6://[::]:%d", allowed)), port{w.srv, "tcp6", allowed})
	got := succeed(t, w.translated(t, "-e", fmt.Sprintf("[%s]:%d=%s", remoteAddr6, allowed, sourceAddr6), "--",
		python(t), "-c", hostilePool, serverName, fmt.Sprint(observerPort), fmt.Sprint(allowed), hostAddr6, remoteAddr6))
	want := fmt.Sprintf(hostilePoolPrints, hostAddr6, remoteAddr6, sourceAddr6)
	if difference := firstDifference(want, got); difference != "" {
		t.Errorf("%s\nit prints\n%s", difference, got)
	}
	if from := append(onHost.take(), remote.take()...); len(from) > 0 {
		t.Errorf("a server was asked by %v", from)
	}
	// The servers are there.
	for addr, ns := range map[string]*testkit.Namespace{hostAddr6: w.h, remoteAddr6: w.srv} {
		succeed(t, command(t, ns, static(t, "fetch"), fmt.Sprintf("http://[%s]:%d", addr, observerPort)))
	}
	if len(onHost.take()) != 1 || len(remote.take()) != 1 {
		t.Error("the servers are not asked")
	}
}
