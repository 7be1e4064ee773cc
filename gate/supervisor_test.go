package gate

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// killings is how many supervisors die, at whatever they are about.
const killings = 250

func TestSupervisorsAreKilled(t *testing.T) {
	testkit.CheckLeaks(t)
	c := newContainer(t)
	journal := filepath.Join(c.dir, "journal")
	g := c.start(4, nil)
	c.must(g.Release())
	c.releaseListener()
	for i := range killings {
		h := c.helper(c.top.Host, "answer", journal)
		if i%4 != 0 { // else it is killed as it starts
			h.says("adopted")
		}
		if n := rand.Uint64N(60); i%4 > 1 {
			c.moves("asked", &c.progress.asked, n)
		}
		h.kill()
	}
	// One dies with a call in hand for sure: the next one is asked about that call again.
	h := c.helper(c.top.Host, "hold", journal)
	h.says("adopted")
	h.says("holds")
	h.kill()
	h = c.helper(c.top.Host, "answer", journal)
	h.says("adopted")
	c.moves("asked", &c.progress.asked, 100)
	c.progress.stop.Store(1)
	<-c.ended // no call hangs
	h.says("ended true")
	c.must(h.cmd.Wait())
	c.allRight()
	checkJournal(t, journal)
}

// checkJournal checks that each supervisor was asked once, and that a call which
// another has been asked about says so.
func checkJournal(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	askedOf := map[uint64]int{} // by notification, who was asked last
	asks, again := 0, 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var pid int
		var id uint64
		var isAgain bool
		var call string
		if _, err := fmt.Sscan(lines.Text(), &pid, &id, &isAgain, &call); err != nil {
			t.Fatalf("journal %q: %v", lines.Text(), err)
		}
		last, before := askedOf[id]
		switch {
		case before && last == pid:
			t.Errorf("supervisor %d was asked about %d twice", pid, id)
		case before && !isAgain:
			t.Errorf("supervisor %d was asked about %d as if %d had not been", pid, id, last)
		case call != Bind.String():
			t.Errorf("asked about %s", call)
		}
		askedOf[id] = pid
		asks++
		if isAgain {
			again++
		}
	}
	t.Logf("%d calls, %d asks, %d again", len(askedOf), asks, again)
	if again == 0 {
		t.Error("no supervisor was killed with a call in hand: this has tested nothing")
	}
}

func TestWithoutSupervisor(t *testing.T) {
	c := newContainer(t)
	g := c.start(2, nil)
	if err := g.Release(); err != nil {
		t.Fatal(err)
	}
	c.releaseListener()
	c.moves("own", &c.progress.own, 1000)
	if n := c.progress.asked.Load(); n != 0 {
		t.Errorf("%d calls were answered by nobody", n)
	}
	c.allRight()
	c.must(c.programs.Kill())
	<-c.ended
	c.exits() // it has ended with its container
	c.eventually("gone", func() bool {
		_, err := Adopt(c.adoptSocket, testkit.Patience)
		return errors.Is(err, ErrGone)
	})
	if _, err := Adopt(c.adoptSocket+"-other", testkit.Patience); !errors.Is(err, ErrGone) {
		t.Errorf("adopt where no socket is: %v, want %v", err, ErrGone)
	}
}

