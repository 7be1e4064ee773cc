package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Clients in the container, servers on the remote.

// TestSourceAddress checks that the address of an endpoint is where its
// connections and datagrams come from, also for an address that the host would
// not have chosen.
func TestSourceAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := observe(t, w.srv)
	fetch := static(t, "fetch")
	for _, out := range []struct{ v4, v6 string }{{hostAddr4, hostAddr6}, {sourceAddr4, sourceAddr6}} {
		for _, netns := range []string{"new", w.c1.Path()} {
			for _, egress := range [][]string{everything, remoteOnly} {
				t.Run(fmt.Sprintf("%s_%s_%s", out.v4, netns[:3], egress[1]), func(t *testing.T) {
					args := append([]string{
						"--netns", netns,
						"--endpoint", "out type ipv4 addr " + out.v4 + " port dynamic",
						"--endpoint", "out6 type ipv6 addr " + out.v6 + " port dynamic",
					}, egress...)
					for _, network := range []string{"http", "udp"} {
						succeed(t, graft(t, w.h, append(args, "--", fetch,
							fmt.Sprintf("%s://%s:%d", network, remoteAddr4, observerPort),
							fmt.Sprintf("%s://[%s]:%d", network, remoteAddr6, observerPort))...))
						if seen := o.take(); !slices.Equal(seen, []string{out.v4, out.v6}) {
							t.Errorf("%s: the remote saw %q, want %q and %q", network, seen, out.v4, out.v6)
						}
					}
				})
			}
		}
	}
}

// TestNotTranslated checks that the counter by which other tests tell that
// nothing went through the bridge does count what does.
func TestNotTranslated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := observe(t, w.srv)
	translated := w.countTranslated(t)
	url := fmt.Sprintf("http://%s:%d/", remoteAddr4, observerPort)
	succeed(t, command(t, w.c1, "curl", "-sS", url))
	if seen := o.take(); !slices.Equal(seen, []string{hostAddr4}) {
		t.Errorf("the remote saw %q of a container without tsugiki, want %q", seen, hostAddr4)
	}
	before := translated()
	if before == 0 {
		t.Error("a connection over the bridge was not counted")
	}
	v := variant{bridge: true, egress: everything}
	succeed(t, v.run(t, w, "--", "curl", "-sS", url))
	if n := translated() - before; n != 0 {
		t.Errorf("%d packets of a grafted connection went over the bridge", n)
	}
}

// iperf is what matters of iperf3 --json.
type iperf struct {
	Error string
	Start struct {
		Accepted  struct{ Host string } `json:"accepted_connection"`
		Connected []struct {
			RemoteHost string `json:"remote_host"`
		}
	}
	End struct {
		Sent     struct{ Bytes float64 } `json:"sum_sent"`
		Received struct{ Bytes float64 } `json:"sum_received"`
		Sum      struct {
			Bytes   float64
			Packets float64
			Lost    float64 `json:"lost_packets"`
		}
	}
	Server *iperf `json:"server_output_json"`
}

const (
	iperfPort  = 5201
	iperfBytes = 4 << 20
)

var iperfTests = []struct {
	name string
	six  bool
	udp  bool
	args []string
}{
	{name: "tcp4"},
	{name: "tcp4-reverse", args: []string{"--reverse"}},
	{name: "tcp4-parallel", args: []string{"--parallel", "3"}},
	{name: "tcp6", six: true},
	{name: "udp4", udp: true},
	{name: "udp6", six: true, udp: true},
	{name: "udp4-reverse", udp: true, args: []string{"--reverse"}},
}

// iperfServer is the server's command line, for one client: before it serves
// the next one, it listens anew, and a client may come in between.
var iperfServer = []string{"--", "iperf3", "--server", "--one-off", "--json"}

// iperfClient is the client's command line for one of the tests.
func iperfClient(addr string, udp bool, args ...string) []string {
	line := []string{"iperf3", "--client", addr, "--port", strconv.Itoa(iperfPort), "--bytes", strconv.Itoa(iperfBytes), "--json", "--get-server-output"}
	if udp {
		line = append(line, "--udp", "--bitrate", "200M", "--length", "1200")
	}
	return append(line, args...)
}

