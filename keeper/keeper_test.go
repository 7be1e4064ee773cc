package keeper

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

func TestSocketsAreInTheNamespace(t *testing.T) {
	testkit.CheckLeaks(t)
	ns := newNetns(t)
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	for _, test := range []struct {
		ns   *netns.NS
		want uint64
	}{{nil, here.Cookie()}, {ns, ns.Cookie()}} {
		k := start(t, Config{Netns: test.ns})
		for range 10 { // more than the first batches
			got, err := unix.GetsockoptUint64(socket(t, k, tcp), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
			if err != nil || got != test.want {
				t.Errorf("namespace %d (%v), want %d", got, err, test.want)
			}
		}
	}
}

func TestSocketsAreWhatWasAskedFor(t *testing.T) {
	testkit.CheckLeaks(t)
	k := start(t, Config{})
	for _, kind := range []Kind{
		tcp, udp,
		{unix.AF_INET6, unix.SOCK_STREAM, 0},
		{unix.AF_INET6, unix.SOCK_DGRAM | unix.SOCK_NONBLOCK, unix.IPPROTO_UDP},
		{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC, unix.IPPROTO_TCP},
		{unix.AF_UNIX, unix.SOCK_SEQPACKET, 0},
		{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE},
	} {
		for range 5 {
			fd := socket(t, k, kind)
			family, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
			typ, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
			flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
			fdflags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			if want := kind.Type & unix.SOCK_NONBLOCK; flags&unix.O_NONBLOCK != want {
				t.Errorf("%v: flags %#x", kind, flags)
			}
			if family != kind.Family || typ != kind.Type&0xf || fdflags != unix.FD_CLOEXEC {
				t.Errorf("%v: family %d, type %d, descriptor flags %d", kind, family, typ, fdflags)
			}
		}
	}
}

// cgroupOf gives the id of the cgroup that the kernel files a listening
// socket under. It runs in the socket's namespace.
func cgroupOf(port uint16) (uint64, error) {
	const (
		inetDiagReq  = 56 // struct inet_diag_req_v2
		inetDiagMsg  = 72 // struct inet_diag_msg
		diagCgroupID = 21 // INET_DIAG_CGROUP_ID
	)
	req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	body := make([]byte, inetDiagReq)
	body[0], body[1] = unix.AF_INET, unix.IPPROTO_TCP
	body[4], body[5] = 0xff, 0xff // any state
	req.AddRawData(body)
	msgs, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
	if err != nil {
		return 0, fmt.Errorf("dump sockets: %w", err)
	}
	for _, m := range msgs {
		if len(m) < inetDiagMsg || uint16(m[4])<<8|uint16(m[5]) != port {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[inetDiagMsg:])
		if err != nil {
			return 0, err
		}
		for _, a := range attrs {
			if a.Attr.Type == diagCgroupID {
				return nl.NativeEndian().Uint64(a.Value), nil
			}
		}
		return 0, errors.New("no INET_DIAG_CGROUP_ID")
	}
	return 0, fmt.Errorf("no socket at port %d", port)
}

func TestSocketsAreInTheCgroup(t *testing.T) {
	testkit.CheckLeaks(t)
	g := newGroup(t, "")
	dir := open(t, g.Open)
	ns := newNetns(t)
	k := start(t, Config{Netns: ns, CgroupDir: dir})

	procs, err := os.ReadFile(filepath.Join(g.Path(), "cgroup.procs"))
	if err != nil || strings.TrimSpace(string(procs)) != strconv.Itoa(k.PID()) {
		t.Errorf("processes in the cgroup: %q (%v), want %d", procs, err, k.PID())
	}
	const port = 8080
	fd := socket(t, k, tcp)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	err = ns.Do(func() error {
		got, err := cgroupOf(port)
		if err == nil && got != st.Ino {
			err = fmt.Errorf("socket is in cgroup %d, want %d", got, st.Ino)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func procStatus(t *testing.T, pid int) map[string]string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		fields[key] = strings.Join(strings.Fields(value), " ")
	}
	return fields
}

func TestPrivilegesAreGone(t *testing.T) {
	testkit.CheckLeaks(t)
	needRoot(t)
	for _, id := range []struct{ uid, gid int }{{0, 0}, {12345, 54321}, {0, 54321}} {
		k := start(t, Config{UID: id.uid, GID: id.gid})
		uid, gid := strconv.Itoa(id.uid), strconv.Itoa(id.gid)
		const none = "0000000000000000"
		want := map[string]string{
			"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none,
			"NoNewPrivs": "1", "Threads": "1",
			"Uid": strings.Join([]string{uid, uid, uid, uid}, " "),
			"Gid": strings.Join([]string{gid, gid, gid, gid}, " "),
		}
		if id.uid != 0 || id.gid != 0 {
			want["Groups"] = ""
		}
		got := procStatus(t, k.PID())
		for key := range got {
			if _, ok := want[key]; !ok {
				delete(got, key)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("ids %v (-want +got):\n%s", id, diff)
		}
		if sid, err := unix.Getsid(k.PID()); err != nil || sid != k.PID() {
			t.Errorf("ids %v: keeper is in session %d (%v), want its own", id, sid, err)
		}
		var st unix.Stat_t
		// The files of a process that cannot be traced are root's.
		if err := unix.Stat(fmt.Sprintf("/proc/%d/environ", k.PID()), &st); err != nil || st.Uid != 0 || st.Gid != 0 {
			t.Errorf("ids %v: dumpable: /proc files are %d:%d's (%v)", id, st.Uid, st.Gid, err)
		}
		if err := unix.Fstat(socket(t, k, tcp), &st); err != nil || int(st.Uid) != id.uid || int(st.Gid) != id.gid {
			t.Errorf("ids %v: socket is %d:%d's (%v)", id, st.Uid, st.Gid, err)
		}
		var refused *SocketError
		if _, err := k.Socket(Kind{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}); !errors.As(err, &refused) || refused.Errno != unix.EPERM {
			t.Errorf("ids %v: raw socket: %v, want EPERM", id, err)
		}
	}
}

func TestGroupsAreGone(t *testing.T) {
	testkit.CheckLeaks(t)
	needRoot(t)
	r := startRaw(t, program(t), Config{UID: 12345, GID: 54321}, func(cmd *exec.Cmd) {
		cmd.SysProcAttr.Credential = &syscall.Credential{Groups: []uint32{4242}}
	})
	if got := procStatus(t, r.cmd.Process.Pid)["Groups"]; got != "" {
		t.Errorf("keeper is in groups %s", got)
	}
}

func TestFileLimitIsRaised(t *testing.T) {
	testkit.CheckLeaks(t)
	script := filepath.Join(t.TempDir(), Program)
	text := "#!/bin/sh\nulimit -S -n 50 && exec " + program(t) + " \"$@\"\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	k := start(t, Config{Binary: script})
	var limit unix.Rlimit
	if err := unix.Prlimit(k.PID(), unix.RLIMIT_NOFILE, nil, &limit); err != nil || limit.Cur != limit.Max {
		t.Errorf("keeper's limit is %+v (%v), want soft = hard", limit, err)
	}
}

func TestMemory(t *testing.T) {
	testkit.CheckLeaks(t)
	k := start(t, Config{})
	for range 200 {
		fd, err := k.Socket(tcp)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", k.PID()))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`Rss:\s+(\d+) kB`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("no Rss in %s", b)
	}
	if rss, _ := strconv.Atoi(string(m[1])); rss >= 300 {
		t.Errorf("resident set is %d KiB, limit 300", rss)
	} else {
		t.Logf("resident set is %d KiB", rss)
	}
}

func TestKeeperHoldsNothing(t *testing.T) {
	testkit.CheckLeaks(t)
	g := newGroup(t, "")
	for _, test := range []struct {
		kill *os.File
		want int
	}{{nil, 2}, {open(t, g.Killer), 3}} {
		k := start(t, Config{Kill: test.kill})
		for range 20 {
			socket(t, k, tcp)
		}
		testkit.Eventually(t, func() error { // a batch may be under way
			files, err := testkit.OpenFiles(k.PID())
			if err == nil && len(files) != test.want {
				err = fmt.Errorf("keeper's files are %v, want %d", files, test.want)
			}
			return err
		})
	}
}

func TestSignalsAreIgnored(t *testing.T) {
	testkit.CheckLeaks(t)
	k := start(t, Config{})
	for sig := unix.Signal(1); sig <= 64; sig++ {
		switch sig {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL,
			unix.SIGABRT, unix.SIGSYS, unix.SIGTRAP, 32, 33, 34: // the last three are the C library's own
			continue
		}
		if err := unix.Kill(k.PID(), sig); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		socket(t, k, tcp)
	}
}

func TestManyAtOnce(t *testing.T) {
	testkit.CheckLeaks(t)
	k := start(t, Config{})
	kinds := []Kind{tcp, udp, {unix.AF_INET6, unix.SOCK_STREAM, 0}, {unix.AF_UNIX, unix.SOCK_STREAM, 0}}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			kind := kinds[i%len(kinds)]
			var mine []int
			for range 20 {
				fd, err := k.Socket(kind)
				if err != nil {
					t.Error(err)
					break
				}
				// Were it handed out twice, somebody else would name it too.
				name := strconv.Itoa(i*1000 + len(mine))
				if kind.Family == unix.AF_UNIX {
					if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@keeper-test-" + strconv.Itoa(os.Getpid()) + name}); err != nil {
						t.Error(err)
					}
				}
				if f, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); f != kind.Family {
					t.Errorf("family %d, want %d", f, kind.Family)
				}
				mine = append(mine, fd)
			}
			closeAll(mine)
		}()
	}
	wg.Wait()
}

