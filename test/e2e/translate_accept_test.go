package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// acceptPort is the port at which the programs of these tests accept connections, or the first of them.
const (
	acceptPort = 8000
	listeners  = 100
)

// accepting starts a translated program that the gate answers, and waits for a line of it. It returns
// the gate's process too.
func accepting(t *testing.T, w *ipv6World, flags []string, until string, program ...string) (c *container, gate int) {
	t.Helper()
	flags = append([]string{
		"--translate", "--mode", "seccomp", "--dns", fmt.Sprintf("[%s]:53", remoteAddr6),
	}, flags...)
	for first := acceptPort; first < acceptPort+listeners; first += listeners / 2 { // a rule has 64 ports at most
		flags = append(flags, "-i", fmt.Sprintf("0.0.0.0:%[1]d-%[2]d=[%[3]s]:%[1]d-%[2]d", first, first+listeners/2-1, sourceAddr6))
	}
	c = newContainer(t, w.h, flags, until, program...)
	for _, pid := range c.helpers() {
		if comm(pid) == "tsugiki-gate" {
			return c, pid
		}
	}
	t.Fatal("the container has no gate")
	return nil, 0
}

// connectFrom connects from the remote to a port. The connection is there until the test ends.
func (w *ipv6World) connectFrom(t *testing.T, port int) {
	t.Helper()
	if err := w.srv.Do(func() error {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("[%s]:%d", sourceAddr6, port), testkit.Patience)
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// A call of accept(2) gets its connection also if the thread of the gate that keeps the call was
// replaced meanwhile.
func TestTranslatedAcceptOfReplacedThread(t *testing.T) {
	t.Parallel()
	needsUserfaultfd(t)
	w := newIPv6World(t)
	// With the capability that userfaultfd(2) needs.
	c, gate := accepting(t, w, []string{"--cap-add", "SYS_PTRACE"}, "fill: ok", attackProgram(t, "static"), "stuck-accept", fmt.Sprint(acceptPort))
	testkit.Eventually(t, func() error {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", gate))
		if err == nil && len(threads) != 2 {
			err = fmt.Errorf("the gate has %d threads, want the serving one and the one that talks with the supervisor", len(threads))
		}
		return err
	})
	w.connectFrom(t, acceptPort)
	c.await("accept: ok")
}

const pythonAccepts = `
import socket
s = socket.socket()
s.bind(("0.0.0.0", 8000))
s.listen()
print("listens", flush=True)
for _ in range(2):
    s.accept()
print("two", flush=True)
input()
s.accept()
print("three", flush=True)
`

// acceptedTwo runs a Python program that prints "listens", and "two" when it has accepted two connections. Both
// have come by then, and the gate has nothing to do.
func acceptedTwo(t *testing.T, program string) (w *ipv6World, c *container, gate int) {
	t.Helper()
	w = newIPv6World(t)
	c, gate = accepting(t, w, nil, "listens", python(t), "-c", program)
	w.connectFrom(t, acceptPort)
	w.connectFrom(t, acceptPort)
	c.await("two")
	testkit.Settle(t, gate)
	return w, c, gate
}

// freeNumber is the lowest number under which a process has no file.
func freeNumber(pid int) (n uint64) {
	for exists(fmt.Sprintf("/proc/%d/fd/%d", pid, n)) {
		n++
	}
	return n
}

// The gate's limit of descriptors is not the program's.
func TestTranslatedAcceptAtTheGatesLimit(t *testing.T) {
	t.Parallel()
	w, c, gate := acceptedTwo(t, pythonAccepts)
	files := filesOf(t, gate)
	if _, err := c.stdin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	awaitFiles(t, gate, files+1)
	testkit.Settle(t, gate)
	// No number under the limit is free. The limit is that of poll(2), too, which fails above it.
	free := freeNumber(gate)
	limit := unix.Rlimit{Cur: free, Max: free}
	if err := unix.Prlimit(gate, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	w.connectFrom(t, acceptPort)
	c.await("three")
}

const pythonAsks = `
import socket
s = socket.socket()
s.bind(("0.0.0.0", 8000))
s.listen()
print("listens", flush=True)
for _ in range(2):
    s.accept()
s.setblocking(False)
print("two", flush=True)
for word in "first", "second":
    input()
    try:
        s.accept()
    except BlockingIOError:
        print(word, flush=True)
`

// Calls on a listener that does not wait are the gate's again once it has descriptors again.
func TestTranslatedAcceptAfterTheGatesLimit(t *testing.T) {
	t.Parallel()
	_, c, gate := acceptedTwo(t, pythonAsks)
	var before unix.Rlimit
	if err := unix.Prlimit(gate, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: freeNumber(gate) + 1, Max: before.Max} // one number is free, for the listener
	setLimit := func(limit *unix.Rlimit) {
		if err := unix.Prlimit(gate, unix.RLIMIT_NOFILE, limit, nil); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(word string) {
		if _, err := c.stdin.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
		c.await(word)
	}
	setLimit(&limit)
	ask("first")
	setLimit(&before)
	if err := c.Process.Signal(unix.SIGSTOP); err != nil { // the supervisor's
		t.Fatal(err)
	}
	defer c.Process.Signal(unix.SIGCONT) //nolint:errcheck // the test is over
	ask("second")
}

const pythonAcceptsOne = `
import socket
s = socket.socket()
s.bind(("0.0.0.0", 8000))
s.listen()
print("listens", flush=True)
input()
c, peer = s.accept()
print("accepted from", peer[0].rsplit(".", 2)[0], c.getpeername() == peer, flush=True)
`

// If only the supervisor can name the peer of a connection, the program gets the connection with the answer of the
// call. If it got the connection earlier, a signal could leave it a descriptor that it does not know of.
func TestTranslatedAcceptOfNewPeer(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	c, gate := accepting(t, w, nil, "listens", python(t), "-c", pythonAcceptsOne)
	w.connectFrom(t, acceptPort)
	testkit.Settle(t, gate)
	ofGate, ofProgram := filesOf(t, gate), filesOf(t, c.program())
	if err := c.Process.Signal(unix.SIGSTOP); err != nil { // the supervisor's
		t.Fatal(err)
	}
	defer c.Process.Signal(unix.SIGCONT) //nolint:errcheck // or it goes on already
	if _, err := c.stdin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	awaitFiles(t, gate, ofGate+1)
	testkit.Settle(t, gate)
	if n := filesOf(t, c.program()); n != ofProgram {
		t.Errorf("the program has %d descriptors while its call waits, want %d", n, ofProgram)
	}
	if err := c.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	c.await("accepted from 198.18 True")
}

const pythonListeners = `
import socket, threading
def serve(s):
    _, port = s.accept()[0].getsockname()
    print("accepted at", port, flush=True)
print("begins", flush=True)
input()
for port in range(8000, 8100):
    s = socket.socket()
    s.bind(("0.0.0.0", port))
    s.listen()
    threading.Thread(target=serve, args=[s]).start()
`

// Calls of accept(2) that wait on many listeners get their connections, in whatever order these come.
func TestTranslatedAcceptOnManyListeners(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	c, gate := accepting(t, w, nil, "begins", python(t), "-c", pythonListeners)
	testkit.Settle(t, gate)
	files := filesOf(t, gate)
	if _, err := c.stdin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	awaitFiles(t, gate, files+listeners)
	if err := w.h.WaitListen(t.Context(), "tcp6", acceptPort+listeners-1); err != nil {
		t.Fatal(err)
	}
	for port := acceptPort + listeners - 1; port >= acceptPort; port-- {
		w.connectFrom(t, port)
		c.await(fmt.Sprint("accepted at ", port))
	}
}

// awaitFiles waits until the gate has at least so many descriptors. Each call that waits has one, of the
// listener or of its connection.
func awaitFiles(t *testing.T, gate, files int) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if now := filesOf(t, gate); now < files {
			return fmt.Errorf("the gate has %d descriptors, want %d: not all calls wait", now, files)
		}
		return nil
	})
}

// filesOf is how many descriptors a process has.
func filesOf(t *testing.T, pid int) int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
