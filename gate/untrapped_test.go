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

// freeAtPort0 are those of which nobody is asked about port 0, if that is said.
var freeAtPort0 = []string{"0.0.0.0", "127.0.0.1", "127.9.8.7", "::", "::1", "::ffff:127.0.0.1", "::ffff:0.0.0.0"}

// Of a container whose calls are not trapped, the supervisor is asked about binds alone, whatever
// the filter asks about. The shim does not ask the gate about more than binds.
func TestUntrapped(t *testing.T) {
	reduced, err := filter.Build(runtime.GOARCH, filter.Options{Mode: filter.Auto, Untrapped: true})
	if err != nil {
		t.Fatal(err)
	}
	free := uint64(len(freeAtPort0))
	for _, tt := range []struct {
		name    string
		port0   bool
		filter  []unix.SockFilter
		shim    bool
		answers map[Call]uint64 // by the gate: of a bind without the supervisor, and of what a filter asks about in vain
	}{
		{"static", true, composedFilter(askCall), false, map[Call]uint64{Bind: free, Connect: 1, Listen: 18, Send: 4}},
		{"static, a rule names port 0", false, composedFilter(askCall), false, map[Call]uint64{Bind: 0, Connect: 1, Listen: 18, Send: 4}},
		{"static, by our filter", true, reduced, false, map[Call]uint64{Bind: free}},
		{"dynamic", true, reduced, true, map[Call]uint64{Bind: free}},
		{"dynamic, a rule names port 0", false, reduced, true, map[Call]uint64{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var want []string
			for _, address := range bindAddresses {
				at := netip.MustParseAddr(address)
				if !tt.port0 || !slices.Contains(freeAtPort0, address) {
					want = append(want, fmt.Sprint("bind ", netip.AddrPortFrom(at, 0)))
				}
				want = append(want, fmt.Sprint("bind ", netip.AddrPortFrom(at, 8080)))
			}
			asked, s := runUntrapped(t, tt.shim, tt.filter, tt.port0)
			if diff := cmp.Diff(want, asked); diff != "" {
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

// runUntrapped runs the program under a filter. It returns what the supervisor was asked, and what
// the gate has counted.
func runUntrapped(t *testing.T, shim bool, prog []unix.SockFilter, port0 bool) (asked []string, s Stats) {
	t.Helper()
	c := newContainer(t)
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
	ended := make(chan struct{})
	c.process, err = launch.Start(launch.Spec{
		Path: program, Args: []string{"untrapped", part, whole}, Netns: c.own.File(), CgroupDir: dir,
		Filter: prog, Caps: launch.Default, Preload: preload, NeedsPreload: shim,
	}, func(listener *os.File, _ int) (err error) {
		c.listener = listener
		g, err = Start(c.config(listener, func(config *Config) {
			config.HostFirst4, config.Untrapped, config.UntrappedPort0 = false, true, port0
		}))
		if err != nil {
			return err
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
