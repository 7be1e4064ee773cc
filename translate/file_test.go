package translate

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/tsugiki/tsugiki/internal/mapped"
)

const slotSize = int(unsafe.Sizeof(slot{}))

// onFile returns the options of a table of 14 virtual addresses with a file.
func onFile(t testing.TB) (Options, *clock) {
	c := &clock{}
	c.pass(time.Hour)
	return Options{Prefix: netip.MustParsePrefix("198.18.0.0/28"), Clock: c.read, File: filepath.Join(t.TempDir(), "table")}, c
}

// filled writes a file with three mappings and returns it.
func filled(t testing.TB, o Options) []byte {
	t.Helper()
	table, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for n := range uint32(3) {
		mustMap(t, table, remote(n+1), 0)
	}
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(o.File)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestTableIsKept(t *testing.T) {
	o, c := onFile(t)
	s := &sockets{to: map[netip.Addr]int{}}
	o.Connected = s.read
	filled(t, o)
	c.pass(time.Hour) // no process has the table meanwhile
	table := newTable(t, o)
	for n := range uint32(3) {
		want := netip.AddrFrom4([4]byte{198, 18, 0, byte(n + 1)})
		if v6, ok := table.V6(want); !ok || v6 != remote(n+1) {
			t.Errorf("%s is %s (%v)", want, v6, ok)
		}
	}
	if err := inverse(table); err != nil {
		t.Error(err)
	}
	for n := range uint32(11) {
		mustMap(t, table, remote(100+n), time.Hour)
	}
	// Programs that have an old address in hand have Grace to connect.
	if _, err := table.Map(remote(200), 0); !errors.Is(err, ErrExhausted) {
		t.Errorf("a mapping that a program may use was reclaimed: %v", err)
	}
	s.connect(addr("198.18.0.2"), 1)
	c.pass(Grace + time.Second)
	for n, want := range []string{"198.18.0.1", "198.18.0.3"} {
		if got := mustMap(t, table, remote(201+uint32(n)), 0); got != addr(want) {
			t.Errorf("reclaimed %s, want %s", got, want)
		}
	}
}

func TestOneProcessHasTheTable(t *testing.T) {
	defer func(was time.Duration) { busyWait = was }(busyWait)
	busyWait = 0
	o, _ := onFile(t)
	newTable(t, o)
	if _, err := New(o); !errors.Is(err, mapped.ErrBusy) || !errors.Is(err, ErrState) {
		t.Errorf("second table on one file: %v, want %v", err, mapped.ErrBusy)
	}
}

// change is a change of a file's bytes by somebody else.
type change struct {
	name string
	do   func(data []byte) []byte
}

// at returns the slot of a virtual address in the file's bytes.
func at(data []byte, i int) []byte {
	return data[mapped.HeaderSize+i*slotSize : mapped.HeaderSize+(i+1)*slotSize]
}

// forge writes a mapping with a correct checksum.
func forge(data []byte, i int, v6 netip.Addr, until int64) {
	s := slot{v6: v6.As16(), until: until}
	s.sum = s.checksum(uint32(i))
	copy(at(data, i), s.v6[:])
	binary.NativeEndian.PutUint64(at(data, i)[16:], uint64(until))
	binary.NativeEndian.PutUint32(at(data, i)[24:], s.sum)
}

var hostile = []change{
	{"an address is changed", func(d []byte) []byte { at(d, 2)[3]++; return d }},
	{"a checksum is changed", func(d []byte) []byte { at(d, 2)[25]++; return d }},
	{"two mappings are exchanged", func(d []byte) []byte {
		one := bytes.Clone(at(d, 1))
		copy(at(d, 1), at(d, 2))
		copy(at(d, 2), one)
		return d
	}},
	{"an address is there twice", func(d []byte) []byte { forge(d, 5, remote(1), 0); return d }},
	{"loopback", func(d []byte) []byte { forge(d, 5, addr("::1"), 0); return d }},
	{"IPv4-mapped", func(d []byte) []byte { forge(d, 5, addr("::ffff:127.0.0.1"), 0); return d }},
	{"the host's own", func(d []byte) []byte { forge(d, 5, remote(666), 0); return d }},
	{"the network's address", func(d []byte) []byte { forge(d, 0, remote(9), 0); return d }},
	{"the broadcast address", func(d []byte) []byte { forge(d, 15, remote(9), 0); return d }},
	{"another pool", func(d []byte) []byte { d[mapped.Spare+1]++; return d }},
	{"another length of the pool", func(d []byte) []byte { d[mapped.Spare+4]--; return d }},
	{"another magic", func(d []byte) []byte { d[0]++; return d }},
	{"cut", func(d []byte) []byte { return d[:len(d)-slotSize] }},
	{"longer", func(d []byte) []byte { return append(d, make([]byte, slotSize)...) }},
	{"the header alone", func(d []byte) []byte { return d[:100] }},
}

func TestHostileFileIsRefused(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			o, _ := onFile(t)
			o.Refuse = func(a netip.Addr) (bool, error) { return a == remote(666), nil }
			data := c.do(filled(t, o))
			if err := os.WriteFile(o.File, data, 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 { // a second look refuses it, too
				_, err := New(o)
				if !errors.Is(err, ErrState) || strings.Contains(err.Error(), "\n") {
					t.Errorf("New: %v, want one line of %v", err, ErrState)
				}
			}
			if left, err := os.ReadFile(o.File); err != nil || !bytes.Equal(left, data) {
				t.Errorf("the file was changed (%v)", err)
			}
		})
	}
}

