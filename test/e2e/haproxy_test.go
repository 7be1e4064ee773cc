package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const (
	haproxyPort     = 8100
	haproxyRequests = 200
)

// haproxyConfig has two servers, of which nobody serves the second. A check of the first may take
// ten seconds on a busy machine (inter).
const haproxyConfig = `global
	log stdout format raw local0
	nbthread 2
defaults
	mode http
	log global
	option httplog
	option httpchk GET /
	timeout connect 60s
	timeout client 60s
	timeout server 60s
	default-server check inter 10s fall 2 rise 1
frontend front
	bind *:%d
	option forwardfor
	use_backend back6 if { path_beg /six }
	default_backend back
backend back
	server up %s:%d
	server gone %s:%d inter 100ms
backend back6
	server up6 [%s]:%d
`

// haproxyAnswered is a line of its log, with the client.
var haproxyAnswered = regexp.MustCompile(`(?m)^(\S+):\d+ \[[^]]*\] front back6?/up6? \S+ 200 `)

// TestHaproxy has haproxy check servers on the remote and pass requests on to
// the one that is there.
func TestHaproxy(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "haproxy")
	eachMode(t, both, func(t *testing.T, w *world, v variant) {
		o := observe(t, w.srv)
		conf := filepath.Join(t.TempDir(), "haproxy.cfg")
		text := fmt.Sprintf(haproxyConfig, haproxyPort, remoteAddr4, observerPort, remoteAddr4, observerPort+1, remoteAddr6, observerPort)
		if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		s := v.server(t, w, haproxyPort, "haproxy", "-db", "-f", conf)
		testkit.Eventually(t, func() error {
			if log := s.output.String(); !strings.Contains(log, "Server back/gone is DOWN") {
				return fmt.Errorf("has not found out that a server is down:\n%s", log)
			}
			return nil
		})
		url := fmt.Sprintf("http://%s:%d", hostAddr4, haproxyPort)
		if body := curl(t, w.srv, url+"/", url+"/"); body != strings.Repeat(sourceAddr4+"\n", 2) {
			t.Errorf("the server behind it answered %q", body)
		}
		if body := curl(t, w.srv, url+"/six", url+"/six"); body != strings.Repeat(sourceAddr6+"\n", 2) {
			t.Errorf("the server behind it answered %q", body)
		}
		// Of curl we hear what became of each request. (ab once had 199 of 200, and waited for the last one.)
		codes := curl(t, w.srv, "-Z", "--parallel-max", "8", "-H", "Connection: close", "-o", "/dev/null", "-w", "%{http_code}\n", fmt.Sprintf("%s/?[1-%d]", url, haproxyRequests))
		if codes != strings.Repeat("200\n", haproxyRequests) {
			t.Errorf("of %d requests, the answers are %q", haproxyRequests, codes)
		}
		log := s.printed(t)
		var clients []string
		for _, found := range haproxyAnswered.FindAllStringSubmatch(log, -1) {
			clients = append(clients, found[1])
		}
		checkAllFrom(t, clients, remoteAddr4)
		// It drops lines rather than to wait for who reads them. That all was
		// answered has been checked by those who asked.
		if len(clients) < haproxyRequests/2 || strings.Contains(log, "/up is DOWN") || strings.Contains(log, "/up6 is DOWN") {
			t.Errorf("logged %d requests that were answered, of %d:\n%s", len(clients), 4+haproxyRequests, log)
		}
		for _, seen := range o.take() {
			if seen != sourceAddr4 && seen != sourceAddr6 {
				t.Errorf("the remote saw %q", seen)
			}
		}
	})
}