// checkIperf checks that all bytes went over and from where the server saw
// them come.
func checkIperf(t *testing.T, report, source string, udp bool) {
	t.Helper()
	var r iperf
	if err := json.Unmarshal([]byte(report), &r); err != nil || r.Error != "" || r.Server == nil {
		t.Fatalf("iperf3 printed (%v):\n%s", err, report)
	}
	seen := []string{r.Server.Start.Accepted.Host}
	for _, c := range r.Server.Start.Connected {
		seen = append(seen, c.RemoteHost)
	}
	if len(seen) < 2 || slices.ContainsFunc(seen, func(s string) bool { return s != source }) {
		t.Errorf("the server saw %q, want %q", seen, source)
	}
	if udp {
		// Datagrams may be lost where two processors serve everybody, but not all.
		if s := r.End.Sum; s.Bytes < iperfBytes || s.Packets == 0 || s.Lost >= s.Packets {
			t.Errorf("%v bytes in %v datagrams, %v lost; want %d", s.Bytes, s.Packets, s.Lost, iperfBytes)
		}
	} else if r.End.Sent.Bytes < iperfBytes || r.End.Received.Bytes == 0 {
		// The receiver stops to count when it hears that the sender is done,
		// on another connection, which may be before it has everything.
		t.Errorf("%v bytes sent and %v received, want %d", r.End.Sent.Bytes, r.End.Received.Bytes, iperfBytes)
	}
}

func TestIperfClient(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "iperf3")
	picked := cover(variants, len(iperfTests), always)
	each(t, variants, func(t *testing.T, w *world, v variant) {
		for i, test := range iperfTests {
			if !picked(v, i) {
				continue
			}
			t.Run(test.name, func(t *testing.T) {
				addr, source := remoteAddr4, sourceAddr4
				if test.six {
					addr, source = remoteAddr6, sourceAddr6
				}
				serve(t, command(t, w.srv, iperfServer[1], iperfServer[2:]...), port{w.srv, "tcp", iperfPort})
				out := succeed(t, v.run(t, w, append([]string{"--"}, iperfClient(addr, test.udp, test.args...)...)...))
				checkIperf(t, out, source, test.udp)
			})
		}
	})
}

const sockperfPort = 11111

var sockperfTests = []struct {
	name, network string
	args          []string
}{
	{"udp", "udp", nil},
	{"tcp", "tcp", []string{"--tcp"}},
}

// sockperfClient sends a few messages a second only, for it waits busily and
// there are many at once.
func sockperfClient(addr string, port int, args ...string) []string {
	return append([]string{"ping-pong", "--ip", addr, "--port", strconv.Itoa(port), "--time", "1", "--mps", "200"}, args...)
}

func sockperfServer(addr string, port int, args ...string) []string {
	return append([]string{"server", "--ip", addr, "--port", strconv.Itoa(port)}, args...)
}

var sockperfValid = regexp.MustCompile(`\[Valid Duration\].*SentMessages=(\d+); ReceivedMessages=(\d+)`)

// checkSockperf checks that messages come back, but for what is on the way. Sockperf knows no count
// of messages, only a time. On a busy machine that second may pass before a message has come back:
// then the client runs again.
func checkSockperf(t *testing.T, client func() *testkit.Cmd) {
	t.Helper()
	testkit.Eventually(t, func() error {
		c := client()
		r := try(t, c)
		if strings.Contains(r.stdout+r.stderr, "No messages were ") {
			return errors.New("sockperf has sent or received no message")
		}
		found := sockperfValid.FindStringSubmatch(r.stdout)
		if r.err != nil || found == nil || strings.Contains(r.stdout, "ERROR") {
			t.Fatalf("%s: %v\n%s%s", line(c), r.err, r.stdout, r.stderr)
		}
		sent, _ := strconv.Atoi(found[1])
		received, _ := strconv.Atoi(found[2])
		if sent-received > 1 {
			t.Fatalf("%d messages sent and %d received", sent, received)
		}
		if received < 2 {
			return fmt.Errorf("%d messages received", received)
		}
		return nil
	})
}

