package vm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/uml"
	"github.com/tsugiki/tsugiki/outsource/vsock"
)

// holders returns the processes that hold devices of a run directory.
func holders(t *testing.T, runDir string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil || !bytes.HasPrefix(line, []byte("tsugiki: holder\x00"+runDir)) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// nothingHeld waits until no device of a run directory is held.
func nothingHeld(t *testing.T, runDir string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		left, err := filepath.Glob(filepath.Join(runDir, "*.device"))
		if pids := holders(t, runDir); err != nil || len(left) > 0 || len(pids) > 0 {
			return fmt.Errorf("processes %v and sockets %v are left: %w", pids, left, err)
		}
		return nil
	})
}

// rounds is what a guest does while its host's process starts anew: in each round it has a new server, and a
// connection that has something to say until it ends.
func rounds() string {
	return fmt.Sprintf(`
echo page of the guest > /tmp/index.html
i=0
until [ -e /tmp/over ]; do i=$((i+1))
until tsugiki guest run -- true; do sleep 1; done
tsugiki guest run -- httpd -f -p 0.0.0.0:80 -h /tmp &
(echo all; echo begin $i; while sleep 1; do echo goes on $i; done) | tsugiki guest run -- nc %[1]s %[2]d; echo end $i
done
`, testkit.RemoteAddr4, echoPort)
}

// checkRound waits for a guest's round, and asks its server.
func checkRound(t *testing.T, g *uml.Guest, top *testkit.Topology, round int) {
	t.Helper()
	g.Expect(fmt.Sprintf("begin %d", round))
	testkit.Eventually(t, func() error {
		page, err := get(top.Remote, fmt.Sprintf("http://%s:8081/", testkit.HostAddr4))
		if err == nil && page != "page of the guest\n" {
			err = fmt.Errorf("page %q", page)
		}
		return err
	})
}

// TestDeviceOutlivesAgent has a guest with a vhost-user device, whose agent ends and starts again, and whose device's
// holder is killed. Connections of the guest end, and new ones both ways work, without another boot.
func TestDeviceOutlivesAgent(t *testing.T) {
	n := newNode(t, nil)
	echoServer(t, n.top.Remote, netip.AddrPortFrom(testkit.RemoteAddr4, echoPort))
	socket, runDir := filepath.Join(n.dir, "device"), filepath.Join(n.dir, "run")
	guest := api.Guest{Name: "vm", VSock: socket, Rules: &api.Rules{
		Egress: []string{"0.0.0.0/0=0.0.0.0"}, Ingress: []string{fmt.Sprintf("0.0.0.0:80=%s:8081", testkit.HostAddr4)},
	}}
	if err := n.Do(http.MethodPost, "/v1/guests", guest, nil); err != nil {
		t.Fatal(err)
	}
	g := uml.Start(t, n.top.Host, socket, uml.Options{Script: rounds()})
	checkRound(t, g, n.top, 1)
	vmm := n.guest(t, "vm").State.VMM
	for i, sig := range []unix.Signal{unix.SIGKILL, unix.SIGTERM, unix.SIGKILL} {
		n.end(sig)
		n.start(t)
		g.Expect(fmt.Sprintf("end %d", i+1))
		checkRound(t, g, n.top, i+2)
		if state := n.guest(t, "vm").State; state.VMM != vmm || state.Boots != 1 || state.Faults != 0 {
			t.Errorf("%+v; the VMM was %d", state, vmm)
		}
		if sig != unix.SIGTERM {
			continue
		}
		// Its holder dies, and another takes its place. The connection goes on.
		former := holders(t, runDir)
		if len(former) != 1 {
			t.Fatalf("holders %v", former)
		}
		if err := unix.Kill(former[0], unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, func() error {
			_, err := os.Stat(filepath.Join(runDir, "vm.device"))
			if now := holders(t, runDir); err != nil || len(now) != 1 || now[0] == former[0] {
				return fmt.Errorf("holders %v, which were %v: %w", now, former, err)
			}
			return nil
		})
		g.Expect(fmt.Sprintf("goes on %d", i+2))
	}
	if err := n.Do(http.MethodDelete, "/v1/guests/vm", nil, nil); err != nil {
		t.Error(err)
	}
	nothingHeld(t, runDir)
	g.Crash()
}

