package enforcer

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/policy"
)

// told records the decisions that a trace reports, and how many it has lost.
type told struct {
	mu   sync.Mutex
	list []policy.Decision
	lost uint64
}

func (o *told) tell(list []policy.Decision, lost uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list, o.lost = append(o.list, list...), o.lost+lost
}

// trace traces a container. stop returns what was told.
func (c *contained) trace(t *testing.T) (stop func() *told) {
	t.Helper()
	return c.traceByClocks(t, clocks)
}

func (c *contained) traceByClocks(t *testing.T, clocks func() moment) (stop func() *told) {
	t.Helper()
	o := &told{}
	trace, err := c.traceBy(clocks, o.tell)
	if err != nil {
		t.Fatal(err)
	}
	return func() *told {
		t.Helper()
		if err := trace.Stop(); err != nil {
			t.Fatal(err)
		}
		return o
	}
}

// decision is what a test can know of one.
type decision struct {
	syscall    string
	asked, led string
	endpoint   int
	errno      unix.Errno
}

func short(list []policy.Decision) (all []decision) {
	for _, d := range list {
		all = append(all, decision{d.Syscall, d.Asked.String(), d.Led.String(), d.Endpoint, d.Errno})
	}
	return all
}

// kernelTime has decisions told with the kernel's monotonic time, which kernelNow is of too.
func kernelTime() moment   { return moment{wall: time.Unix(0, 0)} }
func kernelNow() time.Time { return time.Unix(0, int64(monotonic())) }

// The two clocks are read at one time, between two others.
func TestClocks(t *testing.T) {
	wall, kernel := time.Now(), monotonic()
	now := clocks()
	if later := monotonic(); now.monotonic < kernel || now.monotonic > later {
		t.Errorf("the monotonic clock is %v, want %v to %v", now.monotonic, kernel, later)
	}
	if later := time.Now(); now.wall.Before(wall) || now.wall.After(later) {
		t.Errorf("the wall clock is %v, want %v to %v", now.wall, wall, later)
	}
	d := now.decision(&bpf.PolicyDecision{Time: uint64(now.monotonic - time.Hour)})
	if want := now.wall.Add(-time.Hour); !d.Time.Equal(want) {
		t.Errorf("an hour before is %v, want %v", d.Time, want)
	}
}

// Each connect is told, with where it leads and how it ends.
func TestTraceConnects(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		c := list[3]
		server := c.socket(t, unix.SOCK_STREAM)
		c.private(t, server, unix.IPPROTO_TCP, netip.MustParseAddrPort("127.0.0.1:80"), 20080)
		if err := unix.Listen(server, 8); err != nil {
			t.Fatal(err)
		}
		refused := unix.EPERM
		if setsErrno() {
			refused = unix.ENETUNREACH
		}
		for _, tt := range []struct {
			want  decision
			fails unix.Errno
		}{
			{decision{"connect", "127.0.0.1:80", "127.0.0.1:20080", -1, 0}, 0},
			{decision{"connect", "0.0.0.0:80", "127.0.0.1:20080", -1, 0}, 0},
			{decision{"connect", "127.0.0.1:81", "127.0.0.1:0", -1, unix.ECONNREFUSED}, unix.ECONNREFUSED},
			{decision{"connect", "[::1]:80", "[::1]:0", -1, unix.ECONNREFUSED}, unix.ECONNREFUSED},
			{decision{"connect", "127.0.0.1:5353", "127.0.0.1:5353", 0, 0}, unix.ECONNREFUSED},
			{decision{"connect", "198.51.100.2:80", "198.51.100.2:80", -1, refused}, refused},
		} {
			to := netip.MustParseAddrPort(tt.want.asked)
			s := c.socketOf(t, familyOf(to), unix.SOCK_STREAM)
			cookie, err := unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_COOKIE)
			if err != nil {
				t.Fatal(err)
			}
			stop, before := c.traceByClocks(t, kernelTime), kernelNow()
			cerr := unix.Connect(s, sockaddr.Of(to))
			thread, after := unix.Gettid(), kernelNow()
			if fails := tt.fails; fails == 0 && cerr != nil || fails != 0 && !errors.Is(cerr, fails) {
				t.Errorf("connect to %s: %v, want %v", to, cerr, fails)
			}
			o := stop()
			if diff := cmp.Diff([]decision{tt.want}, short(o.list), cmp.AllowUnexported(decision{})); diff != "" || o.lost != 0 {
				t.Fatalf("%d lost, -want +got\n%s", o.lost, diff)
			}
			d := o.list[0]
			if d.Socket != cookie || d.Thread != thread || d.Protocol != unix.IPPROTO_TCP || d.Time.Before(before) || d.Time.After(after) {
				t.Errorf("%+v, want socket %d, thread %d, between %v and %v", d, cookie, thread, before, after)
			}
		}
	})
}

