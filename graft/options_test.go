package graft

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/keeper"
)

// A program that has every capability in its own user namespace sets options there that
// it may not set on the host. A swap does not set them for it, though we may.
func TestCopiesNoPrivilege(t *testing.T) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s)
	find := func(name int) option {
		i := slices.IndexFunc(options, func(o option) bool { return o.level == unix.SOL_SOCKET && o.name == name })
		return options[i]
	}
	value := func(v uint32) []byte { return native.AppendUint32(nil, v) }
	for _, tt := range []struct {
		name   int
		value  uint32
		want   error
		getsIt int
	}{
		{unix.SO_PRIORITY, 3, nil, 3},
		{unix.SO_PRIORITY, 15, unix.EPERM, 3},
	} {
		if err := find(tt.name).set(s, value(tt.value)); !errors.Is(err, tt.want) {
			t.Errorf("set option %d to %d: %v, want %v", tt.name, tt.value, err, tt.want)
		}
		if got, err := unix.GetsockoptInt(s, unix.SOL_SOCKET, tt.name); got != tt.getsIt || err != nil {
			t.Errorf("option %d is %d, %v; want %d", tt.name, got, err, tt.getsIt)
		}
	}
}

// sameAsOthers are options that are not copied: those of 32-bit times, which are the same as others, and
// those that have no effect on a socket of TCP or UDP.
var sameAsOthers = map[int][]int{
	unix.SOL_SOCKET: {unix.SO_RCVTIMEO_NEW, unix.SO_SNDTIMEO_NEW, unix.SO_NOFCS},
	unix.SOL_IPV6:   {unix.IPV6_ROUTER_ALERT_ISOLATE},
}

// setAny sets an option to another value than it has, if the kernel has some that it takes without
// a privilege. It returns the new value.
func setAny(file, level, name int) (value []byte) {
	read := func() []byte {
		b := make([]byte, 64)
		n, err := getsockopt(file, level, name, b)
		if err != nil {
			return nil
		}
		return b[:n]
	}
	before := read()
	if before == nil {
		return nil
	}
	size := len(before)
	if level == unix.SOL_TCP && name == unix.TCP_FASTOPEN_KEY {
		size = 32
	}
	for _, v := range []uint32{1, 2, 3, 4, 5, 16, 64, 256, 1024, 1500, 5000, 30000, 100000, 0} {
		b := make([]byte, size)
		copy(b, before)
		switch {
		case level == unix.SOL_TCP && name == unix.TCP_CONGESTION:
			copy(b, "reno\x00")
		case size >= 4:
			native.PutUint32(b, v)
		}
		if level == unix.SOL_SOCKET && name == unix.SO_LINGER {
			native.PutUint32(b[4:], 9)
		}
		if setsockopt(file, level, name, b) == nil && !bytes.Equal(read(), before) {
			return read()
		}
	}
	return nil
}

// Each option that the kernel reports, and that a program may set, is that of the new socket. Those
// that host sockets are refused are the exception.
func TestAllOptionsGoAlong(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	w := newWorld(t, host, own, false, everywhere...)
	refused := refusedOptions(t)
	refused[unix.SOL_UDP] = append(refused[unix.SOL_UDP], 100) // UDP_ENCAP
	for _, kind := range []keeper.Kind{{Family: ip4, Type: tcp}, {Family: ip6, Type: tcp}, {Family: ip4, Type: udp}, {Family: ip6, Type: udp}} {
		copied := 0
		for _, level := range []int{unix.SOL_SOCKET, unix.SOL_IP, unix.SOL_IPV6, unix.SOL_TCP, unix.SOL_UDP} {
			if level == unix.SOL_IPV6 && kind.Family == ip4 {
				continue
			}
			for name := 1; name < 128; name++ {
				if slices.Contains(refused[level], name) || slices.Contains(sameAsOthers[level], name) {
					continue
				}
				if kind.Type == tcp && slices.ContainsFunc(options, func(o option) bool { return o.level == level && o.name == name && o.typ == udp }) {
					continue // without effect on TCP
				}
				if copies(t, w, kind, level, name) {
					copied++
				}
			}
		}
		if copied < 30 {
			t.Errorf("of a socket %+v, only %d options were tried", kind, copied)
		}
	}
}

// copies tells whether a program can set an option. Then a swap has to copy it.
func copies(t *testing.T, w *world, kind keeper.Kind, level, name int) bool {
	t.Helper()
	from, err := w.own.Socket(kind)
	must(t, err)
	defer unix.Close(from)
	to, err := w.host.Socket(kind)
	must(t, err)
	defer unix.Close(to)
	var want []byte
	must(t, withoutCapabilities(func() { want = setAny(from, level, name) }))
	if want == nil {
		return false
	}
	s, err := inspect(from)
	must(t, err)
	must(t, w.begin().copyAllOptions(s, to))
	got := make([]byte, 64)
	n, err := getsockopt(to, level, name, got)
	if err != nil || !bytes.Equal(got[:n], want) {
		t.Errorf("option %d of level %d of a socket %+v is %v, %v; want %v", name, level, kind, got[:n], err, want)
	}
	return true
}

