package overlay

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/thread"
)

// TestRun makes every run there is, and looks that nothing is left of it.
func TestRun(t *testing.T) {
	mounts := func() string {
		out, err := exec.Command("findmnt", "-rn", "-o", "TARGET,FSTYPE").Output()
		if err != nil {
			t.Fatalf("list mounts: %v", err)
		}
		return string(out)
	}
	before := mounts()
	for _, operation := range []Operation{Create, Delete} {
		for _, target := range []Target{Plain, Existing, Absent, Present} {
			t.Run(fmt.Sprint(operation, " ", target), func(t *testing.T) {
				dir := t.TempDir()
				timing, err := Job{Dir: dir, Operation: operation, Target: target, Files: 32, Bytes: 4096}.Run()
				if err != nil {
					t.Fatal(err)
				}
				if len(timing.Each) != 32 || timing.All <= 0 {
					t.Errorf("%d files took %v", len(timing.Each), timing.All)
				}
				for i, d := range timing.Each {
					if d <= 0 || d > timing.All {
						t.Errorf("file %d took %v of %v", i, d, timing.All)
					}
				}
				if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
					t.Errorf("left behind: %v, %v", left, err)
				}
			})
		}
	}
	if after := mounts(); after != before {
		t.Errorf("mounts before:\n%s\nafter:\n%s", before, after)
	}
}

// Each operation is the one that its name says: the lower layer is unchanged, and the upper layer has
// a whiteout or a copy.
func TestLayers(t *testing.T) {
	for operation, want := range map[Operation]string{Create: "regular file", Delete: "character special file"} {
		root := t.TempDir()
		j := Job{Dir: root, Operation: operation, Target: Present, Files: 1, Bytes: 10}
		if err := thread.Do(func() error { _, err := j.run(root); return err }); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("stat", "-c", "%F %s", root+"/lower/0", root+"/upper/0").Output()
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(out), "\n")
		if lines[0] != "regular file 10" || !strings.HasPrefix(lines[1], want) {
			t.Errorf("%s: lower and upper layer have %q, want a %s in the upper one", operation, lines, want)
		}
	}
}

// A full file system ends the run that meets it, whether the files are there before or come with it.
func TestFull(t *testing.T) {
	for name, job := range map[string]Job{
		"plain, create":    {Operation: Create, Target: Plain},
		"existing, create": {Operation: Create, Target: Existing},
		"absent, create":   {Operation: Create, Target: Absent},
		"present, delete":  {Operation: Delete, Target: Present},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			job.Files, job.Bytes = 64, 4096
			err := thread.Do(func() error {
				if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
					return err
				}
				if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
					return err
				}
				if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=128k"); err != nil {
					return err
				}
				_, err := job.run(root)
				if _, again := job.run(root); !errors.Is(again, unix.EEXIST) {
					t.Errorf("a second run in the same folder: %v, want EEXIST", again)
				}
				return err
			})
			if !errors.Is(err, unix.ENOSPC) {
				t.Errorf("%v, want ENOSPC", err)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	_, err := Job{Dir: "/dev/shm/no such folder", Operation: Create, Target: Absent, Files: 1}.Run()
	if err == nil || !strings.Contains(err.Error(), "measure overlay") {
		t.Errorf("a folder that is not there: %v", err)
	}
}
