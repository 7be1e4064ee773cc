package guest

import (
	"bytes"
	"errors"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
)

func TestNames(t *testing.T) {
	for _, s := range []string{"192.0.2.1:80", "0.0.0.0:0", "[2001:db8::1]:65535", "[::ffff:192.0.2.1]:1", "[::]:0"} {
		want := netip.MustParseAddrPort(s)
		if got, is := sockaddr.Parse(sockaddr.Bytes(want)); !is || got != want {
			t.Errorf("%s became %s, %v", want, got, is)
		}
	}
	for name, b := range map[string][]byte{
		"empty": nil, "short IPv4": sockaddr.Bytes(netip.MustParseAddrPort("192.0.2.1:80"))[:sockaddr.Min4-1],
		"short IPv6": sockaddr.Bytes(netip.MustParseAddrPort("[::1]:80"))[:sockaddr.Min6-1], "unix": append([]byte{unix.AF_UNIX, 0}, make([]byte, 100)...),
	} {
		if got, is := sockaddr.Parse(b); is {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func FuzzName(f *testing.F) {
	f.Add(sockaddr.Bytes(netip.MustParseAddrPort("192.0.2.1:80")))
	f.Add(sockaddr.Bytes(netip.MustParseAddrPort("[2001:db8::1]:80")))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, is := sockaddr.Parse(b)
		if again := []byte(nil); is {
			if again = sockaddr.Bytes(name); !bytes.Equal(again[:4], b[:4]) {
				t.Errorf("% x became % x", b, again)
			}
		}
	})
}

// TestRegister enters a file into an epoll under a number of a program's. When that is done, nobody but the
// epoll has got anything: a descriptor that is closed then is the last of its file.
func TestRegister(t *testing.T) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(epoll)
	for i := range 100 {
		var replaced, file [2]int
		if err := errors.Join(unix.Pipe2(replaced[:], unix.O_CLOEXEC|unix.O_NONBLOCK), unix.Pipe2(file[:], unix.O_CLOEXEC|unix.O_NONBLOCK)); err != nil {
			t.Fatal(err)
		}
		c := &caller{watches: []watched{
			{epoll, unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}, 1}, {epoll, unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}, 900},
		}}
		if err := c.register(file[0]); err != nil {
			t.Fatal(err)
		}
		unix.Close(replaced[1])
		if n, err := unix.Read(replaced[0], make([]byte, 1)); n != 0 || err != nil {
			t.Errorf("round %d: somebody has a file that is closed: %d, %v", i, n, err)
		}
		if _, err := unix.Write(file[1], []byte{0}); err != nil {
			t.Fatal(err)
		}
		var events [4]unix.EpollEvent
		n, err := unix.EpollWait(epoll, events[:], 0)
		if err != nil || n != 2 || events[0].Fd != int32(i) || events[1].Fd != int32(i) {
			t.Errorf("round %d: events %v, %v", i, events[:max(n, 0)], err)
		}
		unix.Close(file[0])
		if n, err := unix.EpollWait(epoll, events[:], 0); n != 0 {
			t.Errorf("round %d: somebody has the file: %v, %v", i, events[:max(n, 0)], err)
		}
		unix.Close(file[1])
		unix.Close(replaced[0])
	}
}

// TestFilter runs the filter on calls, as the kernel does.
func TestFilter(t *testing.T) {
	const arch = archToken
	for _, c := range []struct {
		name       string
		nr, arch   uint32
		level, opt uint32
		want       uint32
	}{
		{"connect", unix.SYS_CONNECT, arch, 0, 0, unix.SECCOMP_RET_USER_NOTIF},
		{"accept4", unix.SYS_ACCEPT4, arch, 0, 0, unix.SECCOMP_RET_USER_NOTIF},
		{"read", unix.SYS_READ, arch, 0, 0, unix.SECCOMP_RET_ALLOW},
		{"sendto", unix.SYS_SENDTO, arch, 0, 0, unix.SECCOMP_RET_ALLOW},
		{"TCP_NODELAY", unix.SYS_SETSOCKOPT, arch, unix.SOL_TCP, unix.TCP_NODELAY, unix.SECCOMP_RET_USER_NOTIF},
		{"IP_TOS", unix.SYS_GETSOCKOPT, arch, unix.SOL_IP, unix.IP_TOS, unix.SECCOMP_RET_USER_NOTIF},
		{"SO_ERROR", unix.SYS_GETSOCKOPT, arch, unix.SOL_SOCKET, unix.SO_ERROR, unix.SECCOMP_RET_USER_NOTIF},
		{"set SO_RCVBUF", unix.SYS_SETSOCKOPT, arch, unix.SOL_SOCKET, unix.SO_RCVBUF, unix.SECCOMP_RET_ALLOW},
		{"get SO_TYPE", unix.SYS_GETSOCKOPT, arch, unix.SOL_SOCKET, unix.SO_TYPE, unix.SECCOMP_RET_ALLOW},
		{"another level", unix.SYS_SETSOCKOPT, arch, unix.SOL_UDP, unix.SO_ERROR, unix.SECCOMP_RET_ALLOW},
		{"io_uring", ioUringSetup, arch, 0, 0, unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{"another ABI", unix.SYS_CONNECT, unix.AUDIT_ARCH_I386, 0, 0, unix.SECCOMP_RET_ALLOW},
	} {
		data := map[uint32]uint32{offNumber: c.nr, offArch: c.arch, offArgs + 8: c.level, offArgs + 16: c.opt}
		if got := execute(t, filter(), data); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
}

// execute runs a program of loads, equal jumps and returns.
func execute(t *testing.T, code []unix.SockFilter, data map[uint32]uint32) uint32 {
	t.Helper()
	var word uint32
	for pc := 0; pc < len(code); pc++ {
		switch i := code[pc]; i.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			word = data[i.K]
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			if word == i.K {
				pc += int(i.Jt)
			} else {
				pc += int(i.Jf)
			}
		case unix.BPF_RET | unix.BPF_K:
			return i.K
		default:
			t.Fatalf("instruction %#x", i.Code)
		}
	}
	t.Fatal("the program has no end")
	return 0
}

// TestBlocks asks whether a listener's calls wait while calls on it are made that do not, as a second worker's
// accept(2) is.
func TestBlocks(t *testing.T) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var s supervisor
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				_ = s.withoutWaiting(fd, func() error {
					runtime.Gosched()
					return nil
				})
			}
		}
	}()
	for range 10000 {
		if waits, err := s.blocks(fd); !waits || err != nil {
			t.Errorf("its calls wait: %v, %v", waits, err)
			break
		}
	}
	close(stop)
	<-ended
}
