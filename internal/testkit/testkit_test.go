package testkit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// ownerEnv makes the test binary build a topology and wait to be killed.
const ownerEnv = "TESTKIT_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(ownerEnv) != "" {
		os.Exit(ownTopology())
	}
	os.Exit(m.Run())
}

// ownTopology prints the process id of a program in a container and waits.
func ownTopology() int {
	top, err := New(context.Background(), Options{Containers: 1})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	sleep := top.Containers[0].Command(context.Background(), "sleep", "60")
	if err := sleep.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(sleep.Process.Pid)
	time.Sleep(Patience)
	return 1
}

// listen makes a listener in a namespace.
func listen(t *testing.T, n *Namespace, address string) net.Listener {
	t.Helper()
	var l net.Listener
	err := n.Do(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// dial connects from a namespace and returns what the server reads and the
// address it sees.
func dial(t *testing.T, n *Namespace, l net.Listener) (string, netip.Addr) {
	t.Helper()
	err := n.Do(func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), Patience)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.WriteString(c, "graft")
		return err
	})
	if err != nil {
		t.Fatalf("connect from %s: %v", n.Name(), err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	data, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	peer := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
	return string(data), peer.Unmap()
}

func TestConnections(t *testing.T) {
	top := Build(t, Options{Containers: 2})
	tests := []struct {
		name     string
		from, to *Namespace
		address  netip.Addr
		want     netip.Addr // whom the server sees
	}{
		{"host to remote", top.Host, top.Remote, RemoteAddr4, HostAddr4},
		{"host to remote over IPv6", top.Host, top.Remote, RemoteAddr6, HostAddr6},
		{"remote to host", top.Remote, top.Host, HostAddr4, RemoteAddr4},
		{"container to remote is translated", top.Containers[0], top.Remote, RemoteAddr4, HostAddr4},
		{"container to host is not", top.Containers[1], top.Host, HostAddr4, ContainerAddr4(1)},
		{"container to container", top.Containers[0], top.Containers[1], ContainerAddr4(1), ContainerAddr4(0)},
		{"loopback", top.Containers[0], top.Containers[0], netip.MustParseAddr("::1"), netip.MustParseAddr("::1")},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := listen(t, test.to, netip.AddrPortFrom(test.address, 0).String())
			data, peer := dial(t, test.from, l)
			if data != "graft" || peer != test.want {
				t.Errorf("server read %q from %v, want %q from %v", data, peer, "graft", test.want)
			}
		})
	}
}

func TestUnpublishedPortIsClosed(t *testing.T) {
	top := Build(t, Options{Containers: 1})
	listen(t, top.Containers[0], netip.AddrPortFrom(ContainerAddr4(0), 8080).String())
	err := top.Remote.Do(func() error {
		_, err := net.DialTimeout("tcp", "198.51.100.1:8080", Patience)
		return err
	})
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("remote connects to the host's port: %v, want ECONNREFUSED", err)
	}
}

func TestCongestionControl(t *testing.T) {
	top := Build(t, Options{CongestionControl: "reno"})
	for _, n := range top.Namespaces() {
		got, err := n.Sysctl("net.ipv4.tcp_congestion_control")
		if err != nil || got != "reno" {
			t.Errorf("congestion control of %s: %q, %v; want reno", n.Name(), got, err)
		}
	}
	if err := top.Host.SetSysctl("kernel.panic", "1"); err == nil {
		t.Error("SetSysctl changes a setting of the whole machine")
	}
	allowed, err := AllowedCongestionControls()
	if err != nil || !slices.Contains(allowed, "reno") {
		t.Errorf("allowed congestion controls %v, %v; want reno among them", allowed, err)
	}
	_, err = New(context.Background(), Options{CongestionControl: "no-such-algorithm"})
	var needs *NeedsError
	if !errors.As(err, &needs) {
		t.Errorf("unknown congestion control: %v", err)
	}
}

