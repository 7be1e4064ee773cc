// Command obey does what it reads on standard input, a line each, and answers
// each with a line: what it got, or the name of the error.
//
//	dial NAME NETWORK ADDR   connects a socket, and asks as below
//	ask NAME                 asks by a connected socket: over TCP by HTTP, or by a datagram
//	open NAME                opens a UDP socket that is not connected
//	send NAME ADDR           asks by it
//	bind NAME PORT           binds a TCP socket to a port of all addresses
//	listen NAME [ADDR]       listens for TCP, by a socket of "bind" if there is no ADDR, and tells callers their
//	                         addresses, over HTTP
//	close NAME
//	mark NAME                sets the mark of a connected socket's packets
//	storm NAME COUNT ADDR    connects so many UDP sockets, one after the other
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// limit is for hangs only.
const limit = 10 * time.Minute

var named = map[string]io.Closer{}

func main() {
	runtime.LockOSThread() // a supervisor keeps a descriptor of each thread that calls
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		answer, err := obey(words[0], words[1], words[2:])
		var errno unix.Errno
		switch {
		case errors.As(err, &errno):
			answer = unix.ErrnoName(errno)
		case err != nil:
			answer = err.Error()
		}
		fmt.Println(answer)
	}
}

func obey(verb, name string, args []string) (string, error) {
	switch verb {
	case "dial":
		conn, err := net.DialTimeout(args[0], args[1], limit)
		if err != nil {
			return "", err
		}
		named[name] = conn
		return ask(conn)
	case "ask":
		return ask(named[name].(net.Conn))
	case "open":
		conn, err := net.ListenUDP("udp4", nil)
		named[name] = conn
		return "open", err
	case "send":
		to, err := net.ResolveUDPAddr("udp", args[0])
		if err != nil {
			return "", err
		}
		conn := named[name].(*net.UDPConn)
		if _, err := conn.WriteTo([]byte("who am I\n"), to); err != nil {
			return "", err
		}
		return read(conn)
	case "bind":
		f, err := bind(args[0])
		named[name] = f
		return "bound", err
	case "listen":
		l, err := listen(name, args)
		if err != nil {
			return "", err
		}
		named[name] = l
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			host, _, _ := net.SplitHostPort(r.RemoteAddr)
			fmt.Fprintln(w, host)
		}))
		return "listens", nil
	case "close":
		return "closed", named[name].Close()
	case "mark":
		return "marked", mark(named[name].(syscall.Conn))
	case "storm":
		return args[0], storm(args[0], args[1])
	}
	return "", fmt.Errorf("unknown verb %s", verb)
}

func bind(port string) (*os.File, error) {
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	s, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(s), "socket"), unix.Bind(s, &unix.SockaddrInet6{Port: number})
}

func listen(name string, args []string) (net.Listener, error) {
	if len(args) > 0 {
		return net.Listen("tcp", args[0])
	}
	f := named[name].(*os.File)
	if err := unix.Listen(int(f.Fd()), unix.SOMAXCONN); err != nil {
		return nil, err
	}
	return net.FileListener(f)
}

func mark(conn syscall.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, 1) })
	return errors.Join(cerr, err)
}

func storm(count, addr string) error {
	n, err := strconv.Atoi(count)
	for ; n > 0 && err == nil; n-- {
		var conn net.Conn
		if conn, err = net.Dial("udp", addr); err == nil {
			err = conn.Close()
		}
	}
	return err
}

func ask(conn net.Conn) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	if _, udp := conn.(*net.UDPConn); udp {
		if _, err := conn.Write([]byte("who am I\n")); err != nil {
			return "", err
		}
		return read(conn)
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: observer\r\n\r\n"); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(body)), err
}

func read(conn net.Conn) (string, error) {
	if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	buf := make([]byte, 2048)
	n, err := conn.Read(buf)
	return strings.TrimSpace(string(buf[:n])), err
}
