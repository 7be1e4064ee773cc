package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

var (
	propertySeed  = flag.Uint64("property-seed", 0, "the first seed of TestPropertyRulesHold, and the only one without -property; 0 has it take some")
	propertyTime  = flag.Duration("property", time.Duration(testkit.Times(0, 10))*time.Minute, "how long TestPropertyRulesHold takes one seed after another; 0 has it take a few")
	propertyCalls = flag.Int("property-calls", 400, "calls of each container of TestPropertyRulesHold")
)

const (
	// propertySeeds is how many seeds a short run takes.
	propertySeeds = 8
	// propertyContainers is how many containers each seed has at once.
	propertyContainers = 3
	// propertyPause is after how many calls the host looks and sends.
	propertyPause = 100
	// propertyTail is how many of a driver's lines are shown up to a call.
	propertyTail = 14
)

// propertyFound are seeds that have found something.
var propertyFound = []uint64{117661521608743, 117661521608784}

// propertyContainer is a container that runs a driver.
type propertyContainer struct {
	*propertyRules
	*held
	number int
	name   string
	dir    string // of the cgroup that its host sockets are made in
	cgroup uint64
	veth   string // of the bridge, if it has one
	// sharing are the containers that may have its sockets, and it theirs: itself, and those
	// that pass theirs to one another.
	sharing []*propertyContainer
}

func (c *propertyContainer) String() string { return fmt.Sprintf("container %d", c.number) }

// mayMark tells whether somebody who may use its sockets has the capability to mark packets.
func (c *propertyContainer) mayMark() bool {
	return slices.ContainsFunc(c.sharing, func(o *propertyContainer) bool { return o.raw })
}

// Random rules hold, whatever random calls several containers make at once: no packet leaves
// a container's host socket to where its rules do not let it, and no container hears what
// they do not let it hear. What leaves, a capture on every interface of the host tells.
func TestPropertyRulesHold(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	seed, count := uint64(1), propertySeeds
	switch {
	case *propertySeed != 0:
		seed, count = *propertySeed, 1
	case *propertyTime > 0:
		seed = uint64(time.Now().Unix()) << 16 // so that no two soaks have the same
	}
	all := count > 1 || *propertyTime > 0
	if all {
		for _, found := range propertyFound {
			trySeed(t, found, seen)
		}
	}
	for end := time.Now().Add(*propertyTime); count > 0 || time.Now().Before(end); count-- {
		trySeed(t, seed, seen)
		seed++
	}
	t.Logf("seen: %v", seen)
	for _, kind := range propertyKinds {
		if all && seen[kind] == 0 {
			t.Errorf("no %s were seen: nothing could be found of them", kind)
		}
	}
}

// trySeed runs one seed, in a world of its own, and counts what it has seen.
func trySeed(t *testing.T, seed uint64, seen map[string]int) {
	t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
		t.Logf("seed %d", seed)
		w := newPropertyWorld(t)
		containers := w.startContainers(t, seed)
		j := newJudge(w, containers)
		var frames []frame
		for range pauses() {
			w.pause(t, containers, j)
			frames = append(frames, w.flush(t)...)
		}
		for _, c := range containers {
			c.await("end")
			c.release()
		}
		frames = append(frames, w.flush(t)...)
		j.sent(frames)
		for _, c := range containers {
			j.heard(frames, c, c.payloads())
		}
		j.keptOut(frames)
		j.report(t, seed)
		for kind, n := range j.seen {
			seen[kind] += n
		}
	})
}

// pauses is how often the drivers wait for the host; see driver.c.
func pauses() int { return *propertyCalls / propertyPause }

// startContainers starts the containers of a seed, each with a driver that waits.
func (w *propertyWorld) startContainers(t *testing.T, seed uint64) []*propertyContainer {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 0))
	passing := r.IntN(2) == 0
	dir, err := os.MkdirTemp(tmpDir, "channels-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o1777); err != nil { // for any user
		t.Fatal(err)
	}
	containers := make([]*propertyContainer, propertyContainers)
	for i := range containers {
		containers[i] = &propertyContainer{propertyRules: newPropertyRules(r, i), number: i + 1, name: uniqueName("property")}
	}
	for i, c := range containers {
		c.sharing = []*propertyContainer{c}
		if passing {
			c.sharing = containers
		}
		netns := "new"
		if c.bridge && i < len(w.Containers) {
			netns, c.veth = w.Containers[i].Path(), w.Containers[i].Name()
		}
		flags := append([]string{"--name", c.name, "--netns", netns}, c.flags...)
		program := propertyDriver(t, c.build)
		driver := append([]string{"--", program}, w.words(t, r, c, containers, dir, passing)...)
		c.held = hold(t, graft(t, w.Host, append(flags, driver...)...), "ready")
		c.dir = filepath.Join(ownCgroup(t), "tsugiki-"+c.name, "keepers")
		c.cgroup = cgroupID(t, c.dir)
		newMarker(t, c.dir, c.number, c.loopback(t, filepath.Base(program)))
	}
	for _, c := range containers {
		c.tell()
	}
	return containers
}

