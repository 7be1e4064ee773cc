package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Servers in the container, clients on the remote.

func TestIperfServer(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "iperf3")
	picked := cover(serving, len(iperfTests), always)
	each(t, serving, func(t *testing.T, w *world, v variant) {
		for _, six := range []bool{false, true} {
			// The server binds [::] for both families, which an IPv4
			// endpoint turns into one for IPv4 only.
			flags := []string{"--endpoint", "in type ipv4 addr 198.51.100.1 port 5201", "-i", "0.0.0.0:5201=in"}
			addr, source := hostAddr4, remoteAddr4
			if six {
				flags = []string{"--endpoint", "in type ipv6 addr 2001:db8:1::1 port 5201", "-i", "[::]:5201=in"}
				addr, source = hostAddr6, remoteAddr6
			}
			t.Run(addr, func(t *testing.T) {
				for i, test := range iperfTests {
					if test.six != six || !picked(v, i) {
						continue
					}
					t.Run(test.name, func(t *testing.T) {
						s := serve(t, v.run(t, w, append(flags, iperfServer...)...), port{w.h, "tcp", iperfPort})
						client := iperfClient(addr, test.udp, test.args...)
						out := succeed(t, command(t, w.srv, client[0], client[1:]...))
						checkIperf(t, out, source, test.udp)
						if err := s.Wait(); err != nil {
							t.Errorf("the server: %v", err)
						}
					})
				}
			})
		}
	})
}

// TestSockperfServer runs all its clients at once, see TestSockperfClient.
func TestSockperfServer(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "sockperf")
	w := newWorld(t)
	picked := cover(serving, len(sockperfTests), always)
	t.Run("all", func(t *testing.T) {
		for i, v := range serving {
			for j, test := range sockperfTests {
				if !picked(v, j) {
					continue
				}
				t.Run(v.name+"-"+test.name, func(t *testing.T) {
					t.Parallel()
					// A port is one container's, for TCP and UDP alike.
					host := 12000 + 10*i + j
					args := append([]string{
						"--endpoint", fmt.Sprintf("in type ipv4 addr 198.51.100.1 port %d", host),
						"-i", fmt.Sprintf("0.0.0.0:%d=in", sockperfPort), "--", "sockperf",
					}, sockperfServer("0.0.0.0", sockperfPort, test.args...)...)
					serve(t, v.run(t, w, args...), port{w.h, test.network, uint16(host)})
					client := sockperfClient(hostAddr4, host, test.args...)
					checkSockperf(t, func() *testkit.Cmd { return command(t, w.srv, "sockperf", client...) })
				})
			}
		}
	})
}

// TestPythonServer serves with the threads and the log of http.server.
func TestPythonServer(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		bind []string // "" binds what the program thinks best
		in   string
		rule string
		url  string
		says string
		peer string
	}{
		{
			name: "default",
			in:   "in type ipv4 addr 198.51.100.1 port 8080", rule: "0.0.0.0:8000=in",
			url: "http://198.51.100.1:8080/", says: "Serving HTTP on 0.0.0.0 port 8000 ", peer: remoteAddr4,
		},
		{
			name: "ipv6", bind: []string{"--bind", "::"},
			in: "in type ipv6 addr 2001:db8:1::1 port 8080", rule: "[::]:8000=in",
			url: "http://[2001:db8:1::1]:8080/", says: "Serving HTTP on :: port 8000 ", peer: remoteAddr6,
		},
		{
			name: "dual-stack", bind: []string{"--bind", "::"},
			in: "in type ipv4 addr 198.51.100.1 port 8080", rule: "0.0.0.0:8000=in",
			url: "http://198.51.100.1:8080/", says: "Serving HTTP on :: port 8000 ", peer: "::ffff:" + remoteAddr4,
		},
	}
	picked := cover(serving, len(tests), always)
	each(t, serving, func(t *testing.T, w *world, v variant) {
		for i, test := range tests {
			if !picked(v, i) {
				continue
			}
			t.Run(test.name, func(t *testing.T) {
				args := append([]string{"--endpoint", test.in, "-i", test.rule, "--", python(t), "-u", "-m", "http.server", "8000"}, test.bind...)
				c := v.run(t, w, args...)
				c.Dir = t.TempDir()
				s := serve(t, c, port{w.h, "tcp", 8080})
				curl(t, w.srv, test.url, test.url)
				testkit.Eventually(t, func() error {
					log := s.output.String()
					if !strings.Contains(log, test.says) || strings.Count(log, "\n"+test.peer+" - - ") != 2 {
						return fmt.Errorf("printed %q, want %q and two requests of %s", log, test.says, test.peer)
					}
					return nil
				})
			})
		}
	})
}

