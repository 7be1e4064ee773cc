package proc

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const rest = " S 7 1 1 0 -1 4194564 1 2 3 4 5 6 7 8 20 0 12 0 4711 9 9 9\n"

func TestParseStat(t *testing.T) {
	want := Stat{
		State: 'S', Parent: 7, Flags: 4194564, Start: 4711,
		User: 5 * Tick, System: 6 * Tick, ChildUser: 7 * Tick, ChildSystem: 8 * Tick,
	}
	for _, comm := range []string{"containerd-shim", "a) R 1 (b", "", ")", "(", ") S 1 1 1 1 1", "a\nb c\t", "\xff)"} {
		want.Comm = comm
		if got, err := ParseStat([]byte("12 (" + comm + ")" + rest)); err != nil || got != want {
			t.Errorf("%q: %+v, %v", comm, got, err)
		}
	}
	if got, err := ParseStat([]byte("12 (x)" + strings.Replace(rest, "S", "Z", 1))); err != nil || !got.Ended() || !got.Exiting() {
		t.Errorf("a zombie: %+v, %v", got, err)
	}
	if want.Ended() || want.CPU() != 260*time.Millisecond {
		t.Errorf("ended %v, used %v", want.Ended(), want.CPU())
	}
	for _, bad := range []string{
		"", "12", "12 (x", ")(", "12 (x) S", "12 (x) S x 1", "12 (x)" + strings.Replace(rest, "4711", "-1", 1),
		"12 (x)" + strings.Replace(rest, "7", "-7", 1), "12 (x)" + strings.Replace(rest, "S", "SS", 1),
		"12 (x)" + strings.Replace(rest, " 5 ", " 99999999999999999 ", 1),
	} {
		if got, err := ParseStat([]byte(bad)); !errors.Is(err, errStat) {
			t.Errorf("%q: %+v, %v", bad, got, err)
		}
	}
}

func TestFields(t *testing.T) {
	f := Fields("Name:\ta\\nUid:\\t0\nUid:\t1\t2\t3\t4\nUid:\t9\nCapEff:\t00000000a80425fb\nVmRSS:\t     12 kB\nnone\nHuge:\t9223372036854775807 kB\nEmpty:\t\n")
	if name, found := f.Get("Name"); name != "a\\nUid:\\t0" || !found {
		t.Errorf("name %q, %v", name, found)
	}
	if n, err := f.Numbers("Uid"); err != nil || len(n) != 4 || n[3] != 4 {
		t.Errorf("ids %v, %v", n, err)
	}
	if set, err := f.Set("CapEff"); err != nil || set != 0xa80425fb {
		t.Errorf("capabilities %#x, %v", set, err)
	}
	if n, err := f.Bytes("VmRSS"); err != nil || n != 12<<10 {
		t.Errorf("memory %d, %v", n, err)
	}
	for _, key := range []string{"Name", "none", "", "ui", "Empty", "Huge"} {
		if n, err := f.Numbers(key); err == nil {
			t.Errorf("numbers of %q: %v", key, n)
		}
		if n, err := f.Bytes(key); err == nil {
			t.Errorf("bytes of %q: %v", key, n)
		}
	}
}

// A process may call itself anything.
func TestHostileName(t *testing.T) {
	name := "a) R 1 (\nUid:\t"
	link := filepath.Join(t.TempDir(), name)
	cat, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(cat)
	if err == nil {
		err = os.WriteFile(link, text, 0o755) // the kernel takes the name from the path
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(link)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	end := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	defer end()
	// Start returns before the kernel has set the name. The program runs after that.
	_, err1 = in.Write([]byte("x"))
	_, err2 = io.ReadFull(out, make([]byte, 1))
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	stat, err := ReadStat(pid)
	if err != nil || stat.Comm != name || stat.Parent != os.Getpid() || stat.Start == 0 || stat.Ended() {
		t.Errorf("%+v (%v), want parent %d", stat, err, os.Getpid())
	}
	status, err := Status(pid)
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := status.Numbers("Uid"); err != nil || len(ids) != 4 || ids[0] != os.Getuid() {
		t.Errorf("ids %v (%v)", ids, err)
	}
	if n, err := status.Numbers("PPid"); err != nil || n[0] != os.Getpid() {
		t.Errorf("parent %v (%v)", n, err)
	}
	pss, err1 := PSS(pid)
	resident, err2 := Resident(pid)
	if err1 != nil || err2 != nil || pss <= 0 || resident <= 0 {
		t.Errorf("memory %d (%v), %d (%v)", pss, err1, resident, err2)
	}
	end()
	_, errStat := ReadStat(pid)
	_, errStatus := Status(pid)
	_, errPSS := PSS(pid)
	_, errResident := Resident(pid)
	for _, err := range []error{errStat, errStatus, errPSS, errResident} {
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			t.Errorf("of a process that is gone: %v", err)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (a) b)" + rest))
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := ParseStat(text); err == nil && (s.Parent < 0 || s.CPU() < 0) {
			t.Errorf("%+v", s)
		}
	})
}

func FuzzFields(f *testing.F) {
	f.Add("Uid:\t0\t0\nVmRSS:\t 12 kB\n", "Uid")
	f.Fuzz(func(t *testing.T, text, key string) {
		value, found := Fields(text).Get(key)
		if found && !strings.Contains(text, key+":") || strings.Contains(value, "\n") {
			t.Errorf("%q", value)
		}
		if list, err := Fields(text).Numbers(key); err == nil && len(list) == 0 {
			t.Error("no numbers, and no error")
		}
	})
}

func BenchmarkReadStat(b *testing.B) {
	for b.Loop() {
		if _, err := ReadStat(os.Getpid()); err != nil {
			b.Fatal(err)
		}
	}
}