func TestStartTellsWhatFailed(t *testing.T) {
	testkit.CheckLeaks(t)
	g := newGroup(t, "")
	readOnly := open(t, func() (*os.File, error) { return os.Open(filepath.Join(g.Path(), "cgroup.procs")) })
	_, err := Start(Config{Binary: program(t), Kill: readOnly})
	if err == nil || !strings.Contains(err.Error(), "use cgroup.kill") {
		t.Errorf("kill file that cannot be written: %v", err)
	}
	_, err = Start(Config{Binary: program(t), UID: -1})
	if err == nil || !strings.Contains(err.Error(), "usage") {
		t.Errorf("user -1: %v", err)
	}
}

func TestNoProgram(t *testing.T) {
	testkit.CheckLeaks(t)
	if _, err := Start(Config{Binary: "/nonexistent/keeper"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("binary that is not there: %v", err)
	}
	// A program that is none of ours ends without a greeting.
	if _, err := Start(Config{Binary: "/bin/true"}); err == nil {
		t.Error("/bin/true was taken for a keeper")
	}
}

// An errno of the kernel is told with the call that it refuses, and is found in the error.
func TestErrorsOfTheKernel(t *testing.T) {
	for want, err := range map[string]error{
		"make socket: address family not supported by protocol": &SocketError{unix.EAFNOSUPPORT},
		"epoll add: file exists":                                &EpollError{"add", unix.EEXIST},
	} {
		var errno unix.Errno
		if err.Error() != want || !errors.As(err, &errno) {
			t.Errorf("%v (%v), want %q", err, errno, want)
		}
	}
}

// The number of the greeting is given to no request, also after four thousand million of them.
func TestTagsStartAgain(t *testing.T) {
	c := &client{tag: math.MaxUint32 - 1}
	for _, want := range []uint32{math.MaxUint32, 1, 2} {
		if got := c.nextTag(); got != want {
			t.Errorf("tag %d, want %d", got, want)
		}
	}
}
