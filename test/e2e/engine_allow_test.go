package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// configured are rules of the configuration for a container of the name db.
var configured = []string{"[[container]]", `match = "db"`, fmt.Sprintf("egress = [%q]", "0.0.0.0/0="+hostAddr4)}

// TestAnnotationsNeedTheAdministrator starts containers with annotations where the
// configuration allows none: each is refused with the lines that would allow it, and with
// these lines it runs.
func TestAnnotationsNeedTheAdministrator(t *testing.T) {
	t.Parallel()
	for _, c := range []engineCase{{engine: "docker", none: true}, {engine: "podman", none: true, redis: true}, {engine: "ctr", none: true, redis: true}, {engine: "cri"}} {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, c, "# [[allow]]: none")
			web := n.container("web", "0.0.0.0/0", servedPort)
			why := n.refused(t, web)
			_, lines, proposed := strings.Cut(why, "add these lines to that file and restart the agent: ")
			if !proposed || !strings.Contains(why, "tsugiki.dev/egress") || !strings.Contains(why, filepath.Join(n.dir, "agent.toml")) {
				t.Fatalf("refused, but it is not said how to allow it: %s", why)
			}
			n.checkRefused(t, servedPort)
			lines = strings.NewReplacer("; ", "\n", `\"`, `"`).Replace(lines[:strings.LastIndex(lines, "]")+1])
			n.reconfigure(t, strings.Split(lines, "\n")...)
			n.run(t, web)
			n.checkServed(t, "web", servedPort)
			n.remove(t, "web")
		})
	}
}

