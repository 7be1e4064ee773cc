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

// What a program does to its socket before it binds it stays as it did it.
func TestAPIBeforeBind(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, w apiWorld) {
		talk := func() {
			c := dial(t, w.srv, "tcp", at(hostAddr4, apiPort))
			hears(t, c, "world")
		}
		w.serving(t, named(), "listen: ok", talk, // epoll, dup and flags
			"socket stream nonblock cloexec -> ok",
			"flags -> nonblock cloexec",
			"epoll -> ok",
			"dup -> ok",
			"flags -> nonblock ",
			"set 1 2 1 -> ok",
			"bind in4 -> ok",
			"close 5 -> ok",
			"use 3 -> ok",
			"flags -> nonblock cloexec",
			"name -> graft 'in4' 18",
			"listen -> ok",
			"wait -> events 0x1",
			"accept -> inet "+remoteAddr4+" PORT",
			"take -> ok", "send world -> ok",
		)
		w.serving(t, named(), "listen: ok", talk, // fork and exec
			"socket stream -> ok",
			"set 254 1 1 -> ok",
			"fork -> ok",
			"exec -> ok",
			"use 3 -> ok",
			"get 254 1 -> 1 of 4",
			"name -> graft '' 18",
			"set 1 2 1 -> ok",
			"bind in4 -> ok",
			"fork -> ok",
			"name -> graft 'in4' 18",
			"listen -> ok",
			"accept -> inet "+remoteAddr4+" PORT",
			"take -> ok", "send world -> ok",
		)
		w.check(t, named(), // options are carried over
			"socket stream -> ok",
			"set 1 9 1 -> ok",  // SO_KEEPALIVE
			"set 6 4 77 -> ok", // TCP_KEEPIDLE
			"bind out4 -> ok",
			"get 1 9 -> 1 of 4",
			"get 6 4 -> 77 of 4",
			"bind out4 -> EINVAL",
		)
	})
}

func TestAPIOptions(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, w apiWorld) {
		w.check(t, named(),
			"socket stream -> ok",
			"get 254 1 -> 0 of 4",
			"transparent 1 2 1 -> EADDRNOTAVAIL", // SO_REUSEADDR
			"execute -> EADDRNOTAVAIL",
			"set 254 1 1 -> ok",
			"get 254 1 -> 1 of 4",
			"transparent 1 2 1 -> ok",
			"set 6 4 77 -> ok",     // TCP_KEEPIDLE
			"set 6 4 -1 -> ok",     // which the kernel will refuse
			"set 6 19 1 -> ok",     // TCP_REPAIR, which we refuse
			"set 1 9 1 -> ok",      // SO_KEEPALIVE is set at once
			"get 6 4 -> 7200 of 4", // not yet
			"get 1 9 -> 1 of 4",
			"results -> ok",
			"bind in4 -> ok",
			"get 6 4 -> 77 of 4",
			"get 1 2 -> 1 of 4",
			"get 1 9 -> 1 of 4",
			"results 24 -> ENOBUFS 1/2=0 6/4=0",
			"results 12 -> ENOBUFS 6/4=-22",
			"results 12 -> ok 6/19=-1",
			"results -> ok",
			"set 6 4 78 -> ok",
			"get 6 4 -> 77 of 4",
			"execute -> ok",
			"get 6 4 -> 78 of 4",
			"execute -> ok",
			"results -> ok 6/4=0",
			"set 254 1 0 -> ok",
			"set 6 4 79 -> ok",
			"get 6 4 -> 79 of 4",
			"results -> ok",
		)
		// What the supervisor sets for a program, the program could have set.
		w.check(t, named(),
			"socket stream -> ok",
			"bind in4 -> ok",
			"transparent 1 9 1 -> ok",
			"get 1 9 -> 1 of 4",
			"transparent 6 4 77 -> ok",
			"get 6 4 -> 77 of 4",
			"transparent 6 4 -1 -> EINVAL",
			"transparent 1 36 1 -> EPERM",       // SO_MARK
			"transparent 1 25 1 -> EPERM",       // SO_BINDTODEVICE
			"transparent 1 62 1 -> EPERM",       // SO_BINDTOIFINDEX
			"transparent 1 33 9999999 -> EPERM", // SO_RCVBUFFORCE
			"transparent 1 32 9999999 -> EPERM", // SO_SNDBUFFORCE
			"transparent 1 26 1 -> EPERM",       // SO_ATTACH_FILTER, a pointer
			"transparent 1 50 3 -> EPERM",       // SO_ATTACH_BPF, a descriptor
			"transparent 1 12 7 -> EPERM",       // SO_PRIORITY of a privileged
			"transparent 1 1 1 -> EPERM",        // SO_DEBUG
			"transparent 0 19 1 -> EPERM",       // IP_TRANSPARENT
			"transparent 0 64 1 -> EPERM",       // IPT_SO_SET_REPLACE
			"transparent 41 1 2 -> EPERM",       // IPV6_ADDRFORM
			"transparent 6 19 1 -> EPERM",       // TCP_REPAIR
			"transparent 254 4 1 -> EPERM",      // itself
			"transparent 1 9 1 4 15 -> EINVAL",
			"transparent 1 9 1 5 16 -> EINVAL",
			"transparent 1 9 1 117 -> EINVAL",
			"transparent 1 9 1 4 129 -> EINVAL",
			"transparent 1 9 1 4 11 -> EINVAL",
			"transparent 1 9 1 -1 -> EINVAL",
			"transparent 1 9 1 0 -> EINVAL", // the kernel's
			"set 254 3 1 -> ENOPROTOOPT",
			"set 254 9 1 -> ENOPROTOOPT",
			"get 254 2 -> ENOPROTOOPT",
			"get 254 4 -> ENOPROTOOPT",
			"native 2 1 -> ok", // AF_INET, SOCK_STREAM
			"get 254 1 -> EOPNOTSUPP",
			"set 254 1 1 -> ENOPROTOOPT",
		)
		full := []string{"socket stream -> ok", "set 254 1 1 -> ok"}
		for range 16 {
			full = append(full, "set 6 4 77 -> ok")
		}
		w.check(t, named(), append(full, "set 6 4 77 -> ENOBUFS", "transparent 1 2 1 -> ENOBUFS", "bind in4 -> ok",
			"set 6 4 77 -> ENOBUFS", "results 12 -> ENOBUFS 6/4=0", "set 6 4 77 -> ok")...)
		// Where all endpoints are for rules, there is none to name, and only transparent
		// options are delayed.
		w.check(t, []string{
			"--endpoint", fmt.Sprintf("in4 type ipv4 addr %s port %d", hostAddr4, apiPort), "-i", "0.0.0.0:80=in4",
		},
			"socket stream -> ok",
			"set 254 1 1 -> ok",
			"set 6 4 77 -> ok",
			"transparent 1 2 1 -> ok",
			"bind in4 -> ENOENT",
			"get 6 4 -> 77 of 4",
		)
		// One for both is named, and so all is seen.
		w.check(t, []string{
			"--endpoint", fmt.Sprintf("in4 type ipv4 addr %s port %d nameable", hostAddr4, apiPort), "-i", "0.0.0.0:80=in4",
		},
			"socket stream -> ok",
			"set 254 1 1 -> ok",
			"set 6 4 77 -> ok",
			"transparent 1 2 1 -> ok",
			"bind in4 -> ok",
			"results -> ok 6/4=0 1/2=0",
			"name -> graft 'in4' 18",
		)
	})
}

