package softirq

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
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

// play does what a program of a container does, on one CPU, until it is killed.
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
		for begin := time.Now(); time.Since(begin) < time.Minute; {
		}
		return nil
	case "flood":
		return flood(args[0], 5*time.Millisecond)
	case "drip":
		return flood(args[0], 200*time.Microsecond)
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

// flood sends datagrams, and rests as long as it has sent: the machine is not ours
// alone.
func flood(to string, burst time.Duration) error {
	conn, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	payload := make([]byte, 64)
	for {
		for begin := time.Now(); time.Since(begin) < burst; {
			if _, err := conn.Write(payload); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				return err
			}
		}
		time.Sleep(burst)
	}
}

// sink receives some of it; the rest overflows, which is the kernel's work too.
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

// container is a place for programs: a network, a group of the cpu controller and
// perhaps one of cgroup2.
type container struct {
	owner uint32
	ns    *testkit.Namespace
	group string
}

func newContainer(t *testing.T, m *Meter, owner uint32, ns *testkit.Namespace) *container {
	t.Helper()
	c := &container{owner, ns, testkit.NewGroups(t).Dir("cpu")}
	if err := m.CPUGroup(inodeOf(t, c.group), owner); err != nil {
		t.Fatal(err)
	}
	return c
}

// favour has the container's programs run whenever they can.
func (c *container) favour(t *testing.T) {
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
func (c *container) own(t *testing.T, m *Meter) {
	t.Helper()
	netns, index := place(t, c.ns)
	if err := m.Interface(netns, index, c.owner); err != nil {
		t.Fatal(err)
	}
}

// place is what a container's interface is known by.
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

// run runs a program of the container on a CPU, until stop or the test's end, and
// waits until it is ready.
func (c *container) run(t *testing.T, v2 *os.File, role string, cpu int, args ...string) (stop func()) {
	t.Helper()
	cmd := c.ns.Command(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s@%d", roleVar, role, cpu), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
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
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(stop)
	if err := os.WriteFile(c.group+"/cgroup.procs", fmt.Appendln(nil, cmd.Process.Pid), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("%s: %v", role, err)
	}
	return stop
}

func inodeOf(t testing.TB, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// steer has what arrives at the container received on one CPU, whoever sent it.
func (c *container) steer(t *testing.T, cpu int) {
	t.Helper()
	script := fmt.Sprintf("mount -t sysfs sysfs /sys && echo %x >/sys/class/net/eth0/queues/rx-0/rps_cpus", 1<<cpu)
	out, err := c.ns.Command(t.Context(), "unshare", "--mount", "sh", "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("steer packets to CPU %d: %v: %s", cpu, err, out)
	}
}

// packets is how many the container's interface has received.
func (c *container) packets(t *testing.T) int {
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
