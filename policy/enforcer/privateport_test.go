package enforcer

import (
	"errors"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Another process finds the ports of a loopback, and gives no port twice.
func TestPrivatePortsAreFoundAgain(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		a, b := list[0], list[1]
		take := func(c *contained, port, lost, offered, want uint16) {
			t.Helper()
			if got, err := c.PrivatePort(unix.IPPROTO_TCP, port, lost, offered); got != want || err != nil {
				t.Errorf("private port of %d, %d being lost: %d, %v; want %d", port, lost, got, err, want)
			}
		}
		take(a, 80, 0, 0, 0)
		take(a, 80, 0, 40000, 40000)
		take(b, 80, 0, 40001, 40000)
		take(b, 80, 40000, 40001, 40001)
		take(a, 80, 40000, 40002, 40001)
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Fatal(err)
		}
		for _, i := range []int{0, 1} {
			e, err := Adopt(list[i].dir, list[i].table, nil)
			if err != nil {
				t.Fatal(err)
			}
			list[i].Enforcement = e
		}
		take(list[1], 80, 0, 40003, 40001)
		if !LoopbackOnHost(7) || LoopbackOnHost(6) {
			t.Errorf("on the host: 7 %v, 6 %v", LoopbackOnHost(7), LoopbackOnHost(6))
		}
		later, err := loadOwn()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = errors.Join(later.PolicyMaps.Close(), later.programs.Close()) }()
		for _, maps := range [][2]*ebpf.Map{
			{later.LocationByLoopback, list[0].set.LocationByLoopback}, {later.LoopbackBySocket, list[0].set.LoopbackBySocket},
		} {
			a, aerr := mapID(maps[0])
			b, berr := mapID(maps[1])
			if a != b || aerr != nil || berr != nil {
				t.Errorf("a later set has the map %d, %v, not %d, %v", a, aerr, b, berr)
			}
		}
		if kinds := kindsOf(list[0].loopback); !slices.Equal(kinds, []uint8{private, privateAs}) {
			t.Errorf("rows of the kinds %v", kinds)
		}
	})
}

func kindsOf(l *loopback) (kinds []uint8) {
	for _, key := range l.rows.list() {
		kinds = append(kinds, key.Kind)
	}
	slices.Sort(kinds)
	return kinds
}
