package enforcer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/policytest"
)

// dump is what the maps say, with rows of endpoints in the place of their
// numbers, and the numbers that have a row without being named.
func dump(t *testing.T, e *Enforcement) (rows map[string]string, unnamed []uint32) {
	t.Helper()
	eps := map[uint32]bpf.PolicyEndpoint{}
	written, err := e.set.readShared() // not what we think is there
	if err != nil {
		t.Fatal(err)
	}
	if written[e.id] == nil {
		t.Fatalf("container %d has no rows", e.id)
	}
	for _, at := range written[e.id].endpoints.list() {
		var ep bpf.PolicyEndpoint
		if err := e.set.EndpointByNumber.Lookup(at, &ep); err != nil {
			t.Fatal(err)
		}
		eps[at.Number] = ep
	}
	c := e.own.row
	if e.own.attached {
		if err := e.set.ContainerByCgroup.Lookup(e.cgroup, &c); err != nil {
			t.Fatal(err)
		}
	}
	for i, ep := range c.Endpoint {
		if (ep != bpf.PolicyEndpoint{}) {
			eps[uint32(i)] = ep
		}
	}
	rows, named := map[string]string{}, map[uint32]bool{}
	for _, key := range written[e.id].egress.list() {
		var row bpf.PolicyEgress
		if err := e.set.EgressByPrefix.Lookup(key, &row); err != nil {
			t.Fatal(err)
		}
		var says []string
		for _, r := range row.Range[:row.Count] {
			named[uint32(r.Endpoint)] = true
			says = append(says, fmt.Sprintf("%d-%d: %v", r.First, r.Last, eps[uint32(r.Endpoint)]))
		}
		rows[fmt.Sprintf("%x/%d", key.Addr.Word, key.Bits)] = strings.Join(says, "; ")
	}
	for number := range eps {
		if !named[number] {
			unnamed = append(unnamed, number)
		}
	}
	return rows, unnamed
}

// After any changes, the maps say what those of a table say that was there from
// the start.
func TestUpdateEqualsFresh(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 0))
	eps := map[string]*endpoint.Endpoint{}
	tb, err := policy.NewTable(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	netnsOf := func(ep *endpoint.Endpoint) uint64 { return uint64(ep.Addr.As4()[3]) }
	enforce(t, tb, func(e *Enforcement) {
		for step := range 40 {
			name := string("abcde"[random.IntN(5)])
			if eps[name] != nil && random.IntN(3) > 0 {
				delete(eps, name)
			} else {
				eps[name] = policytest.Fresh(t, name, random.IntN(250)+1)
			}
			next, err := tb.Next(nil, policytest.RulesOf(t, policytest.UpdateRules, eps))
			if err != nil {
				t.Fatal(err)
			}
			for i, ep := range next.Numbered() {
				if i < len(tb.Numbered()) && tb.Numbered()[i] != nil && ep != nil && tb.Numbered()[i] != ep {
					t.Fatalf("step %d: the number %d goes from %s to %s at once", step, i, tb.Numbered()[i], ep)
				}
			}
			if err := e.Update(next, netnsOf); err != nil {
				t.Fatal(err)
			}
			tb = next
			got, unnamed := dump(t, e)
			if len(unnamed) > 0 {
				t.Errorf("step %d: rows of endpoints that are gone: %v", step, unnamed)
			}
			again, err := policy.NewTable(nil, policytest.RulesOf(t, policytest.UpdateRules, eps))
			if err != nil {
				t.Fatal(err)
			}
			var want map[string]string
			enforceMaps(t, again, netnsOf, func(e *Enforcement) { want, _ = dump(t, e) })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("step %d, endpoints %v: fresh maps (-) and updated ones (+):\n%s", step, eps, diff)
			}
		}
	})
}

// enforceMaps fills maps with a table, without attaching programs.
func enforceMaps(t *testing.T, tb *policy.Table, netnsOf func(*endpoint.Endpoint) uint64, fn func(*Enforcement)) {
	t.Helper()
	s, number, err := takeNumber()
	if err != nil {
		t.Fatal(err)
	}
	e := enforcement(s, number, tables{}, tb)
	defer e.Close()
	defer e.End()
	if err := e.write(tb, netnsOf); err != nil {
		t.Fatal(err)
	}
	fn(e)
}

