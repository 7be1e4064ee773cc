package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const ftpPort = 21

// ftpFolder is what a server of FTP shows to all.
type ftpFolder struct {
	dir     string
	content []byte // of the file "file"
}

func newFTPFolder(t *testing.T) *ftpFolder {
	t.Helper()
	s := &ftpFolder{dir: t.TempDir(), content: bytes.Repeat([]byte("0123456789abcdef"), 1<<14)}
	if err := os.WriteFile(filepath.Join(s.dir, "file"), s.content, 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

// serveFTP serves a folder at an address. All may write there.
func serveFTP(t *testing.T, ns *testkit.Namespace, at string, number uint16) *ftpFolder {
	t.Helper()
	s := newFTPFolder(t)
	serve(t, command(t, ns, python(t), "-W", "ignore", "-m", "pyftpdlib", "-i", at, "-p", fmt.Sprint(number), "-w", "-d", s.dir), port{ns, "tcp6", number})
	return s
}

// has fails if a file has other bytes than the server's.
func (s *ftpFolder) has(t *testing.T, path string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, s.content) {
		t.Errorf("%s has %d bytes, %v; want %d", path, len(got), err, len(s.content))
	}
}

// Clients of FTP that know IPv4 only use a server that has only an IPv6 address.
func TestTranslatedFTPClients(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	s := serveFTP(t, w.srv, remoteAddr6, ftpPort)
	url := fmt.Sprintf("ftp://%s/", serverName)
	for name, line := range map[string]func(to string) []string{
		"curl, EPSV": func(to string) []string { return []string{"curl", "-4", "-sS", "-o", to, url + "file"} },
		"curl, PASV": func(to string) []string {
			return []string{"curl", "-4", "-sS", "--disable-epsv", "--no-ftp-skip-pasv-ip", "-o", to, url + "file"}
		},
		"wget":    func(to string) []string { return []string{"wget", "-4", "-t", "1", "-q", "-O", to, url + "file"} },
		"busybox": func(to string) []string { return []string{"busybox", "ftpget", serverName, to, "file"} },
		"tnftp":   func(to string) []string { return []string{"tnftp", "-4", "-V", "-o", to, url + "file"} },

		"curl, EPRT": func(to string) []string {
			return []string{"curl", "-4", "-sS", "--ftp-port", "-", "-o", to, url + "file"}
		},
		"curl, PORT": func(to string) []string {
			return []string{"curl", "-4", "-sS", "--disable-eprt", "--ftp-port", "-", "-o", to, url + "file"}
		},
		"tnftp, active":  func(to string) []string { return []string{"tnftp", "-A", "-4", "-V", "-o", to, url + "file"} },
		"python, active": func(to string) []string { return []string{python(t), "-c", pythonActiveFTP, serverName, to} },
	} {
		t.Run(name, func(t *testing.T) {
			for _, mode := range []string{"auto", "seccomp"} {
				to := filepath.Join(t.TempDir(), "file")
				succeed(t, w.translated(t, append([]string{"--ipv6", sourceAddr6, "--mode", mode, "--"}, line(to)...)...))
				s.has(t, to)
			}
		})
	}
}

// pythonRelayedCalls is what pythonCalls prints until it speaks of IPv6.
var pythonRelayedCalls, _, _ = strings.Cut(pythonCallsPrint, "IPv6")

// The connect of a relayed connection ends as that of the connection to the peer ends, and names and
// options are those of IPv4, also for a client that does not wait.
func TestRelayedCalls(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	observe(t, w.srv)
	script, _, _ := strings.Cut(pythonCalls, `print("IPv6"`)
	for _, mode := range []string{"auto", "seccomp"} {
		t.Run(mode, func(t *testing.T) {
			c := w.translated(t, "--mode", mode, "--ftp", fmt.Sprintf("1,%d", observerPort), "--", python(t), "-c", script, serverName, fmt.Sprint(observerPort))
			if got := succeed(t, c); got != pythonRelayedCalls {
				t.Errorf("it prints\n%s\nwant\n%s", got, pythonRelayedCalls)
			}
		})
	}
}

// pythonActiveFTP fetches a file in active mode. The names of the data connection have to be those of
// the control connection.
const pythonActiveFTP = `
import ftplib, socket, sys
host = sys.argv[1]
if ":" not in host:
    host = socket.gethostbyname(host)
for _ in range(3): # then the preloaded library has the board
    socket.create_connection((host, ftplib.FTP_PORT)).close()
with ftplib.FTP(host) as ftp, open(sys.argv[2], "wb") as file:
    ftp.set_pasv(False)
    ftp.login()
    with ftp.transfercmd("RETR file") as data:
        names = [(c.getsockname()[0], c.getpeername()[0]) for c in (data, ftp.sock)]
        assert names[0] == names[1], names
        while block := data.recv(1 << 16):
            file.write(block)
    ftp.voidresp()
`

// vsftpdConfig is for a server that knows IPv4 only, and has a folder for anonymous users. It waits in
// accept(2), and for signals.
const vsftpdConfig = `listen=YES
listen_ipv6=NO
background=NO
anonymous_enable=YES
anon_root=%s
no_anon_password=YES
ftp_username=daemon
connect_from_port_20=YES
pasv_min_port=2000
pasv_max_port=2001
seccomp_sandbox=NO
secure_chroot_dir=%s
`

// A server of FTP that knows IPv4 only serves clients that know IPv6 only, in passive and in active mode.
func TestTranslatedFTPServer(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	s := newFTPFolder(t)
	config := filepath.Join(t.TempDir(), "vsftpd.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, vsftpdConfig, s.dir, t.TempDir()), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, line := range map[string][]string{
		"pyftpdlib": {python(t), "-W", "ignore", "-m", "pyftpdlib", "-i", "0.0.0.0", "-p", fmt.Sprint(ftpPort), "-r", "2000-2001", "-d", s.dir},
		"vsftpd":    {"vsftpd", config},
	} {
		t.Run(name, func(t *testing.T) {
			inTranslatingModes(t, func(t *testing.T, mode string) {
				c := w.translated(t, append([]string{
					"--mode", mode, "-i", fmt.Sprintf("0.0.0.0:%d=[%s]:%d", ftpPort, sourceAddr6, ftpPort),
					"-i", fmt.Sprintf("0.0.0.0:2000-2001=[%s]:2000-2001", sourceAddr6),
					"-e", fmt.Sprintf("[%s]:1024-65535=%s", remoteAddr6, sourceAddr6), "--",
				}, line...)...)
				serve(t, c, port{w.h, "tcp6", ftpPort})
				s.isServed(t, w)
			})
		})
	}
}

// isServed fetches the file from a server in a container.
func (s *ftpFolder) isServed(t *testing.T, w *ipv6World) {
	t.Helper()
	url := fmt.Sprintf("ftp://[%s]/", sourceAddr6)
	for name, line := range map[string]func(to string) []string{
		"curl":           func(to string) []string { return []string{"curl", "-6", "-sS", "-o", to, url + "file"} },
		"python, active": func(to string) []string { return []string{python(t), "-c", pythonActiveFTP, sourceAddr6, to} },
		"tnftp":          func(to string) []string { return []string{"tnftp", "-6", "-V", "-o", to, url + "file"} },
		"wget":           func(to string) []string { return []string{"wget", "-6", "-t", "1", "-q", "-O", to, url + "file"} },
	} {
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "file")
			succeed(t, command(t, w.srv, line(to)[0], line(to)[1:]...))
			s.has(t, to)
		})
	}
}