func TestCommand(t *testing.T) {
	top := Build(t, Options{Containers: 1})
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	c := top.Containers[0]

	t.Run("runs in the namespace", func(t *testing.T) {
		var want unix.Stat_t
		if err := unix.Stat(c.Path(), &want); err != nil {
			t.Fatal(err)
		}
		out, err := c.Command(ctx, "readlink", "/proc/self/ns/net").Output()
		got := strings.TrimSpace(string(out))
		if err != nil || got != fmt.Sprintf("net:[%d]", want.Ino) {
			t.Errorf("command ran in %s, %v; want inode %d", got, err, want.Ino)
		}
	})
	t.Run("is reachable by path", func(t *testing.T) {
		out, err := exec.CommandContext(ctx, Program(t, "nsenter"), "--net="+c.Path(),
			Program(t, "ip"), "-4", "-o", "address", "show", "dev", "eth0").CombinedOutput()
		if err != nil || !strings.Contains(string(out), ContainerAddr4(0).String()) {
			t.Errorf("nsenter: %v: %s", err, out)
		}
	})
	t.Run("keeps standard error of a failure", func(t *testing.T) {
		_, err := c.Command(ctx, "sh", "-c", "echo sap >&2; exit 3").Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 || string(exit.Stderr) != "sap\n" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("ends with its context", func(t *testing.T) {
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if err := c.Command(short, "sleep", "60").Run(); err == nil {
			t.Error("sleep 60 ended by itself")
		}
	})
}

func TestWaitListen(t *testing.T) {
	top := Build(t, Options{Containers: 1})
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	early, cancelEarly := context.WithTimeout(ctx, 4*pollInterval)
	defer cancelEarly()
	if err := top.Remote.WaitListen(early, "tcp", 9000); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody listens: %v", err)
	}
	listen(t, top.Remote, "198.51.100.2:9000")
	listen(t, top.Remote, "[2001:db8:1::2]:9001")
	for network, port := range map[string]uint16{"tcp": 9000, "tcp4": 9000, "tcp6": 9001} {
		if err := top.Remote.WaitListen(ctx, network, port); err != nil {
			t.Errorf("%v", err)
		}
	}
	var udp net.PacketConn
	err := top.Containers[0].Do(func() (err error) {
		udp, err = net.ListenPacket("udp4", "10.88.0.11:9000")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	if err := top.Containers[0].WaitListen(ctx, "udp", 9000); err != nil {
		t.Errorf("%v", err)
	}
}

// linkNames lists the links of the namespace that the test runs in.
func linkNames(t *testing.T) []string {
	t.Helper()
	links, err := netns.Dump(netlink.LinkList)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	return names
}

func dirNames(path string) []string {
	entries, _ := os.ReadDir(path) // no folder, no names
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestCloseLeavesNothing(t *testing.T) {
	CheckLeaks(t)
	links, named := linkNames(t), dirNames("/run/netns")
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	top, err := New(context.Background(), Options{Containers: 2})
	var needs *NeedsError
	if errors.As(err, &needs) {
		t.Skipf("skip: %v", needs)
	}
	if err != nil {
		t.Fatal(err)
	}
	sleep := top.Containers[1].Command(context.Background(), "sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	// A child of a command that has ended.
	out, err := top.Containers[0].Command(context.Background(), "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	path := top.Host.Path()
	for range 2 {
		if err := top.Close(); err != nil {
			t.Error(err)
		}
	}
	if !gone(sleep.Process.Pid) {
		t.Error("a command outlives its topology")
	}
	if !gone(orphan) {
		t.Error("a child of a command outlives its topology")
	}
	if err := top.Host.Command(context.Background(), "true").Run(); !errors.Is(err, errClosed) {
		t.Errorf("command in a closed topology: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Errorf("%s is still there", path)
	}
	if diff := cmp.Diff(links, linkNames(t)); diff != "" {
		t.Errorf("links of the test's own namespace changed:\n%s", diff)
	}
	if diff := cmp.Diff(named, dirNames("/run/netns")); diff != "" {
		t.Errorf("named namespaces changed:\n%s", diff)
	}
	if now, _ := os.Readlink("/proc/self/ns/net"); now != home {
		t.Errorf("the main thread moved from %s to %s", home, now)
	}
}

// gone reports whether a process that is no child of ours ends in time.
func gone(pid int) bool {
	for range int(Patience / pollInterval) {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return true
		}
		time.Sleep(pollInterval)
	}
	return false
}

func TestKilledOwnerLeavesNothing(t *testing.T) {
	Build(t, Options{Containers: 1}) // skips as the owner would fail
	named := dirNames("/run/netns")
	owner := exec.Command("/proc/self/exe")
	owner.Env = append(os.Environ(), ownerEnv+"=1")
	owner.Stderr = os.Stderr
	stdout, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // killed
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if !gone(pid) {
		t.Errorf("process %d outlives the killed owner of its namespace", pid)
	}
	if diff := cmp.Diff(named, dirNames("/run/netns")); diff != "" {
		t.Errorf("named namespaces changed:\n%s", diff)
	}
}

func TestPrograms(t *testing.T) {
	var needs *NeedsError
	if err := Programs("sh", "no-such-program"); !errors.As(err, &needs) ||
		!strings.Contains(err.Error(), "no-such-program") || strings.Contains(err.Error(), "sh,") {
		t.Errorf("got %v", err)
	}
	if err := Programs("sh"); err != nil {
		t.Errorf("got %v", err)
	}
}
