package mounts

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const list = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n" +
	`31 22 0:27 /a\040-\040cgroup2 /mnt/33\0400:1\011\012\134\043 rw - btrfs /dev/vd\040b rw,subvol=/a` + "\n" +
	"32 22 0:29 / /none rw -  tmpfs rw\n" + // its name is empty
	"33 22 0:28 /s /x rw - overlay  rw,lowerdir=/l\n" +
	"short\n" + `34 22 0:28 / /bad\9 rw - overlay o rw` + "\n" +
	"42 30 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"

func ids(all []*Mount) (list []int) {
	for _, m := range all {
		list = append(list, m.ID)
	}
	return list
}

func TestParse(t *testing.T) {
	all, err := Parse(strings.NewReader(list), Any)
	if err != nil || len(all) != 5 {
		t.Fatalf("mounts %v (%v), want 5", ids(all), err)
	}
	m := all[1]
	if m.ID != 31 || m.Mountpoint != "/mnt/33 0:1\t\n\\#" || m.Root != "/a - cgroup2" || m.FSType != "btrfs" || m.Source != "/dev/vd b" {
		t.Errorf("names with white space: %+v", m)
	}
	if m := all[3]; m.Source != "" || m.VFSOptions != "rw,lowerdir=/l" || m.FSType != "overlay" {
		t.Errorf("a mount without a name: %+v", m)
	}
	if m := all[0]; m.Major != 254 || m.Minor != 0 || all[3].Major != 0 || all[3].Minor != 28 {
		t.Errorf("devices: %d:%d and %d:%d", m.Major, m.Minor, all[3].Major, all[3].Minor)
	}
	for name, c := range map[string]struct {
		want func([]byte) bool
		id   int
	}{"type": {Of("cgroup"), 42}, "id": {ID("33"), 33}} {
		if some, err := Parse(strings.NewReader(list), c.want); err != nil || len(some) != 1 || some[0].ID != c.id {
			t.Errorf("by %s: %v (%v), want %d", name, ids(some), err, c.id)
		}
	}
	for _, id := range []string{"", "1", "2", "333", "short"} {
		if some, err := Parse(strings.NewReader(list), ID(id)); err != nil || len(some) > 0 {
			t.Errorf("mount %q: %v (%v)", id, ids(some), err)
		}
	}
}

// A line that is longer than a library takes, and what comes after it.
func TestLongLine(t *testing.T) {
	layers := "lowerdir=" + strings.Repeat("/var/lib/layers/0123456789:", 10000)
	text := "7 1 0:9 / /merged rw - overlay overlay rw," + layers + "\n" + list
	all, err := Parse(strings.NewReader(text), Any)
	if err != nil || len(all) != 6 || all[0].Mountpoint != "/merged" || all[1].ID != 22 {
		t.Errorf("mounts %v (%v)", ids(all), err)
	}
}

// The kernel's own list: a mount point with every character that it escapes.
func TestKernelEscapes(t *testing.T) {
	runtime.LockOSThread() // and it ends with this goroutine
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Skipf("skip: needs a mount namespace: %v", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "a b\tc\nd\\e#f - cgroup2 x")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	name := "my - \\name\n"
	if err := unix.Mount(name, dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	all, err := Read("/proc/thread-self/mountinfo", Of("tmpfs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.Mountpoint == dir && m.Source == name {
			return
		}
	}
	t.Errorf("no mount at %q among %d", dir, len(all))
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(list))
	f.Add([]byte("31\n31 22\n31 22 0:x /"))
	f.Add([]byte("1 2 0:1 / / rw - a b c\x00\n\n\\"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := Parse(bytes.NewReader(text), Any)
		if err != nil || len(all) > bytes.Count(text, []byte{'\n'})+1 {
			t.Errorf("%d mounts in %d lines (%v)", len(all), bytes.Count(text, []byte{'\n'}), err)
		}
	})
}
