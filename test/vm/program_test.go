package vm

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/uml"
)

// The test's own binary is a program in the guest, too: Go's sockets do not block, and are in an epoll
// before they connect.

// programEnv has the remote's address, where the test's binary is to be that program. With datagramsEnv, it
// makes the checks of UDP alone.
const (
	programEnv   = "TSUGIKI_VM_PROGRAM"
	datagramsEnv = "TSUGIKI_VM_DATAGRAMS"
)

// Ports of the remote.
const (
	echoPort   = 7000
	closedPort = 7001
)

// bulk is so many bytes that every window of the way is full for a while.
const bulk = 8 << 20

// check is a check of the guest's program.
type check struct {
	name string
	run  func() error
}

// program makes each check of the guest's program, and prints its result.
func program(remote string) int {
	status := 0
	at := func(port int) string { return net.JoinHostPort(remote, fmt.Sprint(port)) }
	checks := []check{
		{"names", func() error { return names(at(echoPort)) }},
		{"refused", func() error {
			_, err := net.Dial("tcp", at(closedPort))
			if !errors.Is(err, unix.ECONNREFUSED) {
				return fmt.Errorf("dial a closed port: %w", err)
			}
			return nil
		}},
		{"options", func() error { return options(at(echoPort)) }},
		{"bulk", func() error { return echo(at(echoPort), bulk) }},
		{"many", func() error {
			errs := make([]error, 40)
			var all sync.WaitGroup
			for i := range errs {
				all.Go(func() { errs[i] = echo(at(echoPort), 10000+i) })
			}
			all.Wait()
			return errors.Join(errs...)
		}},
		{"server", serveEcho},
	}
	datagrams := datagramChecks(at)
	if os.Getenv(datagramsEnv) != "" {
		checks = nil
	}
	for _, check := range append(datagrams, checks...) {
		if err := check.run(); err != nil {
			fmt.Printf("check %s: %v\n", check.name, err)
			status = 1
			continue
		}
		fmt.Printf("check %s: ok\n", check.name)
	}
	return status
}

// names compares the names of a connection with what the peer sees.
func names(addr string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if got := c.RemoteAddr().String(); got != addr {
		return fmt.Errorf("the peer of a connection to %s is %s", addr, got)
	}
	if _, err := io.WriteString(c, "who\n"); err != nil {
		return err
	}
	seen := make([]byte, 100)
	n, err := c.Read(seen)
	if got := c.LocalAddr().String(); err != nil || strings.TrimSpace(string(seen[:n])) != got {
		return fmt.Errorf("the name is %s, and the peer sees %q: %w", got, seen[:n], err)
	}
	return nil
}

// options sets and reads options of TCP and IP.
func options(addr string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var errs []error
	err = raw.Control(func(fd uintptr) {
		for _, o := range []struct{ level, name, value, want int }{
			{unix.SOL_TCP, unix.TCP_NODELAY, 0, 0},
			{unix.SOL_TCP, unix.TCP_NODELAY, 1, 1},
			{unix.SOL_TCP, unix.TCP_KEEPIDLE, 77, 77},
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1, 1},
			{unix.SOL_IP, unix.IP_TOS, 0x10, 0x10},
		} {
			err := unix.SetsockoptInt(int(fd), o.level, o.name, o.value)
			got, gerr := unix.GetsockoptInt(int(fd), o.level, o.name)
			if err != nil || gerr != nil || got != o.want {
				errs = append(errs, fmt.Errorf("option %d of level %d: %d, %w, %w", o.name, o.level, got, err, gerr))
			}
		}
		if err := unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1); !errors.Is(err, unix.ENOPROTOOPT) {
			errs = append(errs, fmt.Errorf("IP_TRANSPARENT: %w", err))
		}
		domain, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil || domain != unix.AF_INET {
			errs = append(errs, fmt.Errorf("SO_DOMAIN: %d, %w", domain, err))
		}
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err != nil || info.State != 1 {
			errs = append(errs, fmt.Errorf("TCP_INFO: %+v, %w", info, err))
		}
	})
	return errors.Join(append(errs, err)...)
}