// hostileFTPServer replies to all commands with what it has got. To EPSV it names a port, and to NOOP
// it replies without an end.
const hostileFTPServer = `
import socketserver, sys
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            if line.startswith(b"EPSV"):
                self.wfile.write(b"229 go to 10.1.2.3 (|||6379|)\r\n")
            elif line.startswith(b"NOOP"):
                self.wfile.write(b"2" * 100000)
            else:
                self.wfile.write(b"200 " + line.strip() + b"\r\n")
class Server(socketserver.ThreadingTCPServer):
    address_family = socketserver.socket.AF_INET6
    allow_reuse_address = True
Server((sys.argv[1], 21), Handler).serve_forever()
`

// hostileFTPClient tries to have ports and hosts opened by its control connection.
const hostileFTPClient = `
import errno, socket, sys
named = socket.create_server(("0.0.0.0", 6379))
bound = socket.create_server(("0.0.0.0", 0))
idle = socket.socket()
idle.bind(("0.0.0.0", 0))
c = socket.create_connection((socket.gethostbyname(sys.argv[1]), 21))
peer, own = c.getpeername(), c.getsockname()[0]
print(own, *peer)
lines = c.makefile("rb")
def say(line):
    c.sendall(line + b"\r\n")
    print(lines.readline().decode().strip())
def port(addr, port):
    say(b"PORT %s,%d,%d" % (addr.replace(".", ",").encode(), port >> 8, port & 255))
print(lines.readline().decode().strip())
say(b"PASV")
s = socket.socket()
print(errno.errorcode[s.connect_ex((peer[0], 6379))])
for addr in "127.0.0.1", peer[0], "192.0.0.7":
    port(addr, bound.getsockname()[1])
port(own, 6379)
port(own, idle.getsockname()[1])
port(own, 22)
say(b"EPRT |2|::1|6379|")
say(b"NOOP")
print(lines.read())
`

