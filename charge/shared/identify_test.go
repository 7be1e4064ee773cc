package shared

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const mountList = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 22 0:27 / /mnt/33\\0400:1 rw - btrfs /dev/vdb rw,subvol=/a
33 22 0:28 /s /x rw - overlay overlay rw
`

func TestMountDevice(t *testing.T) {
	for id, want := range map[string]uint64{"22": unix.Mkdev(254, 0), "31": unix.Mkdev(0, 27), "33": unix.Mkdev(0, 28)} {
		if got, err := mountDevice(strings.NewReader(mountList), id); err != nil || got != want {
			t.Errorf("mount %s: device %#x (%v), want %#x", id, got, err, want)
		}
	}
	for _, id := range []string{"", "1", "2", "333"} {
		if got, err := mountDevice(strings.NewReader(mountList), id); err == nil {
			t.Errorf("mount %q has device %#x", id, got)
		}
	}
}

// A file of a file system that stat tells the truth about is what stat tells.
func TestIdentify(t *testing.T) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		t.Fatal(err)
	}
	if f, err := Identify("/proc/self/ns/net"); err != nil || f != (File{st.Dev, st.Ino}) {
		t.Errorf("identified %+v (%v), want device %d, inode %d", f, err, st.Dev, st.Ino)
	}
	if _, err := Identify("/proc/self/fd/12345"); err == nil {
		t.Error("a file that is not there is identified")
	}
}

func FuzzMountDevice(f *testing.F) {
	f.Add(mountList, "31")
	f.Add("31\n31 22\n31 22 0:x /", "31")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, list, id string) {
		if _, err := mountDevice(strings.NewReader(list), id); err == nil && !strings.Contains(list, id) {
			t.Errorf("found mount %q", id)
		}
	})
}
