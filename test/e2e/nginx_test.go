package e2e

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// nginx is a set of files for one nginx.
type nginx struct {
	dir string // with its pid, logs and documents
}

// newNginx writes a configuration whose server block holds the directives.
func newNginx(t *testing.T, directives ...string) nginx {
	t.Helper()
	n := nginx{t.TempDir()}
	conf := `daemon off;
user root;
worker_processes 2;
pid nginx.pid;
error_log error.log info;
events { }
http {
	log_format peer '$remote_addr $status $request_uri';
	access_log access.log peer;
	client_body_temp_path tmp;
	proxy_temp_path tmp;
	fastcgi_temp_path tmp;
	uwsgi_temp_path tmp;
	scgi_temp_path tmp;
	sendfile on;
	server {
		root documents;
		` + strings.Join(directives, "\n\t\t") + `
	}
}
`
	documents := filepath.Join(n.dir, "documents")
	if err := os.Mkdir(documents, 0o755); err != nil {
		t.Fatal(err)
	}
	n.write(t, "nginx.conf", conf)
	n.write(t, "documents/index.html", "hello\n")
	return n
}

func (n nginx) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// line is the command that starts it.
func (n nginx) line() []string {
	return []string{"nginx", "-p", n.dir, "-e", filepath.Join(n.dir, "error.log"), "-c", filepath.Join(n.dir, "nginx.conf")}
}

// log returns the lines of the access log: ADDR STATUS URI. nginx writes them
// after it has answered.
func (n nginx) log(t *testing.T, lines int) []string {
	t.Helper()
	var log []string
	testkit.Eventually(t, func() error {
		text, err := os.ReadFile(filepath.Join(n.dir, "access.log"))
		if log = strings.SplitAfter(string(text), "\n"); err == nil && len(log) != lines+1 {
			err = fmt.Errorf("%d lines in the access log, want %d:\n%s", len(log)-1, lines, text)
		}
		return err
	})
	return log[:lines]
}

// checkErrors fails the test over what nginx found worth an alert, or an error.
func (n nginx) checkErrors(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.dir, "error.log"))
	if err != nil || regexp.MustCompile(`\[(warn|error|crit|alert|emerg)\]`).Match(text) {
		t.Errorf("nginx logged (%v):\n%s", err, text)
	}
}

// curl gets URLs in a namespace and returns the bodies.
func curl(t *testing.T, ns *testkit.Namespace, args ...string) string {
	t.Helper()
	return succeed(t, command(t, ns, "curl", append([]string{"-sS", "-f"}, args...)...))
}

// nginxServer is an nginx with the URLs by which the remote asks, and the client that nginx logs.
type nginxServer struct {
	name   string
	listen []string
	flags  []string
	ports  []port // without namespace
	urls   []string
	peer   string
}

var nginxServers = []nginxServer{
	{
		name:   "ipv4",
		listen: []string{"listen 80;"},
		flags:  []string{"--endpoint", "in type ipv4 addr 198.51.100.1 port 8080", "-i", "0.0.0.0:80=in"},
		ports:  []port{{network: "tcp4", number: 8080}},
		urls:   []string{"http://198.51.100.1:8080/"},
		peer:   remoteAddr4,
	},
	{
		name:   "reuseport",
		listen: []string{"listen 80 reuseport backlog=64;"},
		flags:  []string{"--endpoint", "in type ipv4 addr 198.51.100.1 port 8080", "-i", "0.0.0.0:80=in"},
		ports:  []port{{network: "tcp4", number: 8080}},
		urls:   []string{"http://198.51.100.1:8080/"},
		peer:   remoteAddr4,
	},
	{
		name:   "range",
		listen: []string{"listen 8003;", "listen 8007;"},
		flags:  []string{"--endpoint", "in type ipv4 addr 198.51.100.1 port dynamic", "-i", "0.0.0.0:8000-8010=in"},
		ports:  []port{{network: "tcp4", number: 8003}, {network: "tcp4", number: 8007}},
		urls:   []string{"http://198.51.100.1:8003/", "http://198.51.100.1:8007/"},
		peer:   remoteAddr4,
	},
	{
		name:   "ipv6",
		listen: []string{"listen [::]:80;"},
		flags:  []string{"--endpoint", "in type ipv6 addr 2001:db8:1::1 port 8080", "-i", "[::]:80=in"},
		ports:  []port{{network: "tcp6", number: 8080}},
		urls:   []string{"http://[2001:db8:1::1]:8080/"},
		peer:   remoteAddr6,
	},
	{
		name:   "dual-stack-as-ipv4",
		listen: []string{"listen [::]:80 ipv6only=off;"},
		flags:  []string{"--endpoint", "in type ipv4 addr 198.51.100.1 port 8080", "-i", "0.0.0.0:80=in"},
		ports:  []port{{network: "tcp6", number: 8080}},
		urls:   []string{"http://198.51.100.1:8080/"},
		peer:   "::ffff:" + remoteAddr4,
	},
	{
		name:   "both",
		listen: []string{"listen 80;", "listen [::]:80;"},
		flags: []string{
			"--endpoint", "in type ipv4 addr 198.51.100.1 port 8080", "-i", "0.0.0.0:80=in",
			"--endpoint", "in6 type ipv6 addr 2001:db8:1::1 port 8080", "-i", "[::]:80=in6",
		},
		ports: []port{{network: "tcp4", number: 8080}, {network: "tcp6", number: 8080}},
		urls:  []string{"http://198.51.100.1:8080/"},
		peer:  remoteAddr4,
	},
}

