package softirq

import (
	"errors"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/charge/slots"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

func open(t *testing.T) *Meter {
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
	return m
}

// measure returns the work of a second.
func measure(t *testing.T, m *Meter) map[uint32]Work {
	t.Helper()
	if _, err := m.Take(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	works, err := m.Take()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", works)
	return works
}

// wantBilled wants a part of some work to have been billed, where the kernel bills.
func wantBilled(t *testing.T, m *Meter, what string, got, least, most time.Duration) {
	t.Helper()
	if !m.Billed() {
		if got != 0 {
			t.Errorf("%s: %v, on a kernel that bills nobody", what, got)
		}
		return
	}
	if got < least || got > most {
		t.Errorf("%s: %v, want %v to %v", what, got, least, most)
	}
}

// The sender runs the softirq on its own time: that is the receiver's, once, though
// the packets pass a bridge and two pairs of links.
func TestReceiverOwesSender(t *testing.T) {
	top := testkit.Build(t, testkit.Options{Containers: 3, NoRemote: true})
	m := open(t)
	var c [3]*container
	for i := range c {
		c[i] = newContainer(t, m, uint32(i+1), top.Containers[i])
		c[i].own(t, m)
	}
	addr := testkit.ContainerAddr4(0).String() + ":9"
	c[0].run(t, nil, "sink", 1, addr)
	c[1].run(t, nil, "burn", 0)
	c[2].run(t, nil, "flood", 0, addr)
	before := c[0].packets(t)
	works := measure(t, m)
	packets := c[0].packets(t) - before

	received := works[1].For
	if each := received / time.Duration(max(packets, 1)); each < 100*time.Nanosecond {
		t.Errorf("%v for %d packets, %v each", received, packets, each)
	}
	if received > 800*time.Millisecond { // the sender rests half of the time, or more
		t.Errorf("received for %v of a second: counted twice", received)
	}
	if works[2].For > received/10 || works[3].For > received/10 {
		t.Errorf("who receives nothing is received for: %v, %v", works[2].For, works[3].For)
	}
	wantBilled(t, m, "the sender's credit", works[3].Credit, received/2, received)
	if got := works[3].Charge(); m.Billed() && got > 0 {
		t.Errorf("the sender owes %v", got)
	}
}

// Packets that another CPU sent interrupt whoever runs where they are received. That
// is not always the busy container: the kernel's own thread takes over when there
// are many, and other programs run on the machine.
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
	stop := busy.run(t, nil, "burn", 0)
	outside.run(t, nil, "drip", 1, addr)
	works := measure(t, m)
	wantBilled(t, m, "the credit of who was interrupted", works[2].Credit, works[1].For/4, works[1].For)
	if works[1].For == 0 || works[2].For > works[1].For/10 {
		t.Errorf("received for the flooded %v, for the busy %v", works[1].For, works[2].For)
	}

	stop()
	flooded.run(t, nil, "burn", 0)
	works = measure(t, m)
	wantBilled(t, m, "what the receiver has paid itself", works[1].Own, works[1].For/4, works[1].For)
	if works[2] != (Work{}) {
		t.Errorf("who does nothing has %+v", works[2])
	}
}

// Containers that share an interface are told apart by their sockets.
func TestSocketsOfGroups(t *testing.T) {
	top := testkit.Build(t, testkit.Options{})
	m := open(t)
	sender := newContainer(t, m, 3, top.Remote)
	for owner := uint32(1); owner <= 2; owner++ {
		c := newContainer(t, m, owner, top.Host)
		dir := c.v2Group(t)
		if err := m.Group(dir, owner); err != nil {
			t.Fatal(err)
		}
		addr := testkit.HostAddr4.String() + []string{"", ":9", ":10"}[owner]
		c.run(t, dir, "sink", 1, addr)
	}
	stop := sender.run(t, nil, "flood", 0, testkit.HostAddr4.String()+":9")
	works := measure(t, m)
	if works[1].For == 0 || works[2].For > works[1].For/10 {
		t.Errorf("received for the flooded %v, for the other %v", works[1].For, works[2].For)
	}
	wantBilled(t, m, "the sender's credit", works[3].Credit, works[1].For/2, works[1].For)
	stop()
	sender.run(t, nil, "flood", 0, testkit.HostAddr4.String()+":10")
	if works = measure(t, m); works[2].For == 0 || works[1].For > works[2].For/10 {
		t.Errorf("received for the flooded %v, for the other %v", works[2].For, works[1].For)
	}
}

// v2Group is the group of cgroup2 that the container's programs are in.
func (c *container) v2Group(t *testing.T) *os.File {
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

func v2Group(t *testing.T, owner uint32) *os.File {
	t.Helper()
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
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
	for range 2 {
		if err := errors.Join(m.ForgetInterface(1, 2), m.ForgetCPUGroup(3), m.ForgetGroup(id)); err != nil {
			t.Fatal(err)
		}
	}
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

// A group that is gone takes its program along; forgetting it is no error.
func TestGroupGone(t *testing.T) {
	m := open(t)
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
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
	if err := errors.Join(m.Group(dir, 1), g.Remove(), m.ForgetGroup(id)); err != nil {
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
