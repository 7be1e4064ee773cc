package shared

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// On a file system where stat(2) is right, Identify returns the numbers of stat(2).
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

// On such a file system the lists of mounts and descriptors have the same numbers as stat(2).
func TestIdentifyMounted(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, path := range []string{t.TempDir(), "/proc/self/mountinfo"} {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		if f, err := identifyMounted(fd); err != nil || f != (File{st.Dev, st.Ino}) {
			t.Errorf("%s: %+v (%v), want device %#x, inode %d", path, f, err, st.Dev, st.Ino)
		}
	}
}