// TestNginxServer reaches nginx from the remote by every kind of endpoint.
func TestNginxServer(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "nginx")
	picked := cover(serving, len(nginxServers), always)
	each(t, serving, func(t *testing.T, w *world, v variant) {
		for i, test := range nginxServers {
			if !picked(v, i) {
				continue
			}
			t.Run(test.name, func(t *testing.T) {
				n := newNginx(t, test.listen...)
				ports := slices.Clone(test.ports)
				for i := range ports {
					ports[i].ns = w.h
				}
				serve(t, v.run(t, w, slices.Concat(test.flags, []string{"--"}, n.line())...), ports...)
				for _, url := range test.urls {
					if body := curl(t, w.srv, url); body != "hello\n" {
						t.Errorf("%s: got %q", url, body)
					}
				}
				for _, l := range n.log(t, len(test.urls)) {
					if want := test.peer + " 200 /\n"; l != want {
						t.Errorf("logged %q, want %q", l, want)
					}
				}
				n.checkErrors(t)
			})
		}
	})
}

// TestNginxLoad has nginx serve many connections, and one large document.
func TestNginxLoad(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "nginx")
	picked := cover(variants, 2, always)
	each(t, variants, func(t *testing.T, w *world, v variant) {
		n := newNginx(t, "listen 80;")
		large := make([]byte, 8<<20)
		_, _ = rand.Read(large)
		n.write(t, "documents/large", string(large))
		flags := []string{"--endpoint", "in type ipv4 addr 198.51.100.1 port 8080", "-i", "0.0.0.0:80=in", "--"}
		serve(t, v.run(t, w, append(flags, n.line()...)...), port{w.h, "tcp4", 8080})
		const url = "http://198.51.100.1:8080/"
		if body := curl(t, w.srv, url+"large"); body != string(large) {
			t.Errorf("got %d bytes that are not the %d of the document", len(body), len(large))
		}
		if picked(v, 0) {
			t.Run("wrk", func(t *testing.T) {
				checkWrk(t, func() *testkit.Cmd { c := wrk(1, url); return command(t, w.srv, c[0], c[1:]...) })
			})
		}
		if picked(v, 1) {
			t.Run("ab", func(t *testing.T) {
				checkAB(t, succeed(t, command(t, w.srv, "ab", "-q", "-n", fmt.Sprint(abRequests), "-c", "8", url)))
			})
		}
		n.checkErrors(t)
	})
}

// TestOwnServer has a program reach, by the container's loopback and by the wildcard, which
// the kernel takes for the loopback, a server of the same container that an ingress rule has
// brought to the host, as health checks do, and Apache to wake a child that is to end.
func TestOwnServer(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "nginx")
	addrs := []string{"0.0.0.0", hostAddr4, sourceAddr4}
	picked := cover(serving, len(addrs), always)
	each(t, serving, func(t *testing.T, w *world, v variant) {
		for i, addr := range addrs {
			if !picked(v, i) {
				continue
			}
			t.Run(addr, func(t *testing.T) {
				n := newNginx(t, "listen 80;")
				script := strings.Join(n.line(), " ") + " & until curl -s -f http://127.0.0.1/; do sleep 0.02; done; curl -sS -f http://0.0.0.0/"
				out := succeed(t, v.run(t, w, "--endpoint", "in type ipv4 addr "+addr+" port 8080", "-i", "0.0.0.0:80=in", "--", "sh", "-c", script))
				if out != "hello\nhello\n" {
					t.Errorf("got %q", out)
				}
			})
		}
	})
}