// TestAnnotationsAreBounded asks by annotations for what the host alone should reach, and
// for another container's rules. The [[allow]] is for the public road, which the last
// container shows to be open.
func TestAnnotationsAreBounded(t *testing.T) {
	t.Parallel()
	n := newNode(t, engineCase{engine: "docker", none: true}, append(append([]string{}, allowed...), configured...)...)
	fifo := filepath.Join(n.dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(n.dir, "root.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for i, tt := range []struct {
		says        string
		annotations map[string]string
	}{
		{"special loopback", map[string]string{"egress": "127.0.0.1/32=" + hostAddr4}},
		{"special loopback", map[string]string{"egress": "[::1]:22=" + hostAddr6}},
		{"special link-local", map[string]string{"egress": "169.254.169.254/32=" + hostAddr4}},
		{"special loopback", map[string]string{"ingress": "0.0.0.0:8080=127.0.0.1:8080"}},
		{"addresses 0.0.0.0/32", map[string]string{"ingress": "0.0.0.0:8080=0.0.0.0:8080"}},
		{"addresses ::/128", map[string]string{"egress": "::/0=::"}},
		{"ports 53", map[string]string{"ingress": "0.0.0.0:53=" + hostAddr4}},
		{"tsugiki.dev/endpoints is not one", map[string]string{"endpoints": "d type unix path " + socket, "egress": "10.0.0.1/32=d"}},
		{"tsugiki.dev/endpoints is not one", map[string]string{"endpoints": "d type ipv4 addr 0.0.0.0 port dynamic netns " + fifo, "egress": "10.0.0.1/32=d"}},
	} {
		c := engines.Container{Name: fmt.Sprintf("greedy-%d", i), Runtime: "tsugiki", None: true, Annotations: map[string]string{}}
		for key, value := range tt.annotations {
			c.Annotations["tsugiki.dev/"+key] = value
		}
		if why := n.refused(t, c); !strings.Contains(why, tt.says) || !strings.Contains(why, "to have it heard, write there") {
			t.Errorf("%v: refused, but not for %q: %s", tt.annotations, tt.says, why)
		}
	}
	t.Run("another's rules", func(t *testing.T) { testEngineConfigured(t, n) })
	t.Run("the public road", func(t *testing.T) {
		n.run(t, n.container("web", "0.0.0.0/0", servedPort))
		n.checkServed(t, "web", servedPort)
		testEngineConnect(t, n)
		n.remove(t, "web")
	})
}

// testEngineConfigured has a container take the name of another one, which has rules of
// the configuration. It is called so, and has nothing of it.
func testEngineConfigured(t *testing.T, n *node) {
	c := engines.Container{Name: "thief", Runtime: "tsugiki", None: true, Annotations: map[string]string{"tsugiki.dev/name": "db"}}
	n.run(t, c)
	url := fmt.Sprintf("http://%s:%d/", remoteAddr4, observerPort)
	o := observe(t, n.srv)
	if out, err := n.Exec("thief", "wget", "-q", "-O", "-", url); err == nil || n.known(t, "db") != "" {
		t.Errorf("it has another's rules: %q", out)
	}
	n.remove(t, "thief")
	c.Name, c.Annotations = "db", nil
	n.run(t, c)
	if out := n.exec(t, "db", "wget", "-q", "-O", "-", url); out != hostAddr4+"\n" {
		t.Errorf("the one of that name is seen as %q", out)
	}
	checkAllFrom(t, o.take(), hostAddr4)
	n.remove(t, "db")
	n.reconfigure(t, append(strings.Split(strings.Replace(strings.Join(allowed, "\n"), `"mode", "name"`, `"mode"`, 1), "\n"), configured...)...)
	c.Name, c.Annotations = "thief", map[string]string{"tsugiki.dev/name": "db"}
	if why := n.refused(t, c); !strings.Contains(why, "tsugiki.dev/name is not one that is heard") {
		t.Errorf("refused, but not for its name: %s", why)
	}
}

// TestAnotherContainersNetwork has containers join the network namespace of another one,
// with docker, which then mounts the other's files into them. What who starts them asks for
// is heard as for any: nothing of it is lost without a word.
func TestAnotherContainersNetwork(t *testing.T) {
	t.Parallel()
	n := newNode(t, engineCase{engine: "docker", none: true})
	o := observe(t, n.srv)
	url := fmt.Sprintf("http://%s:%d/", remoteAddr4, observerPort)
	n.run(t, engines.Container{Name: "plain", None: true})
	n.run(t, n.container("grafted", "198.51.100.0/24", servedPort))
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, of string
		flags    []string
	}{
		{"of-plain", "plain", nil},
		{"of-grafted", "grafted", nil},
		{"with-files", "plain", []string{"-v", hosts + ":/etc/hosts", "-v", hosts + ":/etc/hostname", "-v", hosts + ":/etc/resolv.conf"}},
	} {
		c := n.container(tt.name, "0.0.0.0/0", servedPort+1)
		c.None, c.Args, c.Flags = false, engines.Nginx, append([]string{"--network", "container:" + tt.of}, tt.flags...)
		n.run(t, c)
		if body := n.exec(t, tt.name, "wget", "-q", "-O", "-", url); body != sourceAddr4+"\n" {
			t.Errorf("%s: the remote sees %q, want %s", tt.name, body, sourceAddr4)
		}
		n.checkServed(t, tt.name, servedPort+1)
		if n.known(t, tt.name) == "" {
			t.Errorf("%s: the agent does not know it", tt.name)
		}
		checkAllFrom(t, o.take(), sourceAddr4)
		n.remove(t, tt.name)
	}
	n.checkServed(t, "grafted", servedPort)
	// The other one's network is the host's: there it is refused as for any.
	n.run(t, engines.Container{Name: "of-host", Flags: []string{"--network", "host"}})
	c := n.container("second", "0.0.0.0/0", servedPort+1)
	c.None, c.Flags = false, []string{"--network", "container:of-host"}
	if why := n.refused(t, c); !strings.Contains(why, "host's network namespace") {
		t.Errorf("refused, but not for the host's network: %s", why)
	}
	n.remove(t, "grafted")
}

