package gate

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// bindAddresses are those that testdata/untrapped.c binds, each with port 0 and with port 8080.
var bindAddresses = []string{
	"0.0.0.0", "127.0.0.1", "127.9.8.7", "198.51.100.1", "::", "::1", "::ffff:127.0.0.1", "::ffff:0.0.0.0", "2001:db8::1",
}

// freeAtPort0 are those of which nobody is asked about port 0, if that is said; the IPv4 ones are first.
var freeAtPort0 = []string{"0.0.0.0", "127.0.0.1", "127.9.8.7", "::", "::1", "::ffff:127.0.0.1", "::ffff:0.0.0.0"}

// A container whose IPv4 is translated has its virtual addresses in virtualPool.
var virtualPool = netip.MustParsePrefix("198.18.0.0/15")

// bindsAsked are the binds that the supervisor is asked about, if it is not asked about port 0 of some addresses.
func bindsAsked(free []string) (list []string) {
	for _, address := range bindAddresses {
		at := netip.MustParseAddr(address)
		if !slices.Contains(free, address) {
			list = append(list, fmt.Sprint("bind ", netip.AddrPortFrom(at, 0)))
		}
		list = append(list, fmt.Sprint("bind ", netip.AddrPortFrom(at, 8080)))
	}
	return list
}

// Of a container whose calls are not trapped, the supervisor is asked about binds alone, whatever
// the filter asks about. The shim does not ask the gate about more than binds.
func TestUntrapped(t *testing.T) {
	reduced, err := filter.Build(runtime.GOARCH, filter.Options{Mode: filter.Auto, Untrapped: true})
	if err != nil {
		t.Fatal(err)
	}
	named, err := filter.Build(runtime.GOARCH, translates)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		free    []string // the addresses of which nobody is asked about port 0; nil: a rule names it
		filter  []unix.SockFilter
		shim    bool
		pool    netip.Prefix    // of virtual addresses
		answers map[Call]uint64 // by the gate: of a bind without the supervisor, and of what a filter asks about in vain
	}{
		{"static", freeAtPort0, composedFilter(askCall), false, netip.Prefix{}, map[Call]uint64{Bind: 7, Connect: 1, Listen: 18, Send: 4}},
		{"static, a rule names port 0", nil, composedFilter(askCall), false, netip.Prefix{}, map[Call]uint64{Bind: 0, Connect: 1, Listen: 18, Send: 4}},
		{"static, by our filter", freeAtPort0, reduced, false, netip.Prefix{}, map[Call]uint64{Bind: 7}},
		{"static, translated", freeAtPort0[:3], named, false, virtualPool, map[Call]uint64{Bind: 3, Connect: 1}},
		{"dynamic", freeAtPort0, reduced, true, netip.Prefix{}, map[Call]uint64{Bind: 7}},
		{"dynamic, a rule names port 0", nil, reduced, true, netip.Prefix{}, map[Call]uint64{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked, s := newContainer(t).runUntrapped(tt.shim, tt.filter, func(config *Config) {
				config.UntrappedPort0, config.Translated = tt.free != nil, tt.pool
			}, nil)
			if diff := cmp.Diff(bindsAsked(tt.free), asked); diff != "" {
				t.Errorf("what the supervisor is asked about (-want +got):\n%s", diff)
			}
			for _, call := range []Call{Connect, Bind, Listen, Send} {
				if s.Calls[call].Answered != tt.answers[call] {
					t.Errorf("%s: the gate has answered %d, want %d", call, s.Calls[call].Answered, tt.answers[call])
				}
			}
		})
	}
}

// translates are the options of the filter of a container whose IPv4 is translated.
var translates = filter.Options{Mode: filter.Seccomp, Untrapped: true, Translated: true}

// A gate that cannot have the program's sockets does not take them for IPv4 ones: it asks the supervisor.
// Here the gate has no descriptor left. Before Linux 6.9 it has no socket of a thread that is not the first one.
func TestUnknownSockets(t *testing.T) {
	c := newContainer(t)
	prog, err := filter.Build(runtime.GOARCH, translates)
	c.must(err)
	asked, _ := c.runUntrapped(false, prog, func(config *Config) {
		config.UntrappedPort0, config.Translated = true, virtualPool
	}, c.leaveNoDescriptor)
	want := append([]string{"connect 127.0.0.1:9"}, bindsAsked(nil)...)
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("what the supervisor is asked about (-want +got):\n%s", diff)
	}
}

// leaveNoDescriptor leaves the gate no number for a descriptor, until lift is called.
func (c *container) leaveNoDescriptor() (lift func()) {
	c.t.Helper()
	gate, free := c.gatePID(), uint64(0)
	for err := error(nil); err == nil; free++ {
		_, err = os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", gate, free+1))
	}
	var before unix.Rlimit
	c.must(unix.Prlimit(gate, unix.RLIMIT_NOFILE, nil, &before))
	c.must(unix.Prlimit(gate, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: free, Max: before.Max}, nil))
	return func() { c.must(unix.Prlimit(gate, unix.RLIMIT_NOFILE, &before, nil)) }
}

// runUntrapped runs the program under a filter, with a gate. Meanwhile there may be a fault of the gate's. It
// returns what the supervisor was asked, and what the gate has counted.
func (c *container) runUntrapped(shim bool, prog []unix.SockFilter, edit func(*Config), fault func() (lift func())) (asked []string, s Stats) {
	t := c.t
	t.Helper()
	c.idleAfter = time.Hour // the fault is one process's
	program, preload := filepath.Join(c.dir, "untrapped"), ""
	args := []string{"-Wall", "-Wextra", "-Werror", "-o", program, "testdata/untrapped.c"}
	if shim {
		preload = filepath.Join(testkit.BuildTsugiki(t), "libtsugiki.so")
	} else {
		args = append(args, "-static")
	}
	if out, err := exec.Command(testkit.Program(t, "cc"), args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir, err := c.programs.Open()
	c.must(err)
	defer dir.Close()
	part, whole := filepath.Join(c.dir, "part"), filepath.Join(c.dir, "whole")
	c.must(os.WriteFile(part, nil, 0o600))
	var g *Gate
	lift := func() {}
	ended := make(chan struct{})
	c.process, err = launch.Start(launch.Spec{
		Path: program, Args: []string{"untrapped", part, whole}, Netns: c.own.File(), CgroupDir: dir,
		Filter: prog, Caps: launch.Default, Preload: preload, NeedsPreload: shim,
	}, func(listener *os.File, _ int) (err error) {
		c.listener = listener
		g, err = Start(c.config(listener, func(config *Config) {
			config.HostFirst4, config.Untrapped = false, true
			edit(config)
		}))
		if err != nil {
			return err
		}
		if fault != nil {
			lift = fault()
		}
		g.Serve(func(a Request) {
			asked = append(asked, fmt.Sprint(a.Call, " ", addressOf(a.Address)))
			_ = reply(listener, a.ID, 0, unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE)
		}, nil, func(error) { close(ended) })
		return nil
	})
	c.must(err)
	defer c.listener.Close()
	testkit.Eventually(t, func() error {
		_, err := os.Stat(whole)
		return err
	})
	lift()
	s = c.stats(g)
	c.must(c.programs.Kill())
	_, err = unix.Wait4(c.process.PID, nil, 0, nil)
	c.must(err)
	<-ended
	return asked, s
}

// addressOf reads a sockaddr of IP; invalid if it is none.
func addressOf(b []byte) netip.AddrPort {
	if len(b) < 16 {
		return netip.AddrPort{}
	}
	port := uint16(b[2])<<8 | uint16(b[3])
	if b[0] == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port)
}