// TestSockperfClient runs all its clients at once: most of the time they sleep.
func TestSockperfClient(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "sockperf")
	w := newWorld(t)
	picked := cover(variants, len(sockperfTests), always)
	t.Run("all", func(t *testing.T) {
		for i, v := range variants {
			for j, test := range sockperfTests {
				if !picked(v, j) {
					continue
				}
				t.Run(v.name+"-"+test.name, func(t *testing.T) {
					t.Parallel()
					number := sockperfPort + i // over TCP it serves one client at a time
					serve(t, command(t, w.srv, "sockperf", sockperfServer(remoteAddr4, number, test.args...)...),
						port{w.srv, test.network, uint16(number)})
					client := append([]string{"--", "sockperf"}, sockperfClient(remoteAddr4, number, test.args...)...)
					checkSockperf(t, func() *testkit.Cmd { return v.run(t, w, client...) })
				})
			}
		}
	})
}

// fetchers are programs that print what they get from the two URLs that come
// after their arguments.
func fetchers(t *testing.T) [][]string {
	t.Helper()
	const urllib = `
import sys, urllib.request
for url in sys.argv[1:]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.status == 200, answer.status
        sys.stdout.write(answer.read().decode())
`
	return [][]string{{"curl", "-sS", "-f"}, {python(t), "-c", urllib}, {static(t, "fetch")}}
}

// TestFetch fetches over TCP with programs of several kinds: non-blocking
// (curl), blocking (python) and without a C library (Go).
func TestFetch(t *testing.T) {
	t.Parallel()
	programs := fetchers(t)
	picked := cover(variants, len(programs), always)
	each(t, variants, func(t *testing.T, w *world, v variant) {
		o := observe(t, w.srv)
		for i, program := range programs {
			if !picked(v, i) {
				continue
			}
			t.Run(filepath.Base(program[0]), func(t *testing.T) {
				testkit.Program(t, program[0])
				args := append([]string{"--"}, program...)
				out := succeed(t, v.run(t, w, append(args,
					fmt.Sprintf("http://%s:%d/", remoteAddr4, observerPort),
					fmt.Sprintf("http://[%s]:%d/", remoteAddr6, observerPort))...))
				want := sourceAddr4 + "\n" + sourceAddr6 + "\n"
				if out != want {
					t.Errorf("printed %q, want %q", out, want)
				}
				if seen := o.take(); !slices.Equal(seen, []string{sourceAddr4, sourceAddr6}) {
					t.Errorf("the remote saw %q", seen)
				}
			})
		}
	})
}

// TestDatagrams sends datagrams as a resolver does, with and without a
// connected socket, several on one socket.
func TestDatagrams(t *testing.T) {
	t.Parallel()
	const script = `
import socket, sys
port = int(sys.argv[1])
for addr, family in ((sys.argv[2], socket.AF_INET), (sys.argv[3], socket.AF_INET6)):
    for connected in (False, True):
        s = socket.socket(family, socket.SOCK_DGRAM)
        s.settimeout(60)
        if connected:
            s.connect((addr, port))
        for i in range(3):
            s.send(b"hello") if connected else s.sendto(b"hello", (addr, port))
            answer, peer = s.recvfrom(100)
            assert peer[:2] == (addr, port), peer
            sys.stdout.write(answer.decode())
`
	each(t, variants, func(t *testing.T, w *world, v variant) {
		observe(t, w.srv)
		out := succeed(t, v.run(t, w, "--", python(t), "-c", script, strconv.Itoa(observerPort), remoteAddr4, remoteAddr6))
		want := strings.Repeat(sourceAddr4+"\n", 6) + strings.Repeat(sourceAddr6+"\n", 6)
		if out != want {
			t.Errorf("the remote answered\n%s, want\n%s", out, want)
		}
	})
}