// loopback is the id that the container's loopback has if it is on the host.
func (c *propertyContainer) loopback(t *testing.T, program string) uint32 {
	t.Helper()
	ns, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", child(c.Process.Pid, program)))
	if err != nil {
		t.Fatalf("find the namespace of %s: %v", c, err)
	}
	defer ns.Close()
	return uint32(ns.Cookie()) | 1<<31
}

// words are a driver's arguments.
func (w *propertyWorld) words(t *testing.T, r *rand.Rand, c *propertyContainer, all []*propertyContainer, dir string, passing bool) []string {
	words := []string{
		strconv.Itoa(c.number), strconv.FormatUint(r.Uint64(), 10), strconv.Itoa(*propertyCalls), strconv.Itoa(pauses() - 1),
	}
	add := func(key string, values ...string) {
		for _, v := range values {
			words = append(words, key+"="+v)
		}
	}
	add("to", propertyDestinations...)
	add("to", w.others...)
	add("favor", c.favors[:min(len(c.favors), 40)]...)
	ports := []uint16{allowedPort, allowedPort, allowedPort, allowedPort + 1, secretPort, localPort, reusedPort, otherReusedPort, 53}
	for _, o := range all {
		for _, e := range o.ingress {
			ports = append(ports, e.ports.first)
		}
	}
	for _, view := range c.views {
		ports = append(ports, view.Port())
	}
	for _, p := range ports {
		add("port", strconv.Itoa(int(p)))
	}
	add("at", "0.0.0.0", "0.0.0.0", "127.0.0.1", hostAddr4, sourceAddr4, otherHostAddr4, "10.88.0.11",
		"::", "::", "::1", hostAddr6, sourceAddr6, otherHostAddr6, "2001:db8:1::77")
	for _, p := range []uint16{0, 0, reusedPort, otherReusedPort, 9091, secretPort} {
		add("bind", strconv.Itoa(int(p)))
	}
	for _, view := range c.views {
		add("bind", strconv.Itoa(int(view.Port())))
		add("serve", view.Addr().String()+","+strconv.Itoa(int(view.Port())))
	}
	add("name", c.names...)
	for _, index := range w.links {
		add("link", strconv.Itoa(index))
	}
	if passing {
		for _, o := range all {
			path := filepath.Join(dir, strconv.Itoa(o.number))
			if o == c {
				add("channel", path)
			} else {
				add("peer", path)
			}
		}
	}
	return words
}

// tell sends the line that a driver waits for.
func (c *propertyContainer) tell() {
	c.t.Helper()
	if _, err := c.stdin.Write([]byte("\n")); err != nil {
		c.t.Fatal(err)
	}
}

// pause waits for all drivers, looks at the containers' sockets on the host, sends to them,
// and has the drivers receive.
func (w *propertyWorld) pause(t *testing.T, containers []*propertyContainer, j *judge) {
	t.Helper()
	for _, c := range containers {
		c.await("pause")
	}
	var own []hostSocket
	for _, s := range socketsIn(t, w.Host) {
		for _, c := range containers {
			if s.cgroup != c.cgroup {
				continue
			}
			if s.protocol == unix.IPPROTO_UDP && inodesOf(t, c.Process.Pid)[s.inode] {
				c.relay = append(c.relay, s.at.Port())
			}
			own = append(own, s)
		}
	}
	j.holding(own)
	j.joined(w.groups(t))
	w.probe(t, own)
	for _, c := range containers {
		c.tell()
		c.await("drained")
	}
}

// payloads are those of the datagrams that the driver has received.
func (c *propertyContainer) payloads() []string {
	var list []string
	for _, l := range c.said {
		if rest, ok := strings.CutPrefix(l, "heard "); ok {
			payload, _, _ := strings.Cut(rest, " ")
			list = append(list, payload)
		}
	}
	return list
}

// report fails the test for what was found, and says how to find it again.
func (j *judge) report(t *testing.T, seed uint64) {
	t.Helper()
	if len(j.found) == 0 {
		return
	}
	var b strings.Builder
	for _, f := range j.found {
		fmt.Fprintln(&b, f.text)
		if c := j.containers[f.by]; c != nil && f.line != "" {
			b.WriteString(c.tail(f.line))
		}
	}
	for _, c := range j.containers {
		fmt.Fprintf(&b, "%s: tsugiki run '%s'\n", c, strings.Join(c.flags, "' '"))
	}
	t.Errorf("%sRepeat it with: go test -count=1 -run '^TestPropertyRulesHold$' ./test/e2e -property-seed %d -property-calls %d",
		&b, seed, *propertyCalls)
}

// tail are the lines that the driver has printed up to the last that has something in it.
func (c *propertyContainer) tail(part string) string {
	for at := len(c.said); at > 0; at-- {
		if strings.Contains(" "+c.said[at-1], part) {
			return "\t" + strings.Join(c.said[max(0, at-propertyTail):at], "\n\t") + "\n"
		}
	}
	return ""
}
