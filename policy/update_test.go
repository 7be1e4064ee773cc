package policy

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
)

// updateRules name endpoints that come and go.
var updateRules = []string{
	"127.0.0.0/8=a", "127.2.0.0/16=b", "127.2.3.0/24:53=c", "127.2.3.0/24=d", "127.9.0.0/16=e", "10.0.0.0/8=b", "10.1.0.0/16:80-90=c",
}

// rulesOf are the rules whose endpoints there are.
func rulesOf(t *testing.T, rules []string, eps map[string]*endpoint.Endpoint) []Egress {
	t.Helper()
	var active []Egress
	for _, s := range rules {
		what, name, _ := strings.Cut(s, "=")
		if eps[name] == nil {
			continue
		}
		var set endpoint.Set
		if err := set.Add(eps[name]); err != nil {
			t.Fatal(err)
		}
		r, err := ParseEgress(what+"="+name, &set)
		if err != nil {
			t.Fatal(err)
		}
		active = append(active, r)
	}
	return active
}

// fresh is an endpoint with an address of its own, of the namespace that netnsOf
// gives for it.
func fresh(t *testing.T, name string, last int) *endpoint.Endpoint {
	t.Helper()
	ep, err := endpoint.Parse(fmt.Sprintf("%s type ipv4 addr 127.0.1.%d port dynamic", name, last))
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

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
	tb, err := NewTable(nil, nil)
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
				eps[name] = fresh(t, name, random.IntN(250)+1)
			}
			next, err := tb.Next(nil, rulesOf(t, updateRules, eps))
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
			again, err := NewTable(nil, rulesOf(t, updateRules, eps))
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
func enforceMaps(t *testing.T, tb *Table, netnsOf func(*endpoint.Endpoint) uint64, fn func(*Enforcement)) {
	t.Helper()
	s, p, err := takePrepared()
	if err != nil {
		t.Fatal(err)
	}
	e := enforcement(s, p.id, p.tables, tb)
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
	eps := map[string]*endpoint.Endpoint{"a": fresh(t, "a", 1)}
	tb, err := NewTable(nil, rulesOf(t, updateRules, eps))
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
			next, err := tb.Next(nil, rulesOf(t, updateRules, eps))
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
			eps[name] = fresh(t, name, base+i%10)
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
	eps := map[string]*endpoint.Endpoint{"a": fresh(t, "a", 1)}
	tb, err := NewTable(nil, rulesOf(t, updateRules, eps))
	if err != nil {
		t.Fatal(err)
	}
	eps["a"] = fresh(t, "a", 2)
	stranger, err := NewTable(nil, rulesOf(t, updateRules, eps))
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
	eps := map[string]*endpoint.Endpoint{"a": fresh(t, "a", 1)}
	tb, err := NewTable(nil, rulesOf(t, updateRules, eps))
	if err != nil {
		t.Fatal(err)
	}
	var many []string
	for i := range PrefixesMax - len(tb.Routes()) {
		many = append(many, fmt.Sprintf("10.0.%d.%d/32=z", i/250, i%250))
	}
	eps["z"] = fresh(t, "z", 9)
	next, err := tb.Next(nil, append(rulesOf(t, updateRules, eps), rulesOf(t, many, eps)...))
	if err != nil {
		t.Fatal(err)
	}
	netnsOf := func(*endpoint.Endpoint) uint64 { return 1 }
	spec, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	small := &set{users: 1}
	for name, m := range map[string]**ebpf.Map{"egress_by_prefix": &small.EgressByPrefix, "endpoint_by_number": &small.EndpointByNumber, "name_by_number": &small.NameByNumber, "location_by_service": &small.LocationByService} {
		of := spec.Maps[name].Copy()
		of.MaxEntries = 500
		if *m, err = ebpf.NewMap(of); err != nil {
			t.Fatal(err)
		}
	}
	e := enforcement(small, 1, tables{}, tb)
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

// A rule is written as it is read, and takes only an endpoint that fits.
func TestRulesWithOtherEndpoints(t *testing.T) {
	var set endpoint.Set
	for _, s := range []string{
		"any type ipv4 addr 0.0.0.0 port dynamic", "six type ipv6 addr :: port dynamic", "one type ipv4 addr 0.0.0.0 port 80",
		"few type ipv4 addr 0.0.0.0 port 8000-8009", "un type unix path /un",
	} {
		ep, err := endpoint.Parse(s)
		if err == nil {
			err = set.Add(ep)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	fitting := map[string]string{ // rule, the endpoints that fit
		"0.0.0.0:80=any": "any one un", "0.0.0.0:8000-8003=any": "any few", "[::]:80=six": "six un", "[::]:80-81=six": "six",
		"10.0.0.0/8=any": "any one un", "10.0.0.0/8:1-9=any": "any one un", "[::/0]:80=six": "six un", "2001:db8::/32=six": "six un",
	}
	for s, want := range fitting {
		var fits []string
		for _, ep := range set.All() {
			in, err := ParseIngress(s, &set)
			text, with := in.String(), error(nil)
			if err == nil {
				_, with = in.With(ep)
			} else {
				var out Egress
				if out, err = ParseEgress(s, &set); err != nil {
					t.Fatal(err)
				}
				text = out.String()
				_, with = out.With(ep)
			}
			if text != s {
				t.Errorf("%s is written %s", s, text)
			}
			if with == nil {
				fits = append(fits, ep.Name)
			}
		}
		slices.Sort(fits)
		if got := strings.Join(fits, " "); got != want {
			t.Errorf("%s takes %s, want %s", s, got, want)
		}
	}
}

// Later tables lead where a fresh one would, in Go and in the image for C.
func TestNextAgreesWithSnapshot(t *testing.T) {
	lookup := buildLookup(t)
	eps := map[string]*endpoint.Endpoint{"a": fresh(t, "a", 1), "b": fresh(t, "b", 2)}
	first, err := NewTable(nil, rulesOf(t, updateRules, eps))
	if err != nil {
		t.Fatal(err)
	}
	gone := slices.Index(first.Numbered(), eps["a"])
	delete(eps, "a")
	eps["c"], eps["e"] = fresh(t, "c", 3), fresh(t, "e", 5)
	tb, err := first.Next(nil, rulesOf(t, updateRules, eps))
	if err != nil {
		t.Fatal(err)
	}
	if tb.Numbered()[gone] != nil {
		t.Fatalf("endpoints %v: the number of one that is gone is used at once", tb.Numbered())
	}
	checkLookup(t, lookup, tb, rand.New(rand.NewPCG(4, 0)))
}