// TestBoundDatagrams connects UDP sockets that were bound to any address and port
// before, as those of java.nio always are.
func TestBoundDatagrams(t *testing.T) {
	t.Parallel()
	const script = `
import socket, sys
any, to, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.socket(socket.AF_INET6 if ":" in any else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(60)
if ":" in any:
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
s.bind((any, 0))
bound = s.getsockname()[1]
s.connect((to, port))
s.send(b"hello")
sys.stdout.write(s.recv(100).decode())
assert s.getsockname()[1] == bound, (s.getsockname(), bound)
`
	tests := []struct{ name, any, to, want string }{
		{"ipv4", "0.0.0.0", remoteAddr4, sourceAddr4},
		{"ipv6", "::", remoteAddr6, sourceAddr6},
		{"dual-stack-to-ipv4", "::", "::ffff:" + remoteAddr4, sourceAddr4},
	}
	all := append(slices.Clone(variants), variant{name: "new-part", egress: remoteOnly})
	picked := cover(all, len(tests), always)
	each(t, all, func(t *testing.T, w *world, v variant) {
		observe(t, w.srv)
		for i, test := range tests {
			if !picked(v, i) {
				continue
			}
			t.Run(test.name, func(t *testing.T) {
				out := succeed(t, v.run(t, w, "--", python(t), "-c", script, test.any, test.to, strconv.Itoa(observerPort)))
				if out != test.want+"\n" {
					t.Errorf("the remote answered %q, want %q", out, test.want)
				}
			})
		}
	})
}

// TestLoad drives the remote with load generators, whose connections are many
// and not blocking.
func TestLoad(t *testing.T) {
	t.Parallel()
	picked := cover(variants, 2, always)
	each(t, variants, func(t *testing.T, w *world, v variant) {
		o := observe(t, w.srv)
		url := fmt.Sprintf("http://%s:%d/", remoteAddr4, observerPort)
		if picked(v, 0) {
			t.Run("wrk", func(t *testing.T) {
				testkit.Program(t, "wrk")
				checkWrk(t, func() *testkit.Cmd { return v.run(t, w, append([]string{"--"}, wrk(2, url)...)...) })
				checkAllFrom(t, o.take(), sourceAddr4)
			})
		}
		if picked(v, 1) {
			t.Run("ab", func(t *testing.T) {
				testkit.Program(t, "ab")
				checkAB(t, succeed(t, v.run(t, w, "--", "ab", "-q", "-n", strconv.Itoa(abRequests), "-c", "4", url)))
				checkAllFrom(t, o.take(), sourceAddr4)
			})
		}
	})
}

func checkAllFrom(t *testing.T, seen []string, source string) {
	t.Helper()
	if len(seen) == 0 {
		t.Error("the server saw no request")
	}
	for _, s := range seen {
		if s != source {
			t.Fatalf("the server saw %q, want %q", s, source)
		}
	}
}

var wrkRequests = regexp.MustCompile(`(\d+) requests in`)

// wrk has eight connections for a second. No answer comes too late.
func wrk(threads int, url string) []string {
	return []string{"wrk", "-t", strconv.Itoa(threads), "-c", "8", "-d", "1s", "--timeout", fmt.Sprintf("%.0fs", testkit.Patience.Seconds()), url}
}

// checkWrk checks that requests are answered, and no connection fails. Wrk knows no count of
// requests, only a time. On a busy machine that second may pass before an answer: then wrk runs
// again.
func checkWrk(t *testing.T, client func() *testkit.Cmd) {
	t.Helper()
	testkit.Eventually(t, func() error {
		report := succeed(t, client())
		found := wrkRequests.FindStringSubmatch(report)
		if found == nil || strings.Contains(report, "Socket errors") || strings.Contains(report, "Non-2xx") {
			t.Fatalf("wrk printed:\n%s", report)
		}
		if found[1] == "0" {
			return errors.New("wrk has no answer")
		}
		return nil
	})
}

const abRequests = 200

func checkAB(t *testing.T, report string) {
	t.Helper()
	complete := regexp.MustCompile(`Complete requests:\s+` + strconv.Itoa(abRequests))
	failed := regexp.MustCompile(`Failed requests:\s+0\n`)
	if !complete.MatchString(report) || !failed.MatchString(report) || strings.Contains(report, "Non-2xx") {
		t.Errorf("ab printed:\n%s", report)
	}
}