// TestDeviceOutlivesAttach has tsugiki guest attach be killed while its guest has connections. The same command goes
// on with the guest. Without one, the guest's end leaves nothing, and the next boot is served.
func TestDeviceOutlivesAttach(t *testing.T) {
	top := testkit.Build(t, testkit.Options{})
	echoServer(t, top.Remote, netip.AddrPortFrom(testkit.RemoteAddr4, echoPort))
	l := listenIn(t, top.Remote, fmt.Sprintf("%s:7100", testkit.RemoteAddr4))
	dir := t.TempDir()
	socket, runDir := filepath.Join(dir, "vsock"), filepath.Join(dir, "run")
	args := []string{
		"guest", "attach", "--vsock", socket, "--name", fmt.Sprintf("vm%d", os.Getpid()), "--run-dir", runDir,
		"-e", "0.0.0.0/0=0.0.0.0", "-p", "8081:80",
	}
	listens := func() {
		t.Helper()
		testkit.Eventually(t, func() error { // a connection would be a VMM
			out, err := top.Host.Command(t.Context(), "ss", "-Hlx", "src", socket).CombinedOutput()
			if err == nil && len(out) == 0 {
				err = errors.New("nobody listens for the VMM")
			}
			return err
		})
	}
	p := serve(t, top.Host, args...)
	listens()
	g := uml.Start(t, top.Host, socket, uml.Options{
		Script: fmt.Sprintf("(echo hello; sleep 1000) | tsugiki guest run -- nc %s 7100 &\n", testkit.RemoteAddr4) + rounds(),
	})
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len("hello\n"))); err != nil {
		t.Fatal(err)
	}
	checkRound(t, g, top, 1)
	p.end(unix.SIGKILL)
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the peer has read %d bytes, %v", n, err)
	}
	p = serve(t, top.Host, args...)
	g.Expect("end 1")
	checkRound(t, g, top, 2)
	p.end(unix.SIGKILL)
	if pids := holders(t, runDir); len(pids) != 1 {
		t.Errorf("holders %v", pids)
	}
	g.Crash()
	nothingHeld(t, runDir)

	p = serve(t, top.Host, args...)
	listens()
	again := uml.Start(t, top.Host, socket, uml.Options{Script: fmt.Sprintf("tsugiki guest run -- nc %s 7100 < /dev/null; echo nc has ended; sleep 1000", testkit.RemoteAddr4)})
	var next net.Conn
	if next, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	next.Close()
	again.Expect("nc has ended")
	p.end(unix.SIGTERM) // with the guest's device
	nothingHeld(t, runDir)
	again.Crash()
}

// fakeVMM connects to a device's socket as a VMM does, and waits until the device is held.
func fakeVMM(t *testing.T, socket, runDir string) *os.File {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "vmm")
	t.Cleanup(func() { f.Close() })
	testkit.Eventually(t, func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: socket}) })
	if err := vsock.Probe(fd); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error {
		pids := holders(t, runDir)
		if len(pids) != 1 {
			return fmt.Errorf("holders %v", pids)
		}
		open, err := testkit.OpenFiles(pids[0])
		for _, name := range open {
			if strings.Contains(name, "vsock connections") {
				return nil
			}
		}
		return fmt.Errorf("the holder has %v: %w", open, err)
	})
	return f
}

// ended waits for the end of a VMM's connection.
func ended(t *testing.T, vmm *os.File) {
	t.Helper()
	list := []unix.PollFd{{Fd: int32(vmm.Fd()), Events: unix.POLLIN}}
	testkit.Eventually(t, func() error { // a signal ends poll(2)
		if n, err := unix.Poll(list, 0); n != 1 {
			return fmt.Errorf("the VMM's connection goes on: %w", err)
		}
		return nil
	})
	if n, err := vmm.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the VMM has read %d bytes, %v", n, err)
	}
}

// TestDeviceIsForgotten has guests that are removed while no agent runs, or before an agent goes on with them. Their
// VMMs lose the device.
func TestDeviceIsForgotten(t *testing.T) {
	n := newNode(t, nil)
	runDir := filepath.Join(n.dir, "run")
	folder, away := n.path("folder"), n.path("away")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(folder, "v")
	configure := func(guest string) {
		t.Helper()
		text := "[charge]\ndiscovery = false\n[[container]]\nmatch = \"vm\"\negress = [\"0.0.0.0/0=0.0.0.0\"]\n" + guest
		if err := os.WriteFile(n.file(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configured := fmt.Sprintf("[[guest]]\nname = \"vm\"\nvsock = %q\n", socket)
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}

	// The configuration loses the guest while no agent runs.
	configure(configured)
	n.end(unix.SIGTERM)
	n.start(t)
	vmm := fakeVMM(t, socket, runDir)
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		n.end(sig)
		n.start(t)
		if err := vsock.Probe(int(vmm.Fd())); err != nil { // the agent goes on with it
			t.Fatal(err)
		}
	}
	n.end(unix.SIGKILL)
	configure("")
	n.start(t)
	ended(t, vmm)
	nothingHeld(t, runDir)

	// It loses the guest while that cannot be attached.
	configure(configured)
	n.end(unix.SIGTERM)
	n.start(t)
	vmm = fakeVMM(t, socket, runDir)
	n.end(unix.SIGKILL)
	move(folder, away)
	n.start(t)
	configure("")
	if err := n.cmd.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	ended(t, vmm)
	nothingHeld(t, runDir)
	move(away, folder)

	// A guest of the API is removed while it cannot be attached.
	guest := api.Guest{Name: "vm", VSock: socket, Rules: &api.Rules{Egress: []string{"0.0.0.0/0=0.0.0.0"}}}
	if err := n.Do(http.MethodPost, "/v1/guests", guest, nil); err != nil {
		t.Fatal(err)
	}
	vmm = fakeVMM(t, socket, runDir)
	n.end(unix.SIGTERM)
	move(folder, away)
	n.start(t)
	if err := n.Do(http.MethodDelete, "/v1/guests/vm", nil, nil); err != nil {
		t.Fatal(err)
	}
	ended(t, vmm)
	nothingHeld(t, runDir)
	move(away, folder)

	// The next agent has the guest elsewhere.
	if err := n.Do(http.MethodPost, "/v1/guests", guest, nil); err != nil {
		t.Fatal(err)
	}
	vmm = fakeVMM(t, socket, runDir)
	n.end(unix.SIGTERM)
	if err := os.RemoveAll(filepath.Join(n.dir, "state")); err != nil {
		t.Fatal(err)
	}
	configure(fmt.Sprintf("[[guest]]\nname = \"vm\"\nvsock = %q\n", "hybrid:"+socket))
	n.start(t)
	ended(t, vmm)
	nothingHeld(t, runDir)
}
