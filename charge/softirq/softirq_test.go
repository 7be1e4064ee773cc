package softirq

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/charge/slots"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/sys/thread"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

func open(t testing.TB) *tally {
	t.Helper()
	m, err := New()
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return &tally{m, works{}}
}

type works = map[uint32]Work

// tally has the sums of a meter since its start.
type tally struct {
	*Meter
	all works
}

// collect adds the work since the last call to the sums.
func (m *tally) collect(t testing.TB, sums works) {
	t.Helper()
	taken, err := m.Take()
	if err != nil {
		t.Fatal(err)
	}
	for owner, w := range taken {
		for _, to := range []works{sums, m.all} {
			to[owner] = Work{to[owner].For + w.For, to[owner].Own + w.Own, to[owner].Credit + w.Credit}
		}
	}
}

// until makes a program send until the works satisfy a condition, and returns them. Earlier work
// does not count.
func (m *tally) until(t *testing.T, sender *program, what string, done func(works) bool) works {
	t.Helper()
	m.collect(t, works{})
	sums := works{}
	testkit.Eventually(t, func() error {
		sender.send(t)
		if m.collect(t, sums); !done(sums) {
			return fmt.Errorf("not %s: %+v", what, sums)
		}
		return nil
	})
	t.Logf("%s: %+v", what, sums)
	return sums
}

// check checks that no more time is billed than was used for receiving. A piece of work is added to
// two sums, and may be in one of them before the other.
func (m *tally) check(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, func() error {
		m.collect(t, works{})
		var sum Work
		for owner, w := range m.all {
			if w.Own > w.For {
				return fmt.Errorf("owner %d was received for %v, and has paid %v of it", owner, w.For, w.Own)
			}
			sum = Work{sum.For + w.For, sum.Own + w.Own, sum.Credit + w.Credit}
		}
		if sum.Charge() < 0 || !m.Billed() && sum.Own+sum.Credit > 0 {
			return fmt.Errorf("of all together: %+v; the kernel bills: %v", sum, m.Billed())
		}
		return nil
	})
}

// wantNothing checks that an owner without packets got no time since then.
func (c *container) wantNothing(t *testing.T, w Work, before int) {
	t.Helper()
	if now := c.packets(t); now == before && w.For != 0 {
		t.Errorf("owner %d got no packet, and was received for %v", c.owner, w.For)
	}
}