// echo sends bytes, ends, and reads them back.
func echo(addr string, size int) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	want := bytes.Repeat([]byte("tsugiki\x00"), size/8+1)[:size]
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(append([]byte("all\n"), want...))
		sent <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err = errors.Join(err, <-sent); err != nil {
		return err
	}
	if sha256.Sum256(got) != sha256.Sum256(want) {
		return fmt.Errorf("%d bytes became %d", len(want), len(got))
	}
	return nil
}

// serveEcho serves the test until it says the end. Signals interrupt all of its calls.
func serveEcho() error {
	l, err := net.Listen("tcp4", ":9000")
	if err != nil {
		return err
	}
	defer l.Close()
	defer interrupt()()
	fmt.Println("listening at", l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		line := make([]byte, 100)
		n, err := c.Read(line)
		fmt.Printf("client %s says %q to %s\n", c.RemoteAddr(), line[:n], c.LocalAddr())
		_, werr := c.Write(line[:n])
		c.Close()
		if err = errors.Join(err, werr); err != nil || string(line[:n]) == "end" {
			return err
		}
	}
}

// interrupt sends SIGURG, which Go's programs handle, to all threads of the process, until end is called.
func interrupt() (end func()) {
	var ended atomic.Bool
	var work sync.WaitGroup
	work.Go(func() {
		for !ended.Load() {
			threads, _ := os.ReadDir("/proc/self/task")
			for _, thread := range threads {
				number, _ := strconv.Atoi(thread.Name())
				_ = unix.Tgkill(os.Getpid(), number, unix.SIGURG) // ESRCH: it has ended
			}
			time.Sleep(time.Millisecond)
		}
	})
	return func() {
		ended.Store(true)
		work.Wait()
	}
}

// echoServer is the remote's: it answers "who" with the client's name, and "all" with all that comes.
func echoServer(t *testing.T, ns *testkit.Namespace, at netip.AddrPort) {
	t.Helper()
	var l net.Listener
	err := ns.Do(func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				word := make([]byte, 4)
				if _, err := io.ReadFull(c, word); err != nil {
					return
				}
				if string(word) == "who\n" {
					fmt.Fprintln(c, c.RemoteAddr())
					return
				}
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// TestGoProgram has a static program in the guest whose sockets do not block. The guest takes packets only from
// where it has a route to (rp_filter), as Debian's systemd has it.
func TestGoProgram(t *testing.T) {
	top := testkit.Build(t, testkit.Options{})
	echoServer(t, top.Remote, netip.AddrPortFrom(testkit.RemoteAddr4, echoPort))
	answerDatagrams(t, top.Remote, netip.AddrPortFrom(testkit.RemoteAddr4, echoPort))
	g := uml.Boot(t, top.Host, uml.Options{
		Script: "echo 2 > /proc/sys/net/ipv4/conf/all/rp_filter\n" + programEnv + "=" + testkit.RemoteAddr4.String() + " tsugiki guest run -- /bin/program; echo program says $?",
		Flags: []string{
			"-e", "0.0.0.0/0=0.0.0.0", "-i", "0.0.0.0:9000=" + testkit.HostAddr4.String() + ":9001",
			"-i", "0.0.0.0:9002=" + testkit.HostAddr4.String() + ":9003",
		},
		Files: map[string]string{"bin/program": self(t)},
	})
	expectDatagrams(t, g, top.Remote, netip.AddrPortFrom(testkit.HostAddr4, 9003))
	for _, name := range []string{"names", "refused", "options", "bulk", "many"} {
		g.Expect("check " + name + ": ok")
	}
	g.Expect("listening at 0.0.0.0:9000")
	for _, word := range append(slices.Repeat([]string{"hello"}, 100), "end") {
		var c net.Conn
		err := top.Remote.Do(func() (err error) {
			c, err = net.Dial("tcp", netip.AddrPortFrom(testkit.HostAddr4, 9001).String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, word); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		if err != nil || string(b) != word {
			t.Errorf("said %q, got %q, %v", word, b, err)
		}
		g.Expect(fmt.Sprintf("client %s says %q to %s:9000", c.LocalAddr(), word, testkit.HostAddr4))
		c.Close()
	}
	g.Expect("check server: ok")
	g.Expect("program says 0")
}

// self is the test's binary, which has to need no libraries.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Fatal("the test's binary is dynamic, and the guest does not have its libraries; set CGO_ENABLED=0")
	}
	return path
}

func init() {
	if remote := os.Getenv(programEnv); remote != "" {
		syscall.Exit(program(remote))
	}
}
