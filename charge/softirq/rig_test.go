package softirq

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The containers' programs are this test binary, started again.
const roleVar = "TSUGIKI_TEST_SOFTIRQ_ROLE"

func TestMain(m *testing.M) {
	role, cpu, _ := strings.Cut(os.Getenv(roleVar), "@")
	if role == "" {
		os.Exit(m.Run())
	}
	if err := play(role, cpu, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// play runs the work of a container's program, on one CPU, until it is killed.
func play(role, cpu string, args []string) error {
	n, err := strconv.Atoi(cpu)
	if err != nil {
		return err
	}
	var set unix.CPUSet
	set.Set(n)
	if err := everyThread(func(tid int) error { return unix.SchedSetaffinity(tid, &set) }); err != nil {
		return err
	}
	switch role {
	case "burn":
		fmt.Println("ready")
		for time.Now().Year() > 0 { // until it is killed
		}
		return nil
	case "send":
		return send(args[0])
	case "sink":
		return sink(args[0])
	}
	return fmt.Errorf("no role %q", role)
}

func everyThread(f func(tid int) error) error {
	tasks, err := os.ReadDir("/proc/self/task")
	for _, task := range tasks {
		tid, e := strconv.Atoi(task.Name())
		err = errors.Join(err, e, f(tid))
	}
	return err
}

// burst is how many datagrams are sent for one byte.
const burst = 100

// send sends a burst for each byte of its standard input, and prints when it is done.
func send(to string) error {
	conn, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	payload, b := make([]byte, 64), make([]byte, 1)
	for {
		if _, err := os.Stdin.Read(b); err != nil {
			return err
		}
		for range burst {
			if _, err := conn.Write(payload); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				return err
			}
		}
		fmt.Println("sent")
	}
}

// sink receives a part of the datagrams. The others overflow the queue, which is kernel work, too.
func sink(at string) error {
	conn, err := net.ListenPacket("udp", at)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	b := make([]byte, 2048)
	for {
		if _, _, err := conn.ReadFrom(b); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// container has a network, a group of the cpu controller and perhaps a v2 group for programs.
type container struct {
	owner uint32
	ns    *testkit.Namespace
	group string
}

func newContainer(t testing.TB, m *tally, owner uint32, ns *testkit.Namespace) *container {
	t.Helper()
	c := &container{owner, ns, testkit.NewGroups(t).Dir("cpu")}
	if err := m.CPUGroup(inodeOf(t, c.group), owner); err != nil {
		t.Fatal(err)
	}
	return c
}

// favour makes the container's programs run before others.
func (c *container) favour(t testing.TB) {
	t.Helper()
	file, most := c.group+"/cpu.shares", "262144"
	if _, err := os.Stat(file); err != nil {
		file, most = c.group+"/cpu.weight", "10000"
	}
	if err := os.WriteFile(file, []byte(most), 0); err != nil {
		t.Fatal(err)
	}
}

// own registers the container's interface.
func (c *container) own(t testing.TB, m *tally) {
	t.Helper()
	netns, index := place(t, c.ns)
	if err := m.Interface(netns, index, c.owner); err != nil {
		t.Fatal(err)
	}
}

// place returns the numbers that identify a container's interface.
func place(t testing.TB, ns *testkit.Namespace) (netns uint64, index int) {
	t.Helper()
	err := ns.Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			index = link.Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return inodeOf(t, ns.Path()), index
}

// program is a program of a container.
type program struct {
	stop func()
	in   io.Writer
	out  *bufio.Reader
}

// hear waits for a line of the program.
func (p *program) hear(t testing.TB, want string) {
	t.Helper()
	if line, err := p.out.ReadString('\n'); err != nil || line != want+"\n" {
		t.Fatalf("a program says %q (%v), want %q", line, err, want)
	}
}

// send makes the program send a burst, and waits until it has.
func (p *program) send(t testing.TB) {
	t.Helper()
	if _, err := p.in.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	p.hear(t, "sent")
}

// run runs a program of the container on a CPU, until stop or the test's end, and
// waits until it is ready.
func (c *container) run(t testing.TB, v2 *os.File, role string, cpu int, args ...string) *program {
	t.Helper()
	cmd := c.ns.Command(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s@%d", roleVar, role, cpu), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	out, err1 := cmd.StdoutPipe()
	in, err2 := cmd.StdinPipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if v2 != nil {
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(v2.Fd())
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &program{in: in, out: bufio.NewReader(out), stop: sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})}
	t.Cleanup(p.stop)
	if err := os.WriteFile(c.group+"/cgroup.procs", fmt.Appendln(nil, cmd.Process.Pid), 0); err != nil {
		t.Fatal(err)
	}
	p.hear(t, "ready")
	return p
}

func inodeOf(t testing.TB, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// steer makes one CPU receive all packets of the container, whoever sent them.
func (c *container) steer(t testing.TB, cpu int) {
	t.Helper()
	script := fmt.Sprintf("mount -t sysfs sysfs /sys && echo %x >/sys/class/net/eth0/queues/rx-0/rps_cpus", 1<<cpu)
	out, err := c.ns.Command(t.Context(), "unshare", "--mount", "sh", "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("steer packets to CPU %d: %v: %s", cpu, err, out)
	}
}

// packets returns the number of packets that the container's interface has received.
func (c *container) packets(t testing.TB) int {
	t.Helper()
	out, err := c.ns.Command(t.Context(), "cat", "/proc/net/dev").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if name, rest, _ := strings.Cut(strings.TrimSpace(line), ":"); name == "eth0" {
			n, err := strconv.Atoi(strings.Fields(rest)[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no eth0 in %s", out)
	return 0
}