func TestAPINames(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, w apiWorld) {
		w.check(t, named(),
			"socket stream -> ok",
			"name -> graft '' 18",
			"name 2 -> graft '' 18",
			"name 0 -> family 0",
			"name -1 -> EINVAL",
			"set 254 5 1 -> ok",
			"name -> nothing",
			"bind in4 -> ok",
			fmt.Sprintf("name -> inet %s %d", hostAddr4, apiPort),
			"set 254 5 0 -> ok",
			"name -> graft 'in4' 18",
			"bind-native 0.0.0.0 80 -> EAFNOSUPPORT",
			"native 2 1 -> ok",
			"name -> inet 0.0.0.0 0",
			"bind in4 -> EAFNOSUPPORT",
			"bind-native 127.0.0.1 80 -> ok",
			"name -> inet 127.0.0.1 80",
		)
		w.check(t, named(),
			"socket stream -> ok",
			"bind nosuch -> ENOENT",
			"bind -> ENOENT",
			"bind 0123456789abcdef -> ENOENT",
			"bind-length in4 17 -> EINVAL",
			"bind-length in4 2 -> EINVAL",
			"bind-length in4 129 -> EINVAL",
			"bind-length in4 -1 -> EINVAL",
			"listen -> EADDRNOTAVAIL",
			"bind-native 0.0.0.0 80 -> EAFNOSUPPORT",
			"bind-native ::1 80 -> EAFNOSUPPORT",
			"bind-length in4 128 -> ok",
			"name -> graft 'in4' 18",
			"socket stream -> ok",
			"bind in4 -> EADDRINUSE",
			"name -> graft '' 18",
			"bind range -> ok",
			"set 254 5 1 -> ok",
			fmt.Sprintf("name -> inet %s %d", hostAddr4, apiOtherPort),
			"socket 3 -> ESOCKTNOSUPPORT",
			"socket 0 -> ESOCKTNOSUPPORT",
			"protocol 1 6 -> ok",
			"protocol 2 17 -> ok",
			"protocol 1 17 -> EPROTONOSUPPORT",
		)
		// What another container was given is nobody else's.
		other := []string{"--endpoint", "other type ipv4 addr 0.0.0.0 port dynamic nameable"}
		w.check(t, other, "socket stream -> ok", "bind in4 -> ENOENT", "bind default-source -> ENOENT")
	})
}

// The examples are built as the README says, from what make install installs,
// and run by the tsugiki that it installs.
func TestAPIExamples(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, client := buildC(t, "dynamic", "../../examples/graft-server.c"), buildC(t, "static", "../examples/graft-client.c")
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
