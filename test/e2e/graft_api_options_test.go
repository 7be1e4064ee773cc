package e2e

import (
	"fmt"
	"testing"
)

// Options and names of AF_GRAFT sockets.

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
