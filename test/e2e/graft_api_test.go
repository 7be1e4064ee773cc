package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Programs that are written for AF_GRAFT (include/tsugiki/graft.h).

func at(addr string, port int) string { return net.JoinHostPort(addr, fmt.Sprint(port)) }

// A server that is bound to an endpoint by its name is reached from the remote,
// and sees who the client is. What it accepts are ordinary sockets.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, w apiWorld) {
		for _, tt := range []struct {
			endpoint, family string
			addr, peer       string
		}{
			{"in4", "inet", hostAddr4, remoteAddr4},
			{"in6", "inet6", hostAddr6, remoteAddr6},
		} {
			for _, netns := range []string{"new", w.c1.Path()} {
				w.serving(t, named("--netns", netns), "listen: ok", func() {
					c := dial(t, w.srv, "tcp", at(tt.addr, apiPort))
					say(t, c, "hello")
					hears(t, c, "world")
				},
					"socket stream -> ok",
					"name -> graft '' 18",
					"poll 0 -> ok",
					"set 1 2 1 -> ok", // SO_REUSEADDR
					"bind "+tt.endpoint+" -> ok",
					"name -> graft '"+tt.endpoint+"' 18",
					"listen -> ok",
					"accept -> "+tt.family+" "+tt.peer+" PORT",
					"name -> graft '"+tt.endpoint+"' 18",
					"take -> ok",
					fmt.Sprintf("name -> %s %s %d", tt.family, tt.addr, apiPort),
					"recv -> hello",
					"send world -> ok",
				)
			}
		}
	})
}

// An endpoint may be of another namespace than the host's.
func TestAPIElsewhere(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, w apiWorld) {
		addr := testkit.ContainerAddr4(0).String()
		flags := []string{"--endpoint", fmt.Sprintf("far type ipv4 addr %s port dynamic netns %s nameable", addr, w.c1.Path())}
		var l net.Listener
		err := w.h.Do(func() (err error) {
			l, err = net.Listen("tcp4", "0.0.0.0:0")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		peers := make(chan string, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				peers <- err.Error()
				return
			}
			peers <- c.RemoteAddr().(*net.TCPAddr).IP.String()
			c.Close()
		}()
		w.check(t, flags,
			"socket stream -> ok",
			"bind far -> ok",
			"connect 127.0.0.1 80 -> EPERM",
			fmt.Sprintf("connect %s %d -> ok", testkit.BridgeAddr4, l.Addr().(*net.TCPAddr).Port),
			"set 254 5 1 -> ok",
			"name -> inet "+addr+" PORT",
		)
		if peer := <-peers; peer != addr {
			t.Errorf("the host sees %s, want %s", peer, addr)
		}
	})
}

func TestAPIUnix(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, w apiWorld) {
		path := filepath.Join(t.TempDir(), "s")
		flags := []string{"--endpoint", "local type unix path " + path + " nameable"}
		w.serving(t, flags, "listen: ok", func() {
			c := dial(t, w.h, "unix", path)
			say(t, c, "hello")
			hears(t, c, "world")
		},
			"socket stream -> ok",
			"epoll -> ok",
			"bind local -> ok",
			"name -> graft 'local' 18",
			"bind local -> EINVAL",
			"set 254 5 1 -> ok",
			"name -> unix "+path,
			"listen -> ok",
			"wait -> events 0x1",
			"accept -> unix ",
			"take -> ok",
			"family -> 1",
			"recv -> hello",
			"send world -> ok",
		)
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is left behind", path)
		}
		w.serving(t, flags, "bind local: ok", func() {
			say(t, dial(t, w.h, "unixgram", path), "hello")
		},
			"socket dgram -> ok",
			"bind local -> ok",
			"recvfrom -> nothing: hello",
			"connect @tsugiki-nobody -> ECONNREFUSED",
		)
	})
}

// The host's abstract sockets are out of reach of one that is bound to a path.
func TestAPIUnixIsNotTheHosts(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, w apiWorld) {
		var l net.Listener
		err := w.h.Do(func() (err error) {
			l, err = net.Listen("unix", "@tsugiki-secret-"+w.build)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		w.check(t, []string{"--endpoint", "local type unix path " + filepath.Join(t.TempDir(), "s") + " nameable"},
			"socket stream -> ok",
			"bind local -> ok",
			"connect @tsugiki-secret-"+w.build+" -> ECONNREFUSED",
		)
	})
}

