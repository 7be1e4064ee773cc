// Relied upon: which sockets may have the same port. Two TCP sockets that listen, if both set
// SO_REUSEPORT and have the same user; two of UDP, if both set that and have the same user, or
// if both set SO_REUSEADDR. The user of a socket is who made it (its inode's), not who binds
// it. So a TCP socket of a user whom nobody else is, with both options, is refused a port
// with a listener, whatever that one sets, and passes over connections in TIME_WAIT; a UDP
// socket without options is refused each port that a socket has.
//
// Since: Linux 3.9 (SO_REUSEPORT); checked on 6.18.
// By: graft (a probe tells whether a container has a port yet that it had).

package kernel

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

const someoneElse = 1<<32 - 2

// socketOf makes a socket of another user, or of ours.
func socketOf(t *testing.T, user, typ int, options ...int) int {
	t.Helper()
	own, err := unix.SetfsuidRetUid(user)
	try(t, "change user", err)
	fd := socket(t, unix.AF_INET, typ, 0)
	_, err = unix.SetfsuidRetUid(own)
	try(t, "change user", err)
	for _, option := range options {
		try(t, "set option", unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1))
	}
	return fd
}

func TestWhoSharesAPort(t *testing.T) {
	enterNetns(t)
	const addr, port = unix.SO_REUSEADDR, unix.SO_REUSEPORT
	options := map[string][]int{"none": nil, "addr": {addr}, "port": {port}, "both": {addr, port}}
	at := 8000
	for _, typ := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
		for first, firsts := range options {
			for second, seconds := range options {
				for _, user := range []int{0, someoneElse} {
					at++
					has := socketOf(t, 0, typ, firsts...)
					try(t, "bind", unix.Bind(has, sockaddr(fmt.Sprintf("127.0.0.1:%d", at))))
					byPort := (first == "port" || first == "both") && (second == "port" || second == "both") && user == 0
					byAddr := typ == unix.SOCK_DGRAM && (first == "addr" || first == "both") && (second == "addr" || second == "both")
					if typ == unix.SOCK_STREAM {
						try(t, "listen", unix.Listen(has, 1))
					}
					err := unix.Bind(socketOf(t, user, typ, seconds...), sockaddr(fmt.Sprintf("0.0.0.0:%d", at)))
					if err != nil && !errors.Is(err, unix.EADDRINUSE) {
						t.Fatal(err)
					}
					want(t, fmt.Sprintf("type %d: %s and %s, user %d share", typ, first, second, user), err == nil, byPort || byAddr)
				}
			}
		}
	}
}

// A server that has closed its connections first leaves them in TIME_WAIT.
func TestPortsInTimeWait(t *testing.T) {
	enterNetns(t)
	for i, options := range [][]int{{unix.SO_REUSEADDR}, {unix.SO_REUSEPORT}, {unix.SO_REUSEADDR, unix.SO_REUSEPORT}} {
		at := fmt.Sprintf("127.0.0.1:%d", 8000+i)
		server := socketOf(t, 0, unix.SOCK_STREAM, options...)
		try(t, "bind", unix.Bind(server, sockaddr(at)))
		try(t, "listen", unix.Listen(server, 1))
		client := socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
		try(t, "connect", unix.Connect(client, sockaddr(at)))
		conn, _ := accept(t, server)
		try(t, "shutdown", unix.Shutdown(conn, unix.SHUT_WR))
		n, err := unix.Read(client, make([]byte, 1))
		try(t, "read", err)
		want(t, "bytes read", n, 0)
		try(t, "shutdown", unix.Shutdown(client, unix.SHUT_WR))
		n, err = unix.Read(conn, make([]byte, 1))
		try(t, "read", err)
		want(t, "bytes read", n, 0)
		for _, fd := range []int{conn, server} { // which are closed again when the test ends
			try(t, "close", unix.Dup3(client, fd, unix.O_CLOEXEC))
		}

		err = unix.Bind(socketOf(t, 0, unix.SOCK_STREAM), sockaddr(at))
		want(t, "without options", err, error(unix.EADDRINUSE))
		try(t, "with both, of another user", unix.Bind(socketOf(t, someoneElse, unix.SOCK_STREAM, unix.SO_REUSEADDR, unix.SO_REUSEPORT), sockaddr(at)))
	}
}