func TestAdoptSocket(t *testing.T) {
	c := newContainer(t)
	journal := filepath.Join(c.dir, "journal")
	g := c.start(1, nil)
	st, err := os.Stat(c.adoptSocket)
	c.must(err)
	if st.Mode().Perm() != 0o600 {
		t.Errorf("the adoption socket's mode is %v", st.Mode())
	}
	c.helper(c.top.Host, "answer", journal).says("taken")
	c.must(g.Release())
	c.releaseListener()
	for _, ns := range []*testkit.Namespace{nil, c.top.Remote} {
		if ns == nil { // this process, in the namespace that the tests were started in
			if _, err := Adopt(c.adoptSocket, testkit.Patience); !errors.Is(err, ErrRefused) {
				t.Errorf("adopt from another namespace: %v, want %v", err, ErrRefused)
			}
			continue
		}
		c.helper(ns, "answer", journal).says("refused")
	}
	first := c.helper(c.top.Host, "answer", journal)
	first.says("adopted")
	c.helper(c.top.Host, "answer", journal).says("taken")
	c.moves("asked", &c.progress.asked, 10)
	first.kill()
	second := c.helper(c.top.Host, "answer", journal)
	second.says("adopted")
	c.moves("asked", &c.progress.asked, 10)
	c.allRight()
	// A gate that was killed has not ended well, and its supervisor knows. When that one
	// ends too, nobody has the listener any more, and what is called then fails.
	c.must(unix.Kill(c.gatePID(), unix.SIGKILL))
	second.says("EOF")
	c.must(c.group.Kill())
	c.helper(c.top.Host, "answer", journal).says("gone")
}

// More calls wait than the gate can keep: none is lost, and no thread is started for
// each.
func TestTableIsFull(t *testing.T) {
	c := newContainer(t)
	const threads = 1100
	g := c.start(threads, nil)
	pid := c.gatePID()
	c.must(g.Release())
	c.releaseListener()
	c.eventually("started", func() bool { return c.progress.started.Load() == threads+1 })
	mute := c.helper(c.top.Host, "mute", filepath.Join(c.dir, "muted"))
	mute.says("adopted")
	mute.says("full 1024 <nil>")
	// The watchdog starts threads. It is the process's first thread, and looks at each tick.
	begin := waits(c, pid)
	c.eventually("the watchdog has looked ten times", func() bool {
		usage, err := testkit.ProcessUsage(pid)
		c.must(err)
		if usage.Threads > 6 {
			t.Fatalf("the gate has %d threads", usage.Threads)
		}
		return waits(c, pid) >= begin+10
	})
	mute.kill()
	h := c.helper(c.top.Host, "answer", filepath.Join(c.dir, "journal"))
	h.says("adopted")
	c.moves("asked", &c.progress.asked, 3*threads)
	c.moves("own", &c.progress.own, 10)
	c.progress.stop.Store(1)
	<-c.ended
	h.says("ended true")
	c.allRight()
	checkJournal(t, filepath.Join(c.dir, "journal"))
}

// waits is how often the first thread of a process has waited.
func waits(c *container, pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/status", pid))
	c.must(err)
	_, after, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
	line, _, _ := strings.Cut(after, "\n")
	n, err := strconv.Atoi(strings.TrimSpace(line))
	c.must(err)
	return n
}

// With cgroup.kill, nothing outlives the supervisor.
func TestKill(t *testing.T) {
	c := newContainer(t)
	g := c.start(1, func(config *Config) {
		kill, err := c.group.Killer()
		c.must(err)
		t.Cleanup(func() { kill.Close() })
		config.Kill, config.AdoptSocket, config.Pool = kill, "", nil
	})
	if err := g.Release(); err == nil {
		t.Error("a gate that kills was released")
	}
	c.moves("own", &c.progress.own, 10)
	c.must(g.control.close())
	<-c.ended
	if g.EndedWell() {
		t.Error("the gate was not killed")
	}
}

func TestStartRefuses(t *testing.T) {
	c := newContainer(t)
	g := c.start(1, nil)
	c.must(g.Release())
	config := c.config(c.listener, nil)
	if _, err := Start(config); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("start at a socket that is there: %v, want %v", err, unix.EADDRINUSE)
	}
	config.AdoptSocket, config.Pool = "", nil
	if _, err := Start(config); err == nil {
		t.Error("a gate was started without an end")
	}
}

// reply answers a notification.
func reply(listener *os.File, id uint64, value int64, flags uint32) error {
	var b [24]byte // struct seccomp_notif_resp
	e := binary.NativeEndian
	e.PutUint64(b[:], id)
	e.PutUint64(b[8:], uint64(value))
	e.PutUint32(b[20:], flags)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, listener.Fd(), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&b)))
	if errno != 0 {
		return errno
	}
	return nil
}
