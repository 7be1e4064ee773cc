package netns

import (
	"encoding/binary"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

func TestSockets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var want, got []Socket
	err = ns.Do(func() error {
		for _, s := range []struct {
			at   string
			udp  bool
			only int
		}{
			{at: "127.0.0.1:80"},
			{at: "0.0.0.0:81"},
			{at: "[::]:82"},
			{at: "[::]:83", only: 1},
			{at: "[::1]:84"},
			{at: "127.0.0.1:80", udp: true},
			{at: "[::]:82", udp: true},
			{at: "[::]:83", udp: true, only: 1},
			{at: "[::ffff:127.0.0.1]:85", udp: true},
		} {
			at := netip.MustParseAddrPort(s.at)
			file, err := listenAt(at, s.udp, s.only)
			if err != nil {
				return err
			}
			defer unix.Close(file)
			protocol := unix.IPPROTO_TCP
			if s.udp {
				protocol = unix.IPPROTO_UDP
			}
			family := unix.AF_INET6
			if at.Addr().Is4() {
				family = unix.AF_INET
			}
			want = append(want, Socket{Protocol: protocol, Family: family, At: netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), V6Only: s.only != 0})
		}
		got, err = ns.Sockets()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if got[i].Cgroup == 0 || got[i].Cgroup != got[0].Cgroup {
			t.Errorf("%v: all are of one cgroup", got[i])
		}
		// Of others than the wildcard it says nothing.
		got[i].V6Only = got[i].V6Only && got[i].At.Addr().IsUnspecified()
	}
	sort := cmpopts.SortSlices(func(a, b Socket) bool {
		return a.Protocol < b.Protocol || a.Protocol == b.Protocol && a.At.Port() < b.At.Port()
	})
	if diff := cmp.Diff(want, got, sort, cmpopts.IgnoreFields(Socket{}, "Cgroup"), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func listenAt(at netip.AddrPort, udp bool, only int) (int, error) {
	family, typ := unix.AF_INET6, unix.SOCK_STREAM
	var sa unix.Sockaddr = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	if at.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	if udp {
		typ = unix.SOCK_DGRAM
	}
	file, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC, 0)
	if err == nil && family == unix.AF_INET6 {
		err = unix.SetsockoptInt(file, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only)
	}
	if err == nil {
		err = unix.Bind(file, sa)
	}
	if err == nil && !udp {
		err = unix.Listen(file, 1)
	}
	return file, err
}

// An answer to another question, or to none, is no answer; nor is one that others sent or that is cut short.
func TestAnswerOfSockDiag(t *testing.T) {
	kernel := &unix.SockaddrNetlink{}
	d := &diag{seq: 7}
	good := make([]byte, unix.SizeofNlMsghdr+4)
	binary.NativeEndian.PutUint32(good, uint32(len(good)))
	binary.NativeEndian.PutUint16(good[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint32(good[8:], d.seq)
	if got, err := d.check(good, kernel); err != nil || len(got) != 4 {
		t.Errorf("%v, %v", got, err)
	}
	changed := func(at int, to byte) []byte {
		b := slices.Clone(good)
		b[at] = to
		return b
	}
	for what, answer := range map[string][]byte{"none": nil, "earlier": changed(8, 6), "cut": changed(0, 40), "short": changed(0, 3), "kind": changed(4, unix.NLMSG_DONE)} {
		if got, err := d.check(answer, kernel); err == nil {
			t.Errorf("%s: %v", what, got)
		}
	}
	if got, err := d.check(good, &unix.SockaddrNetlink{Pid: 3}); err == nil {
		t.Errorf("of a process: %v", got)
	}
}

// ListenerAt finds who takes a connection to an address, and no socket that only has the port.
func TestListenerAt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.AddToLoopback(netip.MustParseAddr("198.51.100.1")); err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() error {
		for _, at := range []string{"127.0.0.1:80", "[::]:81", "[::ffff:198.51.100.1]:82", "0.0.0.0:83"} {
			file, err := listenAt(netip.MustParseAddrPort(at), false, 0)
			if err != nil {
				return err
			}
			defer unix.Close(file)
		}
		bound, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(bound, &unix.SockaddrInet4{Port: 84})
		}
		if err != nil {
			return err
		}
		defer unix.Close(bound)
		for at, want := range map[string]string{ // where the listener is bound; empty: there is none
			"127.0.0.1:80": "127.0.0.1:80", "198.51.100.1:80": "", "[::1]:81": "[::]:81", "127.0.0.1:81": "[::]:81",
			"198.51.100.1:82": "198.51.100.1:82", "127.0.0.1:82": "", "127.0.0.1:83": "0.0.0.0:83", "0.0.0.0:83": "0.0.0.0:83", "[::1]:83": "",
			"127.0.0.1:84": "", "127.0.0.1:85": "",
		} {
			got, found, err := ns.ListenerAt(netip.MustParseAddrPort(at))
			if err != nil || found != (want != "") || found && (got.At.String() != want || got.Cgroup == 0) {
				t.Errorf("%s: %+v, %v, %v, want %s", at, got, found, err, want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestParseSocket(t *testing.T) {
	good := make([]byte, diagMessageSize)
	good[0] = unix.AF_INET
	copy(good[4:], []byte{0x1f, 0x90, 0, 0, 127, 0, 0, 1})
	copy(good[24:], []byte{198, 51, 100, 1})
	good = append(good, 12, 0, 21, 0, 7, 0, 0, 0, 0, 0, 0, 0) // INET_DIAG_CGROUP_ID
	got, err := parseSocket(unix.IPPROTO_TCP, good)
	want := Socket{Protocol: unix.IPPROTO_TCP, Family: unix.AF_INET, At: netip.MustParseAddrPort("127.0.0.1:8080"), Cgroup: 7}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	good[7] = 80 // the peer's port
	want.Peer = netip.MustParseAddrPort("198.51.100.1:80")
	if got, err := parseSocket(unix.IPPROTO_TCP, good); err != nil || got != want {
		t.Errorf("connected: %+v, %v", got, err)
	}
	for n := range len(good) {
		s, err := parseSocket(unix.IPPROTO_TCP, slices.Clone(good[:n]))
		if n < diagMessageSize && err == nil || s.Cgroup != 0 {
			t.Errorf("of %d bytes: %+v, %v", n, s, err)
		}
	}
}

// Peers finds connections of TCP and UDP, of both families, and of one cgroup alone.
func TestPeers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(func() error {
		for _, to := range []string{"127.0.0.1:80", "127.0.0.2:80", "[::1]:80"} {
			listener, err := net.Listen("tcp", to)
			if err != nil {
				return err
			}
			defer listener.Close()
			for _, network := range []string{"tcp", "udp"} {
				conn, err := net.Dial(network, to)
				if err != nil {
					return err
				}
				defer conn.Close()
			}
			accepted, err := listener.Accept()
			if err != nil {
				return err
			}
			defer accepted.Close()
		}
		s, _, err := ns.ListenerAt(netip.MustParseAddrPort("127.0.0.1:80"))
		if err != nil {
			return err
		}
		want := map[netip.Addr]int{
			netip.MustParseAddr("127.0.0.1"): 4, // two of the servers' sockets, too
			netip.MustParseAddr("127.0.0.2"): 2,
			netip.MustParseAddr("::1"):       3,
		}
		if got, err := ns.Peers(s.Cgroup); err != nil || !maps.Equal(got, want) {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
		if got, err := ns.Peers(1 << 40); err != nil || len(got) > 0 {
			t.Errorf("of another cgroup: %v, %v", got, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
