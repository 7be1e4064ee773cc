package e2e

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const apachePort = 8090

// apache is a set of files for one httpd, which serves documents/.
type apache struct {
	dir string
	bin string
}

// apacheModules are those that Debian builds as files of their own.
var apacheModules = []string{"authz_core", "env", "alias", "dir", "proxy", "proxy_http"}

// newApache writes a configuration with the directives.
func newApache(t *testing.T, mpm string, directives ...string) apache {
	t.Helper()
	const modules = "/usr/lib/apache2/modules"
	if _, err := os.Stat(modules); err != nil {
		t.Skip("skip: needs the modules of apache2")
	}
	a := apache{openDir(t), testkit.Program(t, "apache2")}
	cgi := "cgid" // for servers with threads
	if mpm == "prefork" {
		cgi = "cgi"
		// It ends children at once, and wakes each by a connection to itself.
		directives = append(directives, "StartServers 8", "MinSpareServers 1", "MaxSpareServers 2")
	}
	var conf strings.Builder
	for _, m := range append([]string{"mpm_" + mpm, cgi}, apacheModules...) {
		fmt.Fprintf(&conf, "LoadModule %s_module %s/mod_%s.so\n", m, modules, m)
	}
	fmt.Fprintf(&conf, `ServerRoot %s
ServerName any
Listen 0.0.0.0:%d
PidFile pid
Mutex file:.
DefaultRuntimeDir .
User #%d
Group #%d
ErrorLog error.log
LogLevel warn
LogFormat "%%a %%>s %%U" peer
CustomLog access.log peer
DocumentRoot documents
`, a.dir, apachePort, nobody, nobody)
	if cgi == "cgid" {
		conf.WriteString("ScriptSock cgi\n")
	}
	conf.WriteString(strings.Join(directives, "\n") + "\n")
	if err := os.Mkdir(filepath.Join(a.dir, "documents"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"httpd.conf": conf.String(), "documents/index.html": "hello\n"} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func (a apache) line() []string {
	return []string{a.bin, "-D", "FOREGROUND", "-f", filepath.Join(a.dir, "httpd.conf")}
}

// serve starts it, in a process group of its own: when it is asked to end, it
// sends SIGTERM to all of its group.
func (a apache) serve(t *testing.T, ns *testkit.Namespace, c *testkit.Cmd) *server {
	t.Helper()
	c.SysProcAttr.Setpgid = true
	return serve(t, c, port{ns, "tcp", apachePort})
}

// log waits until the access log has as many lines as wanted, at the least, that match. It
// returns the first groups of the matches.
func (a apache) log(t *testing.T, line *regexp.Regexp, lines int) []string {
	t.Helper()
	var seen []string
	testkit.Eventually(t, func() error {
		log, err := os.ReadFile(filepath.Join(a.dir, "access.log"))
		seen = nil
		for _, match := range line.FindAllSubmatch(log, -1) {
			seen = append(seen, string(match[1]))
		}
		if err == nil && len(seen) < lines {
			err = fmt.Errorf("%d lines in the access log match %v, want %d:\n%s", len(seen), line, lines, log)
		}
		return err
	})
	return seen
}

// clients are the addresses in the access log of those who asked for a document.
func (a apache) clients(t *testing.T, lines int) []string {
	t.Helper()
	return a.log(t, regexp.MustCompile(`(?m)^(\S+) \d+ /`), lines)
}

// checkErrors fails the test over what httpd found worth a warning.
func (a apache) checkErrors(t *testing.T) {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(a.dir, "error.log"))
	if err != nil || regexp.MustCompile(`:(warn|error|crit|alert|emerg)\]`).Match(log) {
		t.Errorf("httpd logged (%v):\n%s", err, log)
	}
}

// TestApache has httpd serve documents, pass requests on to the remote, and, if its children
// are processes, connect to the wildcard address that it listens at.
func TestApache(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "apache2")
	large := make([]byte, 4<<20)
	_, _ = rand.Read(large)
	url := fmt.Sprintf("http://%s:%d", hostAddr4, apachePort)
	eachMode(t, both, func(t *testing.T, w *world, v variant) {
		o := observe(t, w.srv)
		for _, mpm := range []string{"prefork", "event"} {
			t.Run(mpm, func(t *testing.T) {
				a := newApache(t, mpm, fmt.Sprintf("ProxyPass /remote http://%s:%d/", remoteAddr4, observerPort))
				if err := os.WriteFile(filepath.Join(a.dir, "documents/large"), large, 0o644); err != nil {
					t.Fatal(err)
				}
				s := a.serve(t, w.h, v.program(t, w, []int{apachePort}, a.line()...))
				if body := curl(t, w.srv, url+"/", url+"/"); body != "hello\nhello\n" {
					t.Errorf("got %q", body)
				}
				if body := curl(t, w.srv, url+"/large"); !bytes.Equal([]byte(body), large) {
					t.Errorf("got %d bytes that are not the %d of the document", len(body), len(large))
				}
				if body := curl(t, w.srv, url+"/remote", url+"/remote"); body != strings.Repeat(sourceAddr4+"\n", 2) {
					t.Errorf("the remote answered %q", body)
				}
				for _, path := range []string{"/", "/remote"} {
					checkAB(t, succeed(t, command(t, w.srv, "ab", "-q", "-n", fmt.Sprint(abRequests), "-c", "8", url+path)))
				}
				checkAllFrom(t, a.clients(t, 5+2*abRequests), remoteAddr4)
				checkAllFrom(t, o.take(), sourceAddr4)
				if mpm == "prefork" {
					a.log(t, regexp.MustCompile(`(?m)^(\S+) 200 \*$`), 1)
				}
				s.stop(t)
				a.checkErrors(t)
			})
		}
	})
}
