package gate

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Sockets are made where they are likely to be connected to. The supervisor here moves none: it lets
// all calls go on.
func TestPlaces(t *testing.T) {
	again := func(s string, n int) string { return strings.Repeat(s, n) }
	for _, tt := range []struct {
		name      string
		shim      bool
		hostFirst bool
		moved     bool // a socket of the container has been moved
		steps     string
		want      string // where the sockets are made
		asked     int    // connects that the supervisor is asked about
		sockets   uint64 // calls of socket(2) that the gate has answered
	}{
		// The gate does not guess: it serves several programs.
		{"static", false, true, true, again("l", 10) + "r", again("h", 11), 10, 11},
		// Four connections to the loopback make a habit; after a wrong guess, sixteen do. The library does
		// not know the rules at the first connect.
		{"dynamic", true, true, true, again("l", 7) + "r" + again("l", 18) + "r", "hhhhhooo" + again("h", 16) + "ooo", 5 + 1 + 16 + 1, 0},
		// Programs that go both ways have no habit.
		{"dynamic, both ways", true, true, true, again("lllr", 8), again("hhhh", 8), 24, 0},
		// Until a socket has been moved, the gate and the library look at none when it is connected.
		{"dynamic, nothing is moved", true, true, false, again("l", 10) + "r", again("h", 11), 10, 0},
		// The gate makes no sockets: the library asks for two, and once for the rules.
		{"static, not on the host first", false, false, false, again("l", 50), again("o", 50), 0, 50},
		{"dynamic, not on the host first", true, false, false, again("l", 50), again("o", 50), 0, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, asked, s := runPlaces(t, tt.shim, tt.hostFirst, tt.steps, func(_ *container, g *Gate) {
				if tt.moved {
					g.Set(OwnSockets)
				}
			})
			if got != tt.want {
				t.Errorf("sockets are made in\n%s, want\n%s", got, tt.want)
			}
			if asked != tt.asked {
				t.Errorf("the supervisor is asked about %d connects, want %d", asked, tt.asked)
			}
			if n := s.Calls[Socket].Answered; tt.sockets != 0 && n != tt.sockets {
				t.Errorf("the gate has answered %d calls of socket(2), want %d", n, tt.sockets)
			}
		})
	}
}

// The supervisor is asked about connections to ports of the loopback that may lead to the host, and about
// no others, if it has told which ports these are.
func TestServedPorts(t *testing.T) {
	const steps, port = "llll", 9
	for _, tt := range []struct {
		name   string
		served []uint16
		asked  int
	}{
		{"the port", []uint16{port}, 4},
		{"two ports", []uint16{port + 1, port}, 4},
		{"a port with the same bit", []uint16{port + 32}, 4},
		{"another port", []uint16{port + 1}, 0},
		{"not told", nil, 4},
	} {
		for _, shim := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, shim %v", tt.name, shim), func(t *testing.T) {
				_, asked, _ := runPlaces(t, shim, false, steps, func(_ *container, g *Gate) {
					for _, port := range tt.served {
						g.SetServed(ServedBit(port))
					}
					g.Set(Services)
				})
				if asked != tt.asked {
					t.Errorf("the supervisor is asked about %d connects, want %d", asked, tt.asked)
				}
			})
		}
	}
}

// A supervisor of a version that tells no ports is asked about all, whatever its predecessor has told.
func TestServedPortsAfterRollback(t *testing.T) {
	const steps, port = "llll", 9
	for _, shim := range []bool{false, true} {
		t.Run(fmt.Sprintf("shim %v", shim), func(t *testing.T) {
			journal := filepath.Join(t.TempDir(), "journal")
			runPlaces(t, shim, false, steps, func(c *container, g *Gate) {
				g.SetServed(ServedBit(port + 1))
				g.Set(Services)
				c.must(g.Release())
				c.helper(c.top.Host, "older", journal).says("adopted")
			})
			asked, err := os.ReadFile(journal)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(asked), Connect.String()); n != len(steps) {
				t.Errorf("the supervisor is asked about %d connects, want %d:\n%s", n, len(steps), asked)
			}
		})
	}
}

// The supervisor is asked about accept(2) where a listener may have connections of two network namespaces.
func TestAcceptsOfTwoNamespaces(t *testing.T) {
	for _, tt := range []struct {
		hostFirst bool
		steps     string
		asked     int
	}{{true, "aaa", 3}, {false, "aaa", 0}, {true, "uuu", 0}} {
		t.Run(fmt.Sprint(tt.steps, " on the host first: ", tt.hostFirst), func(t *testing.T) {
			if _, asked, _ := runPlaces(t, false, tt.hostFirst, tt.steps, func(*container, *Gate) {}); asked != tt.asked {
				t.Errorf("the supervisor is asked about %d calls of accept(2), want %d", asked, tt.asked)
			}
		})
	}
}

// runPlaces runs the program. Before, the supervisor tells the gate something, or releases
// it. It returns what the program has written, how often the supervisor was asked, and what the gate has
// counted unless it was released.
func runPlaces(t *testing.T, shim, hostFirst bool, steps string, tell func(*container, *Gate)) (places string, asked int, s Stats) {
	t.Helper()
	c := newContainer(t)
	c.idleAfter = time.Hour // the habits are of one process
	prog, err := filter.Build(runtime.GOARCH, filter.Options{Mode: filter.Auto, Accepts: true})
	c.must(err)
	program, preload := filepath.Join(c.dir, "places"), ""
	args := []string{"-Wall", "-Wextra", "-Werror", "-o", program, "testdata/places.c"}
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
	var g *Gate
	ended := make(chan struct{})
	c.process, err = launch.Start(launch.Spec{
		Path: program, Args: []string{"places", steps, part, whole}, Netns: c.own.File(), CgroupDir: dir,
		Filter: prog, Caps: launch.Default, Preload: preload, NeedsPreload: shim,
	}, func(listener *os.File, _ int) (err error) {
		c.listener = listener
		g, err = Start(c.config(listener, func(config *Config) { config.HostFirst4 = hostFirst }))
		if err != nil {
			return err
		}
		tell(c, g)
		g.Serve(func(a Request) {
			asked++
			_ = reply(listener, a.ID, 0, unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE)
		}, nil, func(error) { close(ended) })
		return nil
	})
	c.must(err)
	defer c.listener.Close()
	var said []byte
	testkit.Eventually(t, func() (err error) {
		said, err = os.ReadFile(whole)
		return err
	})
	s, _ = g.Stats() // none if it was released
	c.must(c.programs.Kill())
	_, err = unix.Wait4(c.process.PID, nil, 0, nil)
	c.must(err)
	<-ended
	return string(said), asked, s
}