// While endpoints come and go, a socket gets the source of an endpoint that its
// destination has in the old table or in the new one, and of no other, though
// their numbers are used again and again.
func TestUpdateUnderWay(t *testing.T) {
	eps := map[string]*endpoint.Endpoint{"a": policytest.Fresh(t, "a", 1)}
	tb, err := policy.NewTable(nil, policytest.RulesOf(t, policytest.UpdateRules, eps))
	if err != nil {
		t.Fatal(err)
	}
	// By the last byte: a has 1, b 20 to 29, e 50 to 59.
	destinations := []struct {
		addr [4]byte
		may  func(last byte) bool
	}{
		{[4]byte{127, 5, 0, 1}, func(last byte) bool { return last == 1 }},
		{[4]byte{127, 2, 1, 1}, func(last byte) bool { return last == 1 || last/10 == 2 }},
		{[4]byte{127, 9, 0, 1}, func(last byte) bool { return last == 1 || last/10 == 5 }},
	}
	enforce(t, tb, func(e *Enforcement) {
		probe, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(probe)
		cookie, err := unix.GetsockoptUint64(probe, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		if err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var readers sync.WaitGroup
		readers.Add(1)
		tried := make([]int, len(destinations))
		go func() {
			// Sockets are the namespace's of the thread that makes them: all are made
			// here, and it goes through them.
			defer readers.Done()
			for i := 0; ; i = (i + 1) % len(destinations) {
				select {
				case <-stop:
					return
				default:
				}
				d := destinations[i]
				last, err := sourceOf(probe, d.addr)
				if err != nil || !d.may(last) {
					t.Errorf("%v: source 127.0.1.%d, %v", d.addr, last, err)
					return
				}
				tried[i]++
			}
		}()
		update := func() {
			t.Helper()
			next, err := tb.Next(nil, policytest.RulesOf(t, policytest.UpdateRules, eps))
			if err == nil {
				err = e.Update(next, func(*endpoint.Endpoint) uint64 { return cookie })
			}
			if err != nil {
				t.Error(err)
			}
			tb = next
		}
		numbers := map[int][]string{}
		for i := range 60 {
			name, base := "b", 20
			if i%2 == 1 {
				name, base = "e", 50
			}
			eps[name] = policytest.Fresh(t, name, base+i%10)
			update()
			at := slices.Index(tb.Numbered(), eps[name])
			if !slices.Contains(numbers[at], name) {
				numbers[at] = append(numbers[at], name)
			}
			delete(eps, name)
			update()
		}
		close(stop)
		readers.Wait()
		if len(numbers) != 1 {
			t.Errorf("numbers %v; this test wants one that is used for b and e in turn", numbers)
		}
		for i, n := range tried {
			if n < 100 {
				t.Errorf("destination %v was tried %d times only", destinations[i].addr, n)
			}
		}
	})
}

// sourceOf connects a UDP socket anew and returns the last byte of its source.
func sourceOf(s int, to [4]byte) (byte, error) {
	var unspec [16]byte // AF_UNSPEC: undoes a connect(2), and its source
	if _, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(s), uintptr(unsafe.Pointer(&unspec)), 16); errno != 0 {
		return 0, errno
	}
	if err := unix.Connect(s, &unix.SockaddrInet4{Port: 99, Addr: to}); err != nil {
		return 0, err
	}
	sa, err := unix.Getsockname(s)
	if err != nil {
		return 0, err
	}
	return sa.(*unix.SockaddrInet4).Addr[3], nil
}

// A table that is not the next of the one in force is refused.
func TestUpdateRefusesStrangers(t *testing.T) {
	eps := map[string]*endpoint.Endpoint{"a": policytest.Fresh(t, "a", 1)}
	tb, err := policy.NewTable(nil, policytest.RulesOf(t, policytest.UpdateRules, eps))
	if err != nil {
		t.Fatal(err)
	}
	eps["a"] = policytest.Fresh(t, "a", 2)
	stranger, err := policy.NewTable(nil, policytest.RulesOf(t, policytest.UpdateRules, eps))
	if err != nil {
		t.Fatal(err)
	}
	netnsOf := func(*endpoint.Endpoint) uint64 { return 1 }
	enforceMaps(t, tb, netnsOf, func(e *Enforcement) {
		before, _ := dump(t, e)
		if err := e.Update(stranger, netnsOf); err == nil {
			t.Error("taken")
		}
		if after, _ := dump(t, e); !cmp.Equal(before, after) {
			t.Error("the maps have changed")
		}
	})
}

// What cannot be written leaves the table that is in force.
func TestUpdateThatFails(t *testing.T) {
	eps := map[string]*endpoint.Endpoint{"a": policytest.Fresh(t, "a", 1)}
	tb, err := policy.NewTable(nil, policytest.RulesOf(t, policytest.UpdateRules, eps))
	if err != nil {
		t.Fatal(err)
	}
	var many []string
	for i := range policy.PrefixesMax - len(tb.Routes()) {
		many = append(many, fmt.Sprintf("10.0.%d.%d/32=z", i/250, i%250))
	}
	eps["z"] = policytest.Fresh(t, "z", 9)
	next, err := tb.Next(nil, append(policytest.RulesOf(t, policytest.UpdateRules, eps), policytest.RulesOf(t, many, eps)...))
	if err != nil {
		t.Fatal(err)
	}
	netnsOf := func(*endpoint.Endpoint) uint64 { return 1 }
	e := enforcement(smallSet(t, 500), 1, tables{}, tb)
	defer e.Close()
	if err := e.write(tb, netnsOf); err != nil {
		t.Fatal(err)
	}
	before, _ := dump(t, e)
	if err := e.Update(next, netnsOf); err == nil {
		t.Fatal("more prefixes than the map has room for were taken")
	}
	after, unnamed := dump(t, e)
	if diff := cmp.Diff(before, after); diff != "" || len(unnamed) > 0 {
		t.Errorf("the maps have changed (rows without a name: %v):\n%s", unnamed, diff)
	}
	if err := e.Update(tb, netnsOf); err != nil {
		t.Errorf("later: %v", err)
	}
}

// smallSet has maps with room for some rows, and no programs.
func smallSet(t *testing.T, rows uint32) *set {
	t.Helper()
	spec, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	small := &set{users: 1}
	for name, m := range map[string]**ebpf.Map{"egress_by_prefix": &small.EgressByPrefix, "endpoint_by_number": &small.EndpointByNumber, "name_by_number": &small.NameByNumber, "location_by_service": &small.LocationByService, "location_by_loopback": &small.LocationByLoopback, "verdict_by_source": &small.VerdictBySource} {
		of := spec.Maps[name].Copy()
		of.MaxEntries = rows
		if *m, err = ebpf.NewMap(of); err != nil {
			t.Fatal(err)
		}
	}
	return small
}
