package enforcer

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// Another process finds the ports of a loopback, and gives no port twice.
func TestPrivatePortsAreFoundAgain(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		a, b := list[0], list[1]
		take := func(c *contained, port, lost, offered, want uint16) {
			t.Helper()
			if got, err := c.PrivatePort(unix.IPPROTO_TCP, port, lost, offered, nil); got != want || err != nil {
				t.Errorf("private port of %d, %d being lost: %d, %v; want %d", port, lost, got, err, want)
			}
		}
		take(a, 80, 0, 0, 0)
		take(a, 80, 0, 40000, 40000)
		take(b, 80, 0, 40001, 40000)
		take(b, 80, 40000, 40001, 40001)
		take(a, 80, 40000, 40002, 40001)
		take(a, 81, 0, 40001, 0)
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
		if later, _ := loadedSet(t); !later.hasTablesOf(list[0].set) {
			t.Error("a later set has other tables of loopbacks than the one that was taken over")
		}
		if kinds := kindsOf(list[0].loopback); !slices.Equal(kinds, []uint8{private, privateAs}) {
			t.Errorf("rows of the kinds %v", kinds)
		}
	})
}

// Where a loopback has as many private ports as it may have, those are forgotten that no socket has.
func TestPrivatePortsAreForgotten(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		c, used := list[0], map[uint16]bool{40001: true, 40000 + privateMax: true}
		inUse := func(protocol int) (map[uint16]bool, error) {
			if protocol != unix.IPPROTO_TCP {
				return nil, nil
			}
			return used, nil
		}
		take := func(port, offered uint16) error {
			got, err := c.PrivatePort(unix.IPPROTO_TCP, port, 0, offered, inUse)
			if err == nil && got != offered {
				t.Errorf("private port of %d: %d, want %d", port, got, offered)
			}
			return err
		}
		for i := range uint16(privateMax) {
			if err := take(1+i, 40001+i); err != nil {
				t.Error(err)
			}
		}
		if err := take(2000, 45000); err != nil {
			t.Error(err)
		}
		if kinds := kindsOf(c.loopback); !slices.Equal(kinds, []uint8{private, private, private, privateAs, privateAs, privateAs}) {
			t.Errorf("rows of the kinds %v", kinds)
		}
		used[45000] = true
		for i := range uint16(privateMax) {
			used[40001+i] = true
			if err := take(1+i, 40001+i); (err == nil) != (i != privateMax-2) || err != nil && !errors.Is(err, errNoRoom) {
				t.Errorf("private port of %d: %v", 1+i, err)
			}
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
