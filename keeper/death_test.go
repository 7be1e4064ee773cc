package keeper

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const supervisorEnv = "KEEPER_TEST_SUPERVISOR" // makes the test's program a supervisor, see supervise

// supervise runs a keeper for the cgroup named in the environment until it is
// killed.
func supervise() int {
	group, path, _ := strings.Cut(os.Getenv(supervisorEnv), "|")
	kill, err := os.OpenFile(filepath.Join(group, "cgroup.kill"), os.O_WRONLY, 0)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	k, err := Start(Config{Binary: path, Kill: kill, UID: 12345, GID: 12345})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for ready := false; ; {
		fd, err := k.Socket(tcp)
		if err != nil {
			continue
		}
		unix.Close(fd)
		if !ready { // the keeper answers
			fmt.Println("ready")
			ready = true
		}
	}
}

// victim is a process in a cgroup.
type victim struct {
	ended <-chan struct{} // closed when it has ended
	in    io.Writer
	out   *bufio.Reader
}

// lives fails the test if a signal has killed the process by now: no process returns to
// its program with such a signal pending, so the answer comes from one that has none.
func (v *victim) lives(t *testing.T, otherwise string) {
	t.Helper()
	_, err := io.WriteString(v.in, "word\n")
	line, rerr := v.out.ReadString('\n')
	if err := errors.Join(err, rerr); err != nil || line != "word\n" {
		t.Errorf("%s (%v)", otherwise, err)
	}
}

// newVictim runs a process in a cgroup.
func newVictim(t *testing.T, group *os.File) *victim {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	defer theirs.Close()
	cmd.Stdout = theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	return &victim{ended, in, bufio.NewReader(out)}
}

func mustEnd(t *testing.T, what string, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(testkit.Patience):
		t.Errorf("%s still lives", what)
	}
}

func TestSupervisorKilled(t *testing.T) {
	testkit.CheckLeaks(t)
	g := newGroup(t, "")
	v := newVictim(t, open(t, g.Open))
	sup := exec.Command("/proc/self/exe")
	sup.Env = append(os.Environ(), supervisorEnv+"="+g.Path()+"|"+program(t))
	out, err := sup.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sup.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		t.Errorf("supervisor says %q (%v)", line, err)
	}
	v.lives(t, "container died before its supervisor")
	if err := sup.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = sup.Wait()
	mustEnd(t, "container", v.ended)
}

// A control socket that is closed with answers unread does not read as an end
// of file in the keeper.
func TestSupervisorGoneWithAnswersUnread(t *testing.T) {
	testkit.CheckLeaks(t)
	for _, unread := range []int{0, 1, 3} {
		g := newGroup(t, "")
		v := newVictim(t, open(t, g.Open))
		r := startRaw(t, program(t), Config{Kill: open(t, g.Killer)})
		for range unread {
			r.send(encode(request{op: opSockets, kind: tcp, count: 2}), nil)
		}
		if unread > 0 {
			r.peek()
		}
		unix.Close(r.fd)
		r.fd = -1
		mustEnd(t, fmt.Sprintf("container with %d answers unread", unread), v.ended)
		if err := r.cmd.Wait(); err != nil {
			t.Errorf("%d answers unread: keeper: %v", unread, err)
		}
	}
}

// Without cgroup.kill the keeper ends with its supervisor, and nothing else does.
func TestSupervisorGoneKillsNothing(t *testing.T) {
	testkit.CheckLeaks(t)
	g := newGroup(t, "")
	v := newVictim(t, open(t, g.Open))
	r := startRaw(t, program(t), Config{CgroupDir: open(t, g.Open)})
	unix.Close(r.fd)
	r.fd = -1
	if err := r.cmd.Wait(); err != nil {
		t.Errorf("keeper: %v", err)
	}
	v.lives(t, "the keeper killed its cgroup")
}

func TestCloseDoesNotKillTheContainer(t *testing.T) {
	testkit.CheckLeaks(t)
	g := newGroup(t, "")
	v := newVictim(t, open(t, g.Open))
	k := start(t, Config{Kill: open(t, g.Killer)})
	socket(t, k, tcp)
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	v.lives(t, "Close killed the container")
}

func isGone(t *testing.T, k *Keeper) {
	t.Helper()
	if _, err := k.Socket(tcp); !errors.Is(err, ErrGone) {
		t.Errorf("socket: %v, want %v", err, ErrGone)
	}
	if err := k.EpollAdd(0, 0, 0, 0, 0); !errors.Is(err, ErrGone) {
		t.Errorf("epoll add: %v, want %v", err, ErrGone)
	}
	if err := k.EpollDel(0, 0, 0); !errors.Is(err, ErrGone) {
		t.Errorf("epoll del: %v, want %v", err, ErrGone)
	}
}

func TestKeeperKilled(t *testing.T) {
	testkit.CheckLeaks(t)
	k := start(t, Config{})
	for range 10 {
		socket(t, k, tcp)
	}
	if err := unix.Kill(k.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	mustEnd(t, "keeper", k.Done())
	isGone(t, k)
	if err := unix.Kill(k.PID(), 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("process after Done: %v, want ESRCH", err)
	}
	for range 2 {
		if err := k.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

// A peer that takes nothing does not keep callers from leaving, those that wait
// for room to write included.
func TestFailReleasesWriters(t *testing.T) {
	testkit.CheckLeaks(t)
	p := newPeer(t)
	const calls = 2000
	results := make(chan error, calls)
	for range calls {
		go func() { results <- p.client.EpollAdd(p.fd, p.fd, 10, 0, 0) }()
	}
	p.client.stuck(t, calls)
	p.client.fail(ErrGone)
	for range calls {
		if err := p.result(results); !errors.Is(err, ErrGone) {
			t.Errorf("pending call: %v, want %v", err, ErrGone)
		}
	}
}

// A keeper that does not answer, as when a container holds it up in epoll_ctl.
func TestCloseReleasesPendingCalls(t *testing.T) {
	testkit.CheckLeaks(t)
	for name, end := range map[string]func(*Keeper) error{
		"close": (*Keeper).Close,
		"kill":  func(k *Keeper) error { return unix.Kill(k.PID(), unix.SIGKILL) },
	} {
		k := start(t, Config{})
		fd := socket(t, k, udp)
		if err := unix.Kill(k.PID(), unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		const calls = 2000 // more than the control socket has room for
		results := make(chan error, calls+2)
		for range 2 {
			go func() {
				_, err := k.Socket(tcp)
				results <- err
			}()
		}
		for range calls {
			go func() { results <- k.EpollAdd(fd, fd, 10, 0, 0) }()
		}
		k.client.stuck(t, calls)
		if err := end(k); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		limit := time.After(testkit.Patience)
		for range calls + 2 {
			select {
			case err := <-results:
				if !errors.Is(err, ErrGone) {
					t.Errorf("%s: pending call: %v, want %v", name, err, ErrGone)
				}
			case <-limit:
				t.Fatalf("%s: a pending call still waits", name)
			}
		}
		isGone(t, k)
	}
}
