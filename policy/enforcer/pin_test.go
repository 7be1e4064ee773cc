package enforcer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/sys/lock"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// loadedSet is what another process would get, with the number of its map of containers.
func loadedSet(t *testing.T) (*set, ebpf.MapID) {
	t.Helper()
	s, err := loadSet()
	if err != nil {
		t.Fatal(err)
	}
	id, err := mapID(s.ContainerByCgroup)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s, id
}

// pinned lists what is in our directory of the BPF file system.
func pinned(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(bpffs, pinsFolder))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func keyOf(t *testing.T) string {
	t.Helper()
	key, err := pinKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// pinnedID is the number of the map of containers of the pinned set.
func pinnedID(t *testing.T) ebpf.MapID {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(bpffs, pinsFolder, keyOf(t), "container_by_cgroup"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	id, err := mapID(m)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// onlyKey checks that the pinned set is there, and nothing else.
func onlyKey(t *testing.T) {
	t.Helper()
	if diff := cmp.Diff([]string{keyOf(t)}, pinned(t)); diff != "" {
		t.Errorf("pins (-want +got):\n%s", diff)
	}
}

// A second process has the set of the first, and other numbers.
func TestPins(t *testing.T) {
	testkit.CheckLeaks(t)
	pinTrivial(t)
	a, first := loadedSet(t)
	b, second := loadedSet(t)
	if first != second || a.shared == nil || b.shared == nil {
		t.Errorf("sets %d and %d", first, second)
	}
	onlyKey(t)
	*a.last += 5
	if *b.last != *a.last {
		t.Errorf("the numbers given last are %d and %d", *a.last, *b.last)
	}
	programs := 0
	_ = eachPin(&b.programs, func(name string, p **ebpf.Program) error {
		programs++
		info, err := (*p).Info()
		if err != nil || info.Name != name[:min(len(name), mapNameMax)] {
			t.Errorf("program %s is %+v, %v", name, info, err)
		}
		return nil
	})
	if programs != len(hooks(&b.programs)) {
		t.Errorf("%d programs, %d hooks", programs, len(hooks(&b.programs)))
	}
}

// Where there is no BPF file system, each process has a set of its own.
func TestNoBPFFileSystem(t *testing.T) {
	pinTrivial(t)
	before := bpffs
	defer func() { bpffs = before }()
	for _, at := range []string{t.TempDir(), filepath.Join(t.TempDir(), "missing")} {
		bpffs = at
		if path, err := Pins(); err == nil {
			t.Errorf("pins at %s", path)
		}
		a, first := loadedSet(t)
		if _, second := loadedSet(t); first == second || a.shared != nil {
			t.Errorf("sets %d and %d", first, second)
		}
		if names, _ := os.ReadDir(at); len(names) > 0 {
			t.Errorf("made %v", names)
		}
		if err := Unpin(); err != nil {
			t.Errorf("unpin: %v", err)
		}
	}
}

// Processes that start at once, with and without pins, have no number twice.
func TestPinsAtOnce(t *testing.T) {
	mount := pinTrivial(t)
	const processes, each = 6, 40
	seen := map[string]bool{}
	for round := range 2 {
		var all []*exec.Cmd
		var outputs []*strings.Builder
		for range processes {
			cmd, out := other(mount, fmt.Sprintf("take %d", each)), &strings.Builder{}
			cmd.Stdout = out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			all, outputs = append(all, cmd), append(outputs, out)
		}
		for i, cmd := range all {
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(outputs[i].String()) {
				if seen[line] {
					t.Errorf("round %d: given twice: %s", round, line)
				}
				seen[line] = true
			}
		}
	}
	if len(seen) != 2*processes*each {
		t.Errorf("%d numbers", len(seen))
	}
	onlyKey(t)
	s, id := loadedSet(t)
	if want := fmt.Sprintf("%d %d\n", id, s.first+*s.last); !seen[want] {
		t.Errorf("the last number of the pinned set, %q, was given to nobody", want)
	}
}

// A set that succeeds one has the tables by which the containers of a loopback know each other's
// sockets, whoever loads it; and it gives no number that the former has given.
func TestSuccessor(t *testing.T) {
	testkit.CheckLeaks(t)
	mount := pinTrivial(t)
	former, id := loadedSet(t)
	*former.last = containersMax - 1
	if out, err := other(mount, "take 1").Output(); err != nil || strings.HasPrefix(string(out), fmt.Sprint(id)) {
		t.Fatalf("another process: %s, %v", out, err)
	}
	next, second := loadedSet(t)
	if second == id || !next.hasTablesOf(former) || next.shared == nil {
		t.Errorf("the set that another process has pinned has other tables")
	}
	if next.first == former.first || next.first%containersMax != 0 || next.first >= loopbackBit {
		t.Errorf("numbers begin at %d, the former set's at %d", next.first, former.first)
	}
}

// Where the pins are of a set with other tables than the process uses, it loads a set for itself.
func TestSuccessorOfRemovedPins(t *testing.T) {
	testkit.CheckLeaks(t)
	pinTrivial(t)
	former, mount := almostUsedUp(t)
	first, _, err := takeNumber()
	if err != nil || first != former {
		t.Fatalf("set %p, %v; want %p", first, err, former)
	}
	if err := Unpin(); err != nil {
		t.Fatal(err)
	}
	if err := other(mount, "take 1").Run(); err != nil {
		t.Fatal(err)
	}
	strangers := pinnedID(t)
	second, _, err := takeNumber()
	if err != nil {
		t.Fatal(err)
	}
	if second == first || second.shared != nil || !second.hasTablesOf(first) {
		t.Errorf("the next containers are of a set with other tables, or of one that others have: %v", second.shared != nil)
	}
	if err := errors.Join(first.leave(), second.leave()); err != nil {
		t.Error(err)
	}
	if id := pinnedID(t); id != strangers {
		t.Errorf("the pinned set is %d, was %d", id, strangers)
	}
}

// A process that is killed at any step of pinning leaves nothing that another would use by
// mistake, nor anything for long.
func TestKilledWhilePinning(t *testing.T) {
	for _, step := range []string{"made", "half", "pinned", "moved", "named"} {
		t.Run(step, func(t *testing.T) {
			mount := pinTrivial(t)
			former, used := loadedSet(t)
			*former.last = containersMax - 1
			cmd := other(mount, "die "+step)
			err := cmd.Run()
			if status, ok := cmd.ProcessState.Sys().(interface{ Signaled() bool }); !ok || !status.Signaled() {
				t.Fatalf("the other process was not killed: %v", err)
			}
			if step == "half" && len(pinned(t)) != 2 {
				t.Fatalf("%v is left, want a directory that is half done", pinned(t))
			}
			s, id := loadedSet(t)
			if id == used || s.shared == nil || *s.last >= containersMax-1 {
				t.Errorf("set %d, the one that is used up is %d", id, used)
			}
			if _, again := loadedSet(t); again != id {
				t.Errorf("set %d, then %d", id, again)
			}
			if step != "named" { // whoever pins next removes the former set
				onlyKey(t)
			}
			if _, _, err := takeNumber(); err != nil {
				t.Errorf("no number: %v", err)
			} else if err := sets.current.leave(); err != nil {
				t.Error(err)
			}
		})
	}
}

// untrusted are changes after which the pins are not used. With pinning, another set is pinned.
var untrusted = []struct {
	name    string
	pinning bool
	change  func(root, folder, key string) error
}{
	{"another may write in the file system", false, func(root, _, _ string) error { return os.Chmod(root, 0o777) }},
	{"the file system is another's", false, func(root, _, _ string) error { return os.Chown(root, 65534, 0) }},
	{"the folder is another's", false, func(_, folder, _ string) error { return os.Chown(folder, 65534, 0) }},
	{"a group may write in the folder", false, func(_, folder, _ string) error { return os.Chmod(folder, 0o770) }},
	{"the folder is a symbolic link", false, func(root, folder, _ string) error {
		return errors.Join(os.Rename(folder, root+"/elsewhere"), os.Symlink("elsewhere", folder))
	}},
	{"the set is another's", true, func(_, _, key string) error { return os.Chown(key, 65534, 0) }},
	{"all may write in the set", true, func(_, _, key string) error { return os.Chmod(key, 0o777) }},
	{"the set is a symbolic link", true, func(_, folder, key string) error {
		return errors.Join(os.Rename(key, folder+"/elsewhere"), os.Symlink("elsewhere", key))
	}},
	{"a program is another's", true, func(_, _, key string) error { return os.Chown(key+"/connect4", 65534, 0) }},
	{"all may use a map", true, func(_, _, key string) error { return os.Chmod(key+"/egress_by_prefix", 0o666) }},
	{"a map is a symbolic link", true, func(_, _, key string) error {
		return errors.Join(os.Rename(key+"/egress_by_prefix", key+"/elsewhere"), os.Symlink("elsewhere", key+"/egress_by_prefix"))
	}},
	{"a program is missing", true, func(_, _, key string) error { return os.Remove(key + "/guard_listen") }},
	{"a map is missing", true, func(_, _, key string) error { return os.Remove(key + "/sender_tables") }},
	{"the counter is missing", true, func(_, _, key string) error { return os.Remove(key + "/" + lastNumber) }},
	{"a map is in a program's place", true, func(_, _, key string) error {
		return errors.Join(os.Remove(key+"/leave"), os.Rename(key+"/"+lastNumber, key+"/leave"))
	}},
	{"nothing is in the set", true, func(_, _, key string) error { return errors.Join(os.RemoveAll(key), os.Mkdir(key, 0o700)) }},
	{"the set is another version's", true, func(_, folder, key string) error { return os.Rename(key, folder+"/0123456789abcdef0123456789abcdef") }},
}

func TestUntrustedPins(t *testing.T) {
	for _, tt := range untrusted {
		t.Run(tt.name, func(t *testing.T) {
			pinTrivial(t)
			_, was := loadedSet(t)
			folder := filepath.Join(bpffs, pinsFolder)
			if err := tt.change(bpffs, folder, filepath.Join(folder, keyOf(t))); err != nil {
				t.Fatal(err)
			}
			s, is := loadedSet(t)
			if is == was {
				t.Error("the pins are used")
			}
			if (s.shared != nil) != tt.pinning {
				t.Errorf("a set was pinned: %v", s.shared != nil)
			}
			if !tt.pinning {
				if path, err := Pins(); err == nil {
					t.Errorf("pins at %s", path)
				}
				return
			}
			onlyKey(t)
			if _, again := loadedSet(t); again != is {
				t.Error("what was pinned then is not used")
			}
		})
	}
}

// A process that is stopped while it pins a set delays nobody.
func TestNobodyWaitsForPins(t *testing.T) {
	pinTrivial(t)
	p, err := openPins()
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Take(p.dir); err != nil {
		t.Fatal(err)
	}
	_, mine := loadedSet(t)
	if _, other := loadedSet(t); mine == other {
		t.Error("a set was pinned in spite of the lock")
	}
	if err := p.dir.Close(); err != nil {
		t.Fatal(err)
	}
	_, now := loadedSet(t)
	if _, again := loadedSet(t); now != again {
		t.Error("nothing is pinned after the lock is free")
	}
}

// What is attached stays so when the pins are removed.
func TestUnpin(t *testing.T) {
	bpfFileSystem(t)
	containers(t, func(_ uint64, list []*contained) {
		if list[0].set != list[1].set || list[0].set.shared == nil {
			t.Error("the set is not pinned")
		}
		if err := Unpin(); err != nil {
			t.Fatal(err)
		}
		if names, _ := os.ReadDir(bpffs); len(names) > 0 && cmp.Equal(names[0].Name(), pinsFolder) {
			t.Errorf("left: %v", names)
		}
		if !list[0].reaches(t) || list[1].reaches(t) {
			t.Error("what is attached is not in force")
		}
		was, err := mapID(list[0].set.ContainerByCgroup)
		if _, is := loadedSet(t); is == was || err != nil {
			t.Errorf("the former set is still found, %v", err)
		}
	}, []string{"0.0.0.0/0=any"}, nil)
}

// The container of another process shares the set, and nothing else. When that process is killed,
// the rules stay in force until ForgetKilled, which leaves no row.
func TestContainersOfProcesses(t *testing.T) {
	mount := bpfFileSystem(t)
	containers(t, func(here uint64, list []*contained) {
		mine := list[0]
		withGroup(t, "other", func(group *cgroup.Group, dir *os.File) {
			cmd, id, number := startOther(t, mount, group, here)
			theirs := &contained{Enforcement: &Enforcement{set: mine.set, id: number}, group: group, dir: dir}
			if own, err := mapID(mine.set.ContainerByCgroup); own != id || number == mine.id || err != nil {
				t.Fatalf("sets %d and %d, numbers %d and %d, %v", own, id, mine.id, number, err)
			}
			if mine.reaches(t) || !theirs.reaches(t) {
				t.Error("one's rules are in force for the other")
			}
			s := theirs.socket(t, unix.SOCK_DGRAM)
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if err := unix.Sendto(s, []byte("x"), 0, somewhere); errors.Is(err, unix.EPERM) {
				t.Error("the rules went with the process")
			}
			if err := ForgetKilled(dir); err != nil {
				t.Fatal(err)
			}
			Settle()
			if err := unix.Sendto(s, []byte("x"), 0, somewhere); !errors.Is(err, unix.EPERM) {
				t.Errorf("a socket that is left sends: %v", err)
			}
			rows, err := mine.set.readShared()
			if err != nil || rows[number] != nil || rows[mine.id] == nil {
				t.Errorf("rows: %v, %v", rows, err)
			}
			for _, outer := range mine.set.outer() {
				var table ebpf.MapID
				if err := outer.Lookup(placeOf(number), &table); !errors.Is(err, ebpf.ErrKeyNotExist) {
					t.Errorf("a table is left in %v: %v", outer, err)
				}
			}
			if err := ForgetKilled(dir); err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}, nil)
}

// Tables that are made are those that the object describes.
func TestTableSpecs(t *testing.T) {
	object, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"sender_tables", "peer_tables"} {
		if diff := cmp.Diff(object.Maps[name].InnerMap, tableSpecs[i], cmpopts.IgnoreUnexported(ebpf.MapSpec{}), cmpopts.IgnoreFields(ebpf.MapSpec{}, "Tags")); diff != "" {
			t.Errorf("%s (-object +ours):\n%s", name, diff)
		}
	}
}
