package e2e

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// translatedAnnotations are what containers of TestTranslatedEngine may ask for.
var translatedAnnotations = []string{
	"[[allow]]", `engines = ["docker", "podman"]`, `names = ["*"]`, `annotations = ["translate", "ipv6", "dns", "egress", "ingress", "ftp", "sip"]`,
	`destinations = ["::/0"]`, fmt.Sprintf("addresses = [%q, %q]", hostAddr6, sourceAddr6), fmt.Sprintf("resolvers = [%q]", "["+remoteAddr6+"]:53"),
	"[[container]]", `match = "configured"`, "translate = true", fmt.Sprintf("ipv6 = %q", sourceAddr6),
	fmt.Sprintf("dns = [%q]", "["+remoteAddr6+"]:53"), `pool = "10.18.0.0/15"`, fmt.Sprintf("ftp = %q", fmt.Sprint(labelledFTPPort)),
}

// A container of an engine is translated because its labels or annotations ask for it, or because the
// configuration does: its programs
// are clients and servers of hosts that have only IPv6, also after the agent was killed. What the
// configuration does not list is refused, and so is a container that has a network of its own.
func TestTranslatedEngine(t *testing.T) {
	t.Parallel()
	for _, c := range []engineCase{{engine: "docker", none: true}, {engine: "podman", none: true}} {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, c, translatedAnnotations...)
			addAddr(t, n.h, sourceAddr6+"/64", "srv")
			hosts := filepath.Join(t.TempDir(), "hosts6")
			if err := os.WriteFile(hosts, []byte(remoteAddr6+" "+onlyIPv6Name+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			line := append(dnsmasq(t, 53), "--addn-hosts="+hosts)
			serve(t, command(t, n.srv, line[0], line[1:]...), port{n.srv, "udp", 53})
			o := observe(t, n.srv)

			asking := func(name string, annotations map[string]string) engines.Container {
				c := engines.Container{Name: name, Runtime: "tsugiki", None: true, Args: engines.Nginx, DNS: "192.0.2.53", Annotations: map[string]string{
					"tsugiki.dev/translate": "true", "tsugiki.dev/ipv6": sourceAddr6, "tsugiki.dev/dns": "[" + remoteAddr6 + "]:53",
				}}
				for key, value := range annotations {
					c.Annotations["tsugiki.dev/"+key] = value
				}
				return c
			}
			for says, annotations := range map[string]map[string]string{
				"asks for addresses 2001:db8:1::77":        {"ipv6": "2001:db8:1::77"},
				"asks for resolvers [::1]:53":              {"dns": "[::1]:53"},
				"asks for resolvers [" + remoteAddr6 + "]": {"dns": "[" + remoteAddr6 + "]:22"},
				"asks for special loopback":                {"ipv6": "::1"},
				"write true or false":                      {"translate": "perhaps"},
				"bad dns":                                  {"dns": "resolver.example.org"},
				"there are 5 ports, at most 4 may be":      {"sip": "1;2;3;4;5"},
			} {
				if why := n.refused(t, asking("greedy", annotations)); !strings.Contains(why, says) {
					t.Errorf("%v: refused, but not for %q: %s", annotations, says, why)
				}
			}
			ofOwn := asking("of-own", nil)
			ofOwn.None = false
			if why := n.refused(t, ofOwn); !strings.Contains(why, "IPv4 is translated only in a container whose loopback is on the host") {
				t.Errorf("with a network of its own: refused, but not for that: %s", why)
			}

			web := asking("web", map[string]string{
				"ingress": fmt.Sprintf("0.0.0.0:80=[%s]:%d", hostAddr6, servedPort),
				"ftp":     fmt.Sprint(labelledFTPPort), "sip": fmt.Sprint(labelledSIPPort),
			})
			n.run(t, web)
			url := fmt.Sprintf("http://%s:%d/", virtualAddr4, observerPort)
			works := func() {
				t.Helper()
				if out := n.exec(t, "web", "nslookup", "-type=a", onlyIPv6Name); !strings.Contains(out, virtualAddr4) {
					t.Errorf("nslookup printed:\n%s", out)
				}
				if body := n.exec(t, "web", "wget", "-q", "-O", "-", url); body != sourceAddr6+"\n" {
					t.Errorf("the remote sees %q, want %s", body, sourceAddr6)
				}
				served := fmt.Sprintf("http://[%s]:%d/", hostAddr6, servedPort)
				waitOK(t, n.srv, served)
				if body := curl(t, n.srv, served); body != "hello\n" {
					t.Errorf("the container serves %q", body)
				}
			}
			works()
			folder := serveFTP(t, n.srv, remoteAddr6, labelledFTPPort)
			relays := func(name, peer string) {
				t.Helper()
				got := n.exec(t, name, "sh", "-c", fmt.Sprintf("ftpget -P %d %s /tmp/file file && cat /tmp/file", labelledFTPPort, peer))
				if got != string(folder.content) {
					t.Errorf("by FTP, %s gets %d bytes", name, len(got))
				}
			}
			relays("web", virtualAddr4)
			answerSIP(t, n.srv, labelledSIPPort)
			options := fmt.Sprintf(`printf 'OPTIONS sip:%s SIP/2.0\r\nContact: <sip:a@%s:7000>\r\nContent-Length: 0\r\n\r\n' | nc -w 50 %[1]s %[3]d`, virtualAddr4, ownAddr4, labelledSIPPort)
			if got, want := n.exec(t, "web", "sh", "-c", options), fmt.Sprintf("SIP/2.0 200 OK\r\nContact: <sip:a@%s:7000>\r\nContent-Length: 0\r\n\r\n", ownAddr4); got != want {
				t.Errorf("by SIP, it gets %q, want %q", got, want)
			}
			checkAllFrom(t, o.take(), sourceAddr6)
			n.agent.kill()
			n.agent.start()
			works()
			n.remove(t, "web")

			o.take()
			n.run(t, engines.Container{Name: "configured", Runtime: "tsugiki", None: true, Args: engines.Nginx, DNS: "192.0.2.53"})
			const first = "10.18.0.1"
			if out := n.exec(t, "configured", "nslookup", "-type=a", onlyIPv6Name); !strings.Contains(out, first) {
				t.Errorf("nslookup printed:\n%s", out)
			}
			if body := n.exec(t, "configured", "wget", "-q", "-O", "-", fmt.Sprintf("http://%s:%d/", first, observerPort)); body != sourceAddr6+"\n" {
				t.Errorf("by the configuration: the remote sees %q, want %s", body, sourceAddr6)
			}
			relays("configured", first)
			checkAllFrom(t, o.take(), sourceAddr6)
			n.remove(t, "configured")
		})
	}
}