func TestFileThatOthersCanWriteIsRefused(t *testing.T) {
	o, _ := onFile(t)
	filled(t, o)
	if err := os.Chmod(o.File, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := New(o); !errors.Is(err, ErrState) {
		t.Errorf("New: %v, want %v", err, ErrState)
	}
}

// The checksum does not cover the deadline. No value of it keeps a mapping for ever, or for less
// than Grace.
func TestHostileDeadline(t *testing.T) {
	for _, until := range []int64{-1 << 63, 0, 1<<63 - 1} {
		o, c := onFile(t)
		data := filled(t, o)
		for i := range 14 {
			forge(data, i+1, remote(uint32(i)), until)
		}
		if err := os.WriteFile(o.File, data, 0o600); err != nil {
			t.Fatal(err)
		}
		table := newTable(t, o)
		if _, err := table.Map(remote(100), 0); !errors.Is(err, ErrExhausted) {
			t.Errorf("deadline %d: a mapping that a program may use was reclaimed: %v", until, err)
		}
		c.pass(MaxTTL + Grace + 1)
		mustMap(t, table, remote(100), 0)
	}
}

// A file of another boot of the machine is ignored.
func TestOtherBoot(t *testing.T) {
	o, _ := onFile(t)
	data := filled(t, o)
	copy(data[8:], "00000000-0000-0000-0000-000000000000")
	if err := os.WriteFile(o.File, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if s := newTable(t, o).Stats(); s.Mappings != 0 {
		t.Errorf("%d mappings of another boot", s.Mappings)
	}
}

// For any slots of a file, the table is refused, or its halves are inverse of each other and it has
// no special address.
func FuzzFile(f *testing.F) {
	o, _ := onFile(f)
	good := filled(f, o)
	f.Add(good[mapped.HeaderSize:], false)
	for _, c := range hostile {
		if d := c.do(bytes.Clone(good)); len(d) == len(good) {
			f.Add(d[mapped.HeaderSize:], false)
			f.Add(d[mapped.HeaderSize:], true)
		}
	}
	f.Fuzz(func(t *testing.T, slots []byte, forged bool) {
		o, _ := onFile(t)
		o.Clock = nil
		data := bytes.Clone(good)
		copy(data[mapped.HeaderSize:], slots)
		for i := range 16 {
			if s := at(data, i); forged && s[24]&1 == 1 {
				forge(data, i, netip.AddrFrom16([16]byte(s)), int64(binary.NativeEndian.Uint64(s[16:])))
			}
		}
		if err := os.WriteFile(o.File, data, 0o600); err != nil {
			t.Fatal(err)
		}
		table, err := New(o)
		if err != nil {
			if !errors.Is(err, ErrState) {
				t.Errorf("New: %v", err)
			}
			return
		}
		defer table.Close()
		if err := inverse(table); err != nil {
			t.Error(err)
		}
		for _, m := range table.Mappings() {
			if special6(m.V6) || !o.Prefix.Contains(m.V4) {
				t.Errorf("mapping %v", m)
			}
		}
	})
}

// A process is killed while it maps addresses. The file has every mapping that the process has
// reported.
func TestKilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "table")
	told := map[netip.Addr]netip.Addr{}
	for round := range uint32(5) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestMapForEver$")
		cmd.Env = append(os.Environ(), "TSUGIKI_TEST_TABLE="+file, fmt.Sprintf("TSUGIKI_TEST_FIRST=%d", round*100_000))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			var v6, v4 string
			if got, _ := fmt.Sscan(lines.Text(), &v6, &v4); got == 2 {
				told[addr(v6)] = addr(v4)
			}
			if n == 200+int(round) {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait() // it was killed
	}
	table := newTable(t, Options{File: file})
	if err := inverse(table); err != nil {
		t.Error(err)
	}
	if len(told) < 5*200 {
		t.Errorf("%d mappings were told of", len(told))
	}
	for v6, v4 := range told {
		if got, ok := table.V6(v4); !ok || got != v6 {
			t.Errorf("%s is %s (%v), and was %s", v4, got, ok, v6)
		}
	}
}

// TestMapForEver is the process that TestKilled kills.
func TestMapForEver(t *testing.T) {
	file := os.Getenv("TSUGIKI_TEST_TABLE")
	if file == "" {
		return
	}
	var first uint32
	if _, err := fmt.Sscan(os.Getenv("TSUGIKI_TEST_FIRST"), &first); err != nil {
		t.Fatal(err)
	}
	table := newTable(t, Options{File: file})
	for n := first; ; n++ {
		fmt.Println(remote(n), mustMap(t, table, remote(n), 0))
	}
}
