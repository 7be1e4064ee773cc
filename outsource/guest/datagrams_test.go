package guest

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// supervisorVariable has TestSecondSupervisor be the second supervisor's process.
const supervisorVariable = "TSUGIKI_TEST_SUPERVISOR"

// TestSecondSupervisor starts a supervisor while another one makes the device. It starts its program when the
// device has its routes. When the other one ends, it has the device, and the guest has what the host kept for it.
func TestSecondSupervisor(t *testing.T) {
	if os.Getenv(supervisorVariable) != "" {
		beSecondSupervisor(t)
		return
	}
	ns := testkit.Build(t, testkit.Options{NoRemote: true}).Host
	other, err := unix.Open(deviceFile, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("skip: needs %s: %v", deviceFile, err)
	}
	lock := os.NewFile(uintptr(other), "lock")
	defer lock.Close()
	if err := unix.Flock(other, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSecondSupervisor$")
	cmd.Env = append(os.Environ(), supervisorVariable+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	defer func() { // its threads end with it
		rest, _ := io.ReadAll(lines)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the second supervisor: %v\n%s", err, rest)
		}
	}()
	want := func(want string) {
		t.Helper()
		if line, err := lines.ReadString('\n'); strings.TrimSpace(line) != want {
			t.Errorf("%q, want %q: %v", line, want, err)
		}
	}
	want("begins")
	var device *os.File
	err = ns.Do(func() error {
		fd, err := unix.Open(deviceFile, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		device = os.NewFile(uintptr(fd), deviceFile)
		if err := makeDevice(fd); err != nil {
			return err
		}
		return netns.RouteDatagrams(deviceName, deviceMTU, owns[:1])
	})
	if err != nil {
		t.Error(err)
	}
	want("routed true")
	device.Close()
	lock.Close()
	want("received kept")
}

func beSecondSupervisor(t *testing.T) {
	routePatience = testkit.Patience
	program, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	host, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	kept := wire.Datagram{
		Port: program.LocalAddr().(*net.UDPAddr).AddrPort().Port(), Peer: netip.MustParseAddrPort("198.51.100.9:9"), Bytes: []byte("kept"),
	}
	frame, err := kept.Append(nil)
	if err == nil {
		_, err = unix.Write(host[1], frame)
	}
	if err != nil {
		t.Fatal(err)
	}
	dialDatagrams = func() (int, error) { return host[0], nil }
	fmt.Println("begins")
	var h holder
	if err := h.serve(owns[:1], slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		t.Fatal(err)
	}
	fmt.Println("routed", netns.DatagramsRouted(owns[0]))
	b := make([]byte, 10)
	if err := program.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	n, err := program.Read(b)
	fmt.Println("received", string(b[:n]))
	if err != nil {
		t.Error(err)
	}
}