// TestAllowedPathsLeadNowhereElse has an administrator allow the sockets of a folder and the
// namespaces of another one. Symbolic links in them, and a FIFO, lead to nothing else;
// the socket itself is reached.
func TestAllowedPathsLeadNowhereElse(t *testing.T) {
	t.Parallel()
	n := newNode(t, engineCase{engine: "docker", none: true})
	app, secret := filepath.Join(n.dir, "app"), filepath.Join(n.dir, "secret")
	err := errors.Join(os.Mkdir(app, 0o755), os.Mkdir(secret, 0o700))
	for link, to := range map[string]string{"app/link": "secret/web.sock", "app/folder": "secret", "app/ns": "secret/fifo"} {
		err = errors.Join(err, os.Symlink(filepath.Join(n.dir, to), filepath.Join(n.dir, link)))
	}
	if err := errors.Join(err, unix.Mkfifo(filepath.Join(secret, "fifo"), 0o600), unix.Mkfifo(filepath.Join(app, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{"app/web.sock": "public", "secret/web.sock": "secret"} {
		l, err := net.Listen("unix", filepath.Join(n.dir, path))
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, text) })}
		go func() { _ = server.Serve(l) }()
		defer server.Close()
	}
	n.reconfigure(t, "[[allow]]", `engines = ["docker"]`, `names = ["*"]`, `annotations = ["egress", "endpoints"]`, `destinations = ["10.0.0.0/8"]`,
		`addresses = ["0.0.0.0/32"]`, `types = ["ipv4", "unix"]`, fmt.Sprintf("paths = [%q]", app+"/"), fmt.Sprintf("netns = [%q]", app+"/*"))
	asking := func(endpoint string) engines.Container {
		return engines.Container{Name: "asking", Runtime: "tsugiki", None: true, Annotations: map[string]string{
			"tsugiki.dev/endpoints": "e " + endpoint, "tsugiki.dev/egress": "10.0.0.1/32=e",
		}}
	}
	for endpoint, says := range map[string]string{
		"type unix path " + app + "/link":                                      "symbolic link",
		"type unix path " + app + "/folder/web.sock":                           "symbolic link",
		"type unix path " + secret + "/web.sock":                               "asks for paths",
		"type unix path " + app + "/../secret/web.sock":                        "without .., . and //",
		"type ipv4 addr 0.0.0.0 port dynamic netns " + app + "/fifo":           "no network namespace",
		"type ipv4 addr 0.0.0.0 port dynamic netns " + app + "/ns":             "no network namespace",
		"type ipv4 addr 0.0.0.0 port dynamic netns " + secret + "/fifo":        "asks for netns",
		"type ipv4 addr 0.0.0.0 port dynamic netns " + fmt.Sprint(os.Getpid()): "by a process id",
	} {
		if why := n.refused(t, asking(endpoint)); !strings.Contains(why, says) {
			t.Errorf("%s: refused, but not for %q: %s", endpoint, says, why)
		}
	}
	n.run(t, asking("type unix path "+app+"/web.sock"))
	if out := n.exec(t, "asking", "wget", "-q", "-O", "-", "http://10.0.0.1/"); out != "public\n" {
		t.Errorf("the socket that is allowed: %q", out)
	}
	// Somebody who may write in the folder puts links there later, and the agent starts anew.
	web, kept := filepath.Join(app, "web.sock"), filepath.Join(app, "kept")
	for i, link := range []string{"link", "folder/web.sock"} {
		if i == 1 {
			n.agent.stop()
			n.agent.start()
		}
		if err := errors.Join(os.Rename(web, kept), os.Symlink(filepath.Join(app, link), web)); err != nil {
			t.Fatal(err)
		}
		if out, err := n.Exec("asking", "wget", "-q", "-O", "-", "http://10.0.0.1/"); err == nil || out != "" {
			t.Errorf("a link to %s: %q, %v", link, out, err)
		}
		if err := os.Rename(kept, web); err != nil {
			t.Fatal(err)
		}
		if out := n.exec(t, "asking", "wget", "-q", "-O", "-", "http://10.0.0.1/"); out != "public\n" {
			t.Errorf("the socket in the link's place: %q", out)
		}
	}
	n.remove(t, "asking")
}