// Ports of FTP and SIP that containers ask for.
const (
	labelledFTPPort = 2121
	labelledSIPPort = 5062
)

// answerSIP answers one message of SIP over TCP with its own Contact, which has to be the container's IPv6
// address.
func answerSIP(t *testing.T, ns *testkit.Namespace, number uint16) {
	t.Helper()
	var l net.Listener
	err := ns.Do(func() (err error) {
		l, err = net.Listen("tcp6", addrPort(remoteAddr6, number))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		defer conn.Close()
		lines, contact := bufio.NewScanner(conn), ""
		for lines.Scan() && lines.Text() != "" {
			if strings.HasPrefix(lines.Text(), "Contact: ") && strings.Contains(lines.Text(), "["+sourceAddr6+"]") {
				contact = lines.Text()
			}
		}
		fmt.Fprintf(conn, "SIP/2.0 200 OK\r\n%s\r\nContent-Length: 0\r\n\r\n", contact)
	}()
}

// onlyIPv6Name is the name of a host that has no IPv4 address.
const onlyIPv6Name = "six.example.org"

// No container shares the network namespace of one that translates IPv4: it would send datagrams to
// the hosts of the other. Its program does not run.
func TestTranslatedAlone(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	dir := t.TempDir()
	d := startDaemon(t, w.h, "--config", configure(t, dir, "[log]", `format = "json"`)) // it has faults to report
	o := w.translatedBy(t, d)
	pid := o.do("__import__('os').getpid()")
	for range 2 {
		r := try(t, d.graft("--netns", pid, "-e", "2001:db8:7::/48=::", "--", "true"))
		if exitStatus(r.err) != 1 || !strings.Contains(r.stderr, "cannot have IPv4 translated") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%v: %s%s", r.err, r.stdout, r.stderr)
		}
		o.want(virtualAddr4, "name(%q)", serverName)
		d.kill()
		d.start()
	}
	o.release()
	testkit.Eventually(t, func() error {
		if list := d.ps(); strings.Contains(list, o.name) {
			return fmt.Errorf("it is still there:\n%s", list)
		}
		return nil
	})
}