// timeOn returns a time at which a CPU runs the test, and so no softirq. A softirq of the CPU that ends later
// has begun later.
func timeOn(t *testing.T, cpu int) (now time.Time) {
	t.Helper()
	if err := thread.Do(func() error {
		var set unix.CPUSet
		set.Set(cpu)
		err := unix.SchedSetaffinity(0, &set)
		now = time.Now()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return now
}

// The sender's own thread runs the softirq. The time counts once for the receiver, though the
// packets pass a bridge and two pairs of links.
func TestReceiverOwesSender(t *testing.T) {
	top := testkit.Build(t, testkit.Options{Containers: 3, NoRemote: true})
	m := open(t)
	var c [3]*container
	var before [3]int
	for i := range c {
		c[i] = newContainer(t, m, uint32(i+1), top.Containers[i])
		c[i].own(t, m)
		before[i] = c[i].packets(t)
	}
	addr := testkit.ContainerAddr4(0).String() + ":9"
	c[0].run(t, nil, "sink", 1, addr)
	c[1].run(t, nil, "burn", 0)
	sender := c[2].run(t, nil, "send", 0, addr)
	for range 20 {
		begin := timeOn(t, 0)
		got := m.until(t, sender, "received for who is sent to, and credited to who sends", func(w works) bool {
			return w[1].For > 0 && (w[3].Credit > 0 || !m.Billed())
		})
		// The packets pass one CPU, one after the other.
		if most := time.Since(begin); got[1].For > most {
			t.Errorf("received for %v in %v: counted twice", got[1].For, most)
		}
		c[1].wantNothing(t, got[2], before[1])
		c[2].wantNothing(t, got[3], before[2])
		if owes := got[3].Charge(); m.Billed() && c[2].packets(t) == before[2] && owes >= 0 {
			t.Errorf("the sender owes %v", owes)
		}
	}
	if packets := c[0].packets(t) - before[0]; packets < 20*burst {
		t.Errorf("the receiver got %d packets, of %d at least", packets, 20*burst)
	}
	m.check(t)
}

// Packets from another CPU interrupt the task that runs on the receiving CPU. That is not always
// the busy container: for many packets the kernel's own thread takes over, and the machine has
// other programs.
func TestInterruptedIsCredited(t *testing.T) {
	top := testkit.Build(t, testkit.Options{Containers: 2, NoRemote: true})
	m := open(t)
	flooded, busy := newContainer(t, m, 1, top.Containers[0]), newContainer(t, m, 2, top.Containers[1])
	outside := newContainer(t, m, 3, top.Host)
	flooded.own(t, m)
	busy.own(t, m)
	flooded.favour(t)
	busy.favour(t)
	flooded.steer(t, 0)
	addr := testkit.ContainerAddr4(0).String() + ":9"
	flooded.run(t, nil, "sink", 1, addr)
	before := busy.packets(t)
	burner := busy.run(t, nil, "burn", 0)
	sender := outside.run(t, nil, "send", 1, addr)
	got := m.until(t, sender, "credited to who was interrupted", func(w works) bool {
		return w[1].For > 0 && (w[2].Credit > 0 || !m.Billed())
	})
	busy.wantNothing(t, got[2], before)

	before = busy.packets(t)
	burner.stop()
	flooded.run(t, nil, "burn", 0)
	got = m.until(t, sender, "paid by the receiver itself", func(w works) bool {
		return w[1].For > 0 && (w[1].Own > 0 || !m.Billed())
	})
	busy.wantNothing(t, got[2], before)
	if got[2].Credit != 0 {
		t.Errorf("who does nothing has %+v", got[2])
	}
	m.check(t)
}

// Containers that share an interface are told apart by their sockets.
func TestSocketsOfGroups(t *testing.T) {
	for owner := uint32(1); owner <= 2; owner++ {
		t.Run(fmt.Sprintf("to owner %d", owner), func(t *testing.T) {
			top := testkit.Build(t, testkit.Options{})
			m := open(t)
			addresses := make(map[uint32]string)
			for _, o := range []uint32{1, 2} {
				c := newContainer(t, m, o, top.Host)
				dir := c.v2Group(t)
				if err := m.Group(dir, o); err != nil {
					t.Fatal(err)
				}
				addresses[o] = fmt.Sprintf("%s:%d", testkit.HostAddr4, 8+o)
				c.run(t, dir, "sink", 1, addresses[o])
			}
			sender := newContainer(t, m, 3, top.Remote).run(t, nil, "send", 0, addresses[owner])
			got := m.until(t, sender, "received for the socket's owner, and credited to who sends", func(w works) bool {
				return w[owner].For > 0 && (w[3].Credit > 0 || !m.Billed())
			})
			if got[3-owner].For != 0 || got[3].For != 0 {
				t.Errorf("received for the other socket's owner %v, for the sender %v", got[3-owner].For, got[3].For)
			}
			m.check(t)
		})
	}
}

// v2Group returns the v2 group of the container's programs.
func (c *container) v2Group(t testing.TB) *os.File {
	t.Helper()
	if testkit.CgroupVersion() != "v2" {
		return v2Group(t, c.owner)
	}
	dir, err := os.Open(c.group)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

// v2Own is the test's own group of cgroup v2, in whose child groups sockets are told apart.
func v2Own(t testing.TB) string {
	t.Helper()
	own, err := cgroup.Own()
	if errors.Is(err, cgroup.ErrNoV2) {
		t.Skip("skip: needs cgroup v2: sockets have no group of v1 that says whose they are")
	}
	if err != nil {
		t.Fatal(err)
	}
	return own
}

func v2Group(t testing.TB, owner uint32) *os.File {
	t.Helper()
	own := v2Own(t)
	g, err := cgroup.Create(own, "tsugiki-test-sockets-"+string(rune('0'+owner)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	dir, err := g.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

func TestRegister(t *testing.T) {
	m := open(t)
	dir := v2Group(t, 9)
	id := inodeOf(t, dir.Name())
	if err := errors.Join(m.Interface(1, 2, 7), m.Interface(1, 2, 8), m.CPUGroup(3, 7), m.CPUGroup(3, 8), m.Group(dir, 7), m.Group(dir, 8)); err != nil {
		t.Fatal(err)
	}
	if len(m.links) == 0 {
		t.Error("nothing is attached")
	}
	if _, err := m.Take(); err != nil {
		t.Fatal(err)
	}
	if owners := maps.Collect(m.owners.All()); len(owners) != 1 || owners[8] == 0 {
		t.Errorf("owners %v, want 8 only", owners)
	}
	forget := func(owner uint32) {
		t.Helper()
		if err := errors.Join(m.ForgetInterface(1, 2, owner), m.ForgetCPUGroup(3, owner), m.ForgetGroup(id, owner)); err != nil {
			t.Fatal(err)
		}
	}
	forget(7) // it has nothing any more
	m.wantSlots(t, id, 8)
	forget(8)
	forget(8)
	if len(m.links) != 0 {
		t.Error("still attached, for nobody")
	}
	if err := m.Interface(1, 2, 0); !errors.Is(err, slots.ErrOwner) || len(m.links) != 0 {
		t.Errorf("an interface of nobody: %v; attached: %v", err, m.links)
	}
	if err := m.CPUGroup(3, 0); !errors.Is(err, slots.ErrOwner) {
		t.Errorf("a cpu group of nobody: %v", err)
	}
	v1, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer v1.Close()
	if err := m.Group(v1, 5); err == nil || len(m.links) != 0 {
		t.Errorf("a folder that is no cgroup: %v; attached: %v", err, m.links)
	}
}

// wantSlots checks that the kernel has an owner's slot for what TestRegister registers.
func (m *tally) wantSlots(t *testing.T, group uint64, owner uint32) {
	t.Helper()
	want := maps.Collect(m.owners.All())[owner]
	var device, cpu, sockets uint32
	key := bpf.SoftirqReceiveDevice{Netns: 1, Ifindex: 2}
	err := errors.Join(m.objects.SlotByDevice.Lookup(key, &device), m.objects.SlotByCpuGroup.Lookup(uint64(3), &cpu),
		m.objects.SlotOfGroup.Lookup(group, &sockets))
	if err != nil || want == 0 || device != want || cpu != want || sockets != want || len(m.links) == 0 {
		t.Errorf("slots %d, %d and %d, want %d; %d programs; %v", device, cpu, sockets, want, len(m.links), err)
	}
}

// A removed group removes its program, too. Forgetting the group afterwards is no error.
func TestGroupGone(t *testing.T) {
	m := open(t)
	own := v2Own(t)
	g, err := cgroup.Create(own, "tsugiki-test-sockets-gone")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := g.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	id := inodeOf(t, dir.Name())
	if err := errors.Join(m.Group(dir, 1), g.Remove(), m.ForgetGroup(id, 1)); err != nil {
		t.Error(err)
	}
}

func TestClosed(t *testing.T) {
	m, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Interface(1, 2, 3), m.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	if _, err := m.Take(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("take after the end: %v", err)
	}
}