const hostileFTPPrints = `192.0.0.2 198.18.0.1 21
220 here
227 Entering Passive Mode (198,18,0,1,24,235).
ENETUNREACH
501 The address has to be the client's own, 192.0.0.2.
501 The address has to be the client's own, 192.0.0.2.
501 The address has to be the client's own, 192.0.0.2.
425 Cannot open data connection: no socket listens at this port, or the program has chosen the port.
425 Cannot open data connection: no socket listens at this port, or the program has chosen the port.
501 The port is a privileged one.
522 Network protocol not supported, use (1).
421 Connection closed: a line of the control connection is too long.
b''
`

// A control connection opens nothing but a port of the client's, for its server: not by what a hostile
// server says, nor by what a hostile client says.
func TestTranslatedFTPOpensNothing(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	serve(t, command(t, w.srv, python(t), "-c", hostileFTPServer, remoteAddr6), port{w.srv, "tcp6", ftpPort})
	listeners := []string{"ss", "-H", "-6", "-t", "-l", "-n"}
	before := succeed(t, command(t, w.h, listeners[0], listeners[1:]...))
	rule := fmt.Sprintf("[%s]:%d=%s", remoteAddr6, ftpPort, sourceAddr6)
	got := succeed(t, w.translated(t, "-e", rule, "--", python(t), "-c", hostileFTPClient, serverName))
	if got != hostileFTPPrints {
		t.Errorf("it prints\n%s\nwant\n%s", got, hostileFTPPrints)
	}
	if after := succeed(t, command(t, w.h, listeners[0], listeners[1:]...)); after != before {
		t.Errorf("the host listens at\n%s\nand before at\n%s", after, before)
	}
}

// encryptedFTPServer serves a folder to anonymous users who encrypt the control connection.
const encryptedFTPServer = `
import sys
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import TLS_FTPHandler
from pyftpdlib.servers import FTPServer
address, folder, TLS_FTPHandler.certfile = sys.argv[1:]
TLS_FTPHandler.tls_control_required = True
TLS_FTPHandler.authorizer = DummyAuthorizer()
TLS_FTPHandler.authorizer.add_anonymous(folder)
FTPServer((address, 21), TLS_FTPHandler).serve_forever()
`

// After AUTH TLS the control connection passes as it is.
func TestTranslatedFTPEncrypted(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	s := newFTPFolder(t)
	cert := filepath.Join(t.TempDir(), "cert.pem")
	succeed(t, command(t, w.srv, "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN="+serverName,
		"-addext", "subjectAltName=DNS:"+serverName, "-days", "2", "-keyout", cert+".key", "-out", cert))
	key, err := os.ReadFile(cert + ".key")
	if err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cert, append(key, public...), 0o600); err != nil {
		t.Fatal(err)
	}
	serve(t, command(t, w.srv, python(t), "-W", "ignore", "-c", encryptedFTPServer, remoteAddr6, s.dir, cert), port{w.srv, "tcp6", ftpPort})
	to := filepath.Join(t.TempDir(), "file")
	succeed(t, w.translated(t, "--", "curl", "-4", "-sS", "--ftp-ssl-control", "--cacert", cert, "-o", to, fmt.Sprintf("ftp://%s/file", serverName)))
	s.has(t, to)
}

// manyFTPConnections opens as many control connections as there is room for, and then one more when another
// has ended.
const manyFTPConnections = `
import errno, socket, sys, time
to = (socket.gethostbyname(sys.argv[1]), 21)
def connect():
    c = socket.create_connection(to)
    assert c.recv(100).startswith(b"220"), "no greeting"
    return c
def attempt():
    try:
        open.append(connect())
    except OSError as e:
        return errno.errorcode[e.errno]
open = []
while True:
    failed = attempt()
    if failed:
        break
print(len(open), failed)
open.pop().close()
while attempt():
    time.sleep(0.01)
print(len(open))
`

// A container has so many control connections. The next connect says what there is not.
func TestTranslatedFTPLimit(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	serveFTP(t, w.srv, remoteAddr6, ftpPort)
	c := w.translated(t, "--", python(t), "-c", manyFTPConnections, serverName)
	if got, want := succeed(t, c), "128 ENOBUFS\n128\n"; got != want {
		t.Errorf("it prints %q, want %q", got, want)
	}
}