// goServer is a server that tells each client its address.
type goServer struct {
	name   string
	listen string
	flags  []string
	want   map[string]string // the client's address, by that of the host
}

var goServers = []goServer{
	{
		name: "ipv4", listen: "0.0.0.0:80",
		flags: []string{"--endpoint", "in type ipv4 addr 198.51.100.1 port 8080", "-i", "0.0.0.0:80=in"},
		want:  map[string]string{hostAddr4: remoteAddr4},
	},
	{
		name: "other-network", listen: "0.0.0.0:80",
		flags: []string{"--endpoint", "in type ipv4 addr 203.0.113.1 port 8080", "-i", "0.0.0.0:80=in"},
		want:  map[string]string{otherHostAddr4: otherRemoteAddr4},
	},
	{
		name: "any-address", listen: "0.0.0.0:80",
		flags: []string{"--endpoint", "in type ipv4 addr 0.0.0.0 port 8080", "-i", "0.0.0.0:80=in"},
		want:  map[string]string{sourceAddr4: remoteAddr4}, // from which the host answers
	},
	{
		name: "second-address", listen: "0.0.0.0:80",
		flags: []string{"--endpoint", "in type ipv4 addr 198.51.100.9 port 8080", "-i", "0.0.0.0:80=in"},
		want:  map[string]string{sourceAddr4: remoteAddr4},
	},
	{
		name: "dual-stack-as-ipv4", listen: ":80",
		flags: []string{"--endpoint", "in type ipv4 addr 198.51.100.1 port 8080", "-i", "0.0.0.0:80=in"},
		want:  map[string]string{hostAddr4: remoteAddr4},
	},
	{
		name: "dual-stack", listen: ":80",
		flags: []string{"--endpoint", "in type ipv6 addr :: port 8080", "-i", "[::]:80=in"},
		want:  map[string]string{sourceAddr4: remoteAddr4, sourceAddr6: remoteAddr6}, // likewise
	},
	{
		name: "ipv6", listen: "[2001:db8::80]:80",
		flags: []string{"--endpoint", "in type ipv6 addr 2001:db8:1::1 port 8080", "-i", "[2001:db8::80]:80=in"},
		want:  map[string]string{hostAddr6: remoteAddr6},
	},
}

// TestGoServer serves with a program that makes its system calls itself, asks
// for MPTCP when it listens, and tells clients who they are.
func TestGoServer(t *testing.T) {
	t.Parallel()
	serveProgram, fetch := static(t, "serve"), static(t, "fetch")
	picked := cover(serving, len(goServers), always)
	each(t, serving, func(t *testing.T, w *world, v variant) {
		for i, test := range goServers {
			if !picked(v, i) {
				continue
			}
			t.Run(test.name, func(t *testing.T) {
				line := slices.Concat(test.flags, []string{"--", serveProgram, "udp://" + test.listen, "tcp://" + test.listen})
				serve(t, v.run(t, w, line...), port{w.h, "udp", 8080}, port{w.h, "tcp", 8080})
				for to, from := range test.want {
					if strings.Contains(to, ":") {
						to = "[" + to + "]"
					}
					// The UDP client is connected: an answer from elsewhere
					// than where it sent to would be lost.
					out := succeed(t, command(t, w.srv, fetch, "http://"+to+":8080", "udp://"+to+":8080", "udp://"+to+":8080"))
					if want := strings.Repeat(from+"\n", 3); out != want {
						t.Errorf("%s answered %q, want %q", to, out, want)
					}
				}
			})
		}
	})
}