// A client leaves from its endpoint's address, or from that of default-source.
func TestAPIClient(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, w apiWorld) {
		seen := observe(t, w.srv)
		greet(t, w.srv)
		for _, tt := range []struct {
			name            string
			flags           []string
			bind, to, name2 string
			source          string
		}{
			{"bound", nil, "out4", remoteAddr4, "out4", "inet " + sourceAddr4},
			{"bound, IPv6", nil, "out6", remoteAddr6, "out6", "inet6 " + sourceAddr6},
			{"bound, address of the host's choice", nil, "any4", remoteAddr4, "any4", "inet " + hostAddr4},
			{
				"default",
				[]string{"--endpoint", "default-source type ipv4 addr " + sourceAddr4 + " port dynamic nameable"},
				"", remoteAddr4, "default-source", "inet " + sourceAddr4,
			},
			{
				"default, with rules for other programs",
				[]string{
					"--endpoint", "default-source type ipv4 addr " + sourceAddr4 + " port dynamic nameable",
					"--endpoint", "rule type ipv4 addr 0.0.0.0 port dynamic", "-e", "0.0.0.0/0=rule",
				},
				"", remoteAddr4, "default-source", "inet " + sourceAddr4,
			},
		} {
			for _, netns := range []string{"new", w.c1.Path()} {
				steps := []string{"socket stream -> ok"}
				if tt.bind != "" {
					steps = append(steps, "bind "+tt.bind+" -> ok")
				}
				_, addr, _ := strings.Cut(tt.source, " ")
				steps = append(steps,
					fmt.Sprintf("connect %s %d -> ok", tt.to, greetPort),
					"recv -> "+addr,
					"name -> graft '"+tt.name2+"' 18",
					"set 254 5 1 -> ok",
					"get 254 5 -> 1 of 4",
					"name -> "+tt.source+" PORT")
				t.Log(tt.name, netns)
				w.check(t, named(append(tt.flags, "--netns", netns)...), steps...)
			}
		}
		// UDP, of which the observer tells the source.
		for _, netns := range []string{"new", w.c1.Path()} {
			w.check(t, named("--netns", netns), "socket dgram -> ok", "bind out4 -> ok",
				fmt.Sprintf("sendto %s %d x -> ok", remoteAddr4, observerPort),
				fmt.Sprintf("recvfrom -> inet %s %d: %s", remoteAddr4, observerPort, sourceAddr4))
			w.check(t, named("--netns", netns, "--endpoint", "default-source type ipv6 addr "+sourceAddr6+" port dynamic nameable"),
				"socket dgram -> ok",
				fmt.Sprintf("sendto %s %d x -> ok", remoteAddr6, observerPort),
				fmt.Sprintf("recvfrom -> inet6 %s %d: %s", remoteAddr6, observerPort, sourceAddr6),
				"name -> graft 'default-source' 18",
				fmt.Sprintf("connect %s %d -> ok", remoteAddr6, observerPort),
				"send x -> ok", "recv -> "+sourceAddr6)
		}
		if got := seen.take(); !slices.Contains(got, sourceAddr4) && !slices.Contains(got, "::ffff:"+sourceAddr4) {
			t.Errorf("the remote saw %v", got)
		}
		w.check(t, named(), "socket stream -> ok", fmt.Sprintf("connect %s %d -> ENOENT", remoteAddr4, observerPort),
			"socket dgram -> ok", fmt.Sprintf("connect %s %d -> ENOENT", remoteAddr4, observerPort))
	})
}

// A datagram server answers its peers, from its endpoint.
func TestAPIDatagrams(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, w apiWorld) {
		for _, tt := range []struct{ endpoint, addr, peer string }{
			{"in4", hostAddr4, "inet " + remoteAddr4}, {"in6", hostAddr6, "inet6 " + remoteAddr6},
		} {
			w.serving(t, named(), "bind "+tt.endpoint+": ok", func() {
				c := dial(t, w.srv, "udp", at(tt.addr, apiPort))
				say(t, c, "hello")
				hears(t, c, "world")
			},
				"socket dgram -> ok", "epoll -> ok", "bind "+tt.endpoint+" -> ok", "wait -> events 0x1",
				"recvfrom -> "+tt.peer+" PORT: hello", "reply world -> ok",
			)
		}
	})
}

// The examples are built as the README says, from what make install installs,
// and run by the tsugiki that it installs.
func TestAPIExamples(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, client := buildC(t, "dynamic", "../../examples/graft-server.c"), buildC(t, "static", "../../examples/graft-client.c")
	dir, err := installTree()
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) []string {
		return append([]string{"run", "--run-dir", runDir, "--mode", apiModes[0]}, append(slices.Clone(apiEndpoints), args...)...)
	}
	program := filepath.Join(dir, "usr/bin/tsugiki")
	for endpoint, addr := range map[string]string{"in4": hostAddr4, "in6": hostAddr6} {
		s := serve(t, command(t, w.h, program, run("--", server, endpoint)...), port{w.h, "tcp", apiPort})
		c := dial(t, w.srv, "tcp", at(addr, apiPort))
		hears(t, c, "you are "+c.LocalAddr().(*net.TCPAddr).IP.String()+"\n")
		s.stop(t)
	}
	greet(t, w.srv)
	to := []string{remoteAddr4, fmt.Sprint(greetPort)}
	out := succeed(t, command(t, w.h, program, run(append([]string{"--", client}, append(to, "out4")...)...)...))
	if out != sourceAddr4 {
		t.Errorf("the remote says %q, want %s", out, sourceAddr4)
	}
	flags := []string{"--endpoint", "default-source type ipv4 addr " + sourceAddr4 + " port dynamic nameable", "--", client}
	if out := succeed(t, command(t, w.h, program, run(append(flags, to...)...)...)); out != sourceAddr4 {
		t.Errorf("by default-source, the remote says %q, want %s", out, sourceAddr4)
	}
}