// Datagrams of a socket are told of when they differ from the one before, and anew by each trace.
func TestTraceSends(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		c := list[3]
		s := c.socket(t, unix.SOCK_DGRAM)
		send := func(to string, fails unix.Errno) {
			t.Helper()
			err := unix.Sendto(s, []byte("x"), 0, sockaddr.Of(netip.MustParseAddrPort(to)))
			if fails == 0 && err != nil || fails != 0 && !errors.Is(err, fails) {
				t.Errorf("send to %s: %v, want %v", to, err, fails)
			}
		}
		for range 2 {
			stop := c.trace(t)
			for range 3 {
				send("127.0.0.1:5353", 0)
			}
			for range 3 {
				send("198.51.100.2:80", unix.EPERM)
			}
			send("127.0.0.1:5353", 0)
			want := []decision{
				{"send", "127.0.0.1:5353", "127.0.0.1:5353", 0, 0},
				{"send", "198.51.100.2:80", "198.51.100.2:80", -1, unix.EPERM},
				{"send", "127.0.0.1:5353", "127.0.0.1:5353", 0, 0},
			}
			o := stop()
			if diff := cmp.Diff(want, short(o.list), cmp.AllowUnexported(decision{})); diff != "" || o.lost != 0 {
				t.Errorf("%d lost, -want +got\n%s", o.lost, diff)
			}
		}
	})
}

// A container that makes more calls than are read loses its own decisions, and no other's. All
// are counted. What nobody traces is not told.
func TestTraceIsFull(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		busy, quiet, untraced := list[0], list[2], list[3]
		dial := func(c *contained) {
			s := c.socket(t, unix.SOCK_STREAM)
			if err := unix.Connect(s, sockaddr.Of(netip.MustParseAddrPort("127.0.0.1:81"))); !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatal(err)
			}
		}
		before, err := busy.Decided()
		if err != nil {
			t.Fatal(err)
		}
		reading, release := make(chan struct{}), make(chan struct{})
		o, once := &told{}, sync.Once{}
		trace, err := busy.Trace(func(list []policy.Decision, lost uint64) {
			o.tell(list, lost)
			once.Do(func() { close(reading); <-release })
		})
		if err != nil {
			t.Fatal(err)
		}
		stop := quiet.trace(t)
		dial(busy)
		<-reading
		const calls = traceBytes / 96 * 2
		s := busy.socket(t, unix.SOCK_DGRAM)
		for port := range calls {
			to := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 1 + port}
			if err := unix.Connect(s, to); err != nil {
				t.Fatal(err)
			}
		}
		dial(quiet)
		dial(untraced)
		close(release)
		if err := trace.Stop(); err != nil {
			t.Fatal(err)
		}
		if n := uint64(len(o.list)); n >= 1+calls || n < calls/4 || n+o.lost != 1+calls {
			t.Errorf("%d decisions were told and %d lost, of %d", n, o.lost, 1+calls)
		}
		if after, err := busy.Decided(); err != nil || after.Connect-before.Connect != 1+calls || after.Unreported != o.lost {
			t.Errorf("it has counted %+v, before %+v, %v", after, before, err)
		}
		if other := stop(); len(other.list) != 1 || other.lost != 0 {
			t.Errorf("of the other were told %v, and %d lost", other.list, other.lost)
		}
	})
}

// The next process ends what a killed one has traced.
func TestTraceOfKilled(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		c := list[3]
		killed, err := c.Trace(func([]policy.Decision, uint64) {})
		if err != nil {
			t.Fatal(err)
		}
		next, err := Adopt(c.dir, c.table, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		if row := next.own.row; row.Traced != 0 || row.Loopback == 0 || next.tables.ring != nil {
			t.Errorf("%+v", row)
		}
		s := c.socket(t, unix.SOCK_STREAM)
		o := &told{}
		trace, err := next.Trace(o.tell)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Connect(s, sockaddr.Of(netip.MustParseAddrPort("127.0.0.1:81"))); !errors.Is(err, unix.ECONNREFUSED) {
			t.Error(err)
		}
		if err := trace.Stop(); err != nil || len(o.list) != 1 {
			t.Errorf("%v: %v", err, o.list)
		}
		if err := killed.Stop(); err != nil { // it is in this process
			t.Error(err)
		}
	})
}
