package guest

import (
	"bytes"
	"net/netip"
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