// A program that has locked the filter of its socket gets another with the same.
func TestLockedFilterGoesAlong(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	w := newWorld(t, host, own, false, everywhere...)
	from, to := w.files(own, host)
	filter := []unix.SockFilter{{Code: 0x80}, {Code: 0x16}} // passes everything
	must(t, unix.SetsockoptSockFprog(from, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 2, Filter: &filter[0]}))
	must(t, unix.SetsockoptInt(from, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1))
	s, err := inspect(from)
	must(t, err)
	must(t, w.begin().copyAllOptions(s, to))
	code := make([]unix.SockFilter, 2)
	if n, err := getFilter(to, code); n != 2 || err != nil || !slices.Equal(code, filter) {
		t.Errorf("filter %v, %v", code[:n], err)
	}
	if err := unix.SetsockoptInt(to, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("the filter can be removed: %v", err)
	}
	must(t, w.begin().copyAllOptions(s, to)) // again
}

// files makes a TCP socket in each of two places.
func (w *world) files(from, to *fakePlace) (int, int) {
	w.t.Helper()
	var files [2]int
	for i, p := range []*fakePlace{from, to} {
		file, err := p.Socket(keeper.Kind{Family: ip4, Type: tcp})
		must(w.t, err)
		w.t.Cleanup(func() { unix.Close(file) })
		files[i] = file
	}
	return files[0], files[1]
}

// A connection gets those options of its listener that have an effect on connections.
func TestConnectionGetsOptions(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	w := newWorld(t, host, own, false, everywhere...)
	listener, connection := w.files(host, own)
	for _, o := range []struct{ level, name int }{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE}, {unix.SOL_TCP, unix.TCP_NODELAY}, {unix.SOL_SOCKET, unix.SO_BROADCAST},
	} {
		must(t, unix.SetsockoptInt(listener, o.level, o.name, 1))
	}
	s, err := inspect(listener)
	must(t, err)
	must(t, w.begin().copyOptions(s, connection))
	for name, want := range map[int]int{unix.SO_KEEPALIVE: 1, unix.SO_BROADCAST: 0} {
		if got, err := unix.GetsockoptInt(connection, unix.SOL_SOCKET, name); got != want || err != nil {
			t.Errorf("option %d is %d, %v; want %d", name, got, err, want)
		}
	}
	if got, err := unix.GetsockoptInt(connection, unix.SOL_TCP, unix.TCP_NODELAY); got == 0 || err != nil {
		t.Errorf("TCP_NODELAY is %d, %v", got, err)
	}
}

// What the administrator changes is no option that a program has set.
func TestDefaultsAreReadAgain(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	w := newWorld(t, host, own, false, everywhere...)
	now := time.Now()
	w.clock = func() time.Time { return now }
	algorithm := func() string {
		from, to := w.files(own, host)
		s, err := inspect(from)
		must(t, err)
		must(t, w.begin().copyAllOptions(s, to))
		name, err := unix.GetsockoptString(to, unix.SOL_TCP, unix.TCP_CONGESTION)
		must(t, err)
		return strings.TrimRight(name, "\x00")
	}
	before := algorithm()
	if before == "reno" {
		t.Skip("the host's TCP has no other congestion control")
	}
	must(t, own.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0)
	}))
	now = now.Add(defaultsAge)
	if got := algorithm(); got != before {
		t.Errorf("a socket of the host has the container's default %s, not the host's %s", got, before)
	}
}

// The size of a buffer is not fixed in a copy of a socket that has it from a sysctl, or whose program
// has let it change again.
func TestBuffersStayFree(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	w := newWorld(t, host, own, false, everywhere...)
	now := time.Now()
	w.clock = func() time.Time { return now }
	for _, change := range []func(listener int) error{
		func(int) error {
			now = now.Add(defaultsAge)
			return host.Do(func() error {
				return errors.Join(os.WriteFile("/proc/sys/net/ipv4/tcp_rmem", []byte("4096 100000 200000"), 0),
					os.WriteFile("/proc/sys/net/ipv4/tcp_wmem", []byte("4096 100000 200000"), 0))
			})
		},
		func(listener int) error {
			return errors.Join(unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_RCVBUF, 60000),
				unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_BUF_LOCK, 0))
		},
	} {
		listener, connection := w.files(host, own)
		must(t, change(listener))
		s, err := inspect(listener)
		must(t, err)
		must(t, w.begin().copyOptions(s, connection))
		if locked, err := unix.GetsockoptInt(connection, unix.SOL_SOCKET, unix.SO_BUF_LOCK); locked != 0 || err != nil {
			t.Errorf("SO_BUF_LOCK is %d, %v", locked, err)
		}
	}
}