// TestNginxProxy has nginx, which puts a socket into its epoll before it
// connects it, pass requests on: to the remote, and to a program in the same
// container, for which the socket has to be taken back from the host's side.
func TestNginxProxy(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "nginx")
	each(t, variants, func(t *testing.T, w *world, v variant) {
		o := observe(t, w.srv)
		n := newNginx(t, "listen 80;",
			"location /remote { proxy_pass http://"+remoteAddr4+":7070; }",
			"location /remote6 { proxy_pass http://["+remoteAddr6+"]:7070; }",
			"location /own/ { proxy_pass http://127.0.0.1:9000/; }",
			"location /own6/ { proxy_pass http://[::1]:9000/; }",
		)
		own := t.TempDir()
		if err := os.WriteFile(filepath.Join(own, "file"), []byte("own\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		serveOwn := fmt.Sprintf("%s -m http.server --directory %s --bind", python(t), own)
		script := fmt.Sprintf("%s 127.0.0.1 9000 & %s ::1 9000 & exec %s", serveOwn, serveOwn, strings.Join(n.line(), " "))
		s := serve(t, v.run(t, w, "--endpoint", "in type ipv4 addr 198.51.100.1 port 8080", "-i", "0.0.0.0:80=in",
			"--", "sh", "-c", script), port{w.h, "tcp4", 8080})
		const url = "http://198.51.100.1:8080"
		waitOK(t, w.srv, url+"/own/file", url+"/own6/file")
		for _, test := range []struct{ path, body string }{
			{"/remote", sourceAddr4 + "\n"},
			{"/remote6", sourceAddr6 + "\n"},
			{"/own/file", "own\n"},
			{"/own6/file", "own\n"},
		} {
			t.Run(strings.ReplaceAll(test.path[1:], "/", "_"), func(t *testing.T) {
				for range 3 {
					if body := curl(t, w.srv, url+test.path); body != test.body {
						t.Errorf("got %q, want %q", body, test.body)
					}
				}
				checkAB(t, succeed(t, command(t, w.srv, "ab", "-q", "-n", fmt.Sprint(abRequests), "-c", "4", url+test.path)))
			})
		}
		checkAllFrom(t, slices.DeleteFunc(o.take(), func(s string) bool { return s == sourceAddr6 }), sourceAddr4)
		if log := s.printed(t); !strings.Contains(log, `127.0.0.1 - - [`) || strings.Contains(log, hostAddr4) {
			t.Errorf("the program behind nginx logged:\n%s", log)
		}
	})
}

// waitOK waits until URLs are answered with 200.
func waitOK(t *testing.T, ns *testkit.Namespace, urls ...string) {
	t.Helper()
	for _, url := range urls {
		testkit.Eventually(t, func() error {
			args := []string{"-s", "-m", "2", "-o", os.DevNull, "-w", "%{http_code}", url}
			r := try(t, command(t, ns, "curl", args...))
			if r.stdout != fmt.Sprint(http.StatusOK) {
				time.Sleep(50 * time.Millisecond)
				return fmt.Errorf("%s: status %s, %w %s", url, r.stdout, r.err, r.stderr)
			}
			return nil
		})
	}
}

// TestUnixEndpoint connects a program to a server on a unix socket of the host,
// and makes one on the host for a server that listens on TCP.
func TestUnixEndpoint(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "nginx")
	each(t, variants, func(t *testing.T, w *world, v variant) {
		path := filepath.Join(t.TempDir(), "socket")
		flags := []string{"--endpoint", "un type unix path " + path}
		t.Run("client", func(t *testing.T) {
			n := newNginx(t, "listen unix:"+path+";")
			line := n.line()
			s := start(t, command(t, w.h, line[0], line[1:]...))
			waitUnix(t, path)
			args := append(flags, "-e", "192.0.2.80:80=un", "--", "curl", "-sS", "-f", "http://192.0.2.80/", "http://192.0.2.80/")
			if body := succeed(t, v.run(t, w, args...)); body != "hello\nhello\n" {
				t.Errorf("got %q", body)
			}
			if log := n.log(t, 2); log[0] != "unix: 200 /\n" {
				t.Errorf("logged %q", log)
			}
			s.stop(t)
		})
		t.Run("server", func(t *testing.T) {
			n := newNginx(t, "listen 80;")
			s := start(t, v.run(t, w, append(append(flags, "-i", "0.0.0.0:80=un", "--"), n.line()...)...))
			waitUnix(t, path)
			for range 2 {
				if body := curl(t, w.h, "--unix-socket", path, "http://any/"); body != "hello\n" {
					t.Errorf("got %q", body)
				}
			}
			if log := n.log(t, 2); log[0] != "unix: 200 /\n" {
				t.Errorf("logged %q", log)
			}
			n.checkErrors(t)
			s.stop(t)
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Errorf("the socket is left behind (%v)", err)
			}
		})
	})
}

// waitUnix waits until a server accepts on a path. It sees a connection without a request.
func waitUnix(t *testing.T, path string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		c, err := net.Dial("unix", path)
		if err != nil {
			return err
		}
		return c.Close()
	})
}
