package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

func TestFindV2(t *testing.T) {
	tests := []struct{ name, mountinfo, mount, root string }{
		{"pure v2", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup", "/"},
		{"hybrid", "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n42 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/unified", "/"},
		{"in a container", "42 30 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "/sys/fs/cgroup", "/docker/abc"},
		{"v1 only", "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "mountinfo")
			if err := os.WriteFile(file, []byte(tt.mountinfo), 0o600); err != nil {
				t.Fatal(err)
			}
			mount, root, err := findV2(file)
			if mount != tt.mount || root != tt.root || (err != nil) != (tt.mount == "") {
				t.Errorf("findV2: %q, %q, %v", mount, root, err)
			}
		})
	}
}

func TestRemoveKills(t *testing.T) {
	own, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	name := "tsugiki-test-" + strconv.Itoa(os.Getpid())
	g, err := Create(own, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Remove() })
	if _, err := Create(own, name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second group of the same name: %v", err)
	}
	child, err := Create(g.Path(), "child")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := child.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	died := make(chan error, 1)
	go func() { died <- cmd.Wait() }()
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	if err := <-died; err == nil {
		t.Error("the process in the group was not killed")
	}
	if _, err := os.Stat(g.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the group is still there: %v", err)
	}
	if err := g.Remove(); err != nil {
		t.Errorf("removing it again: %v", err)
	}
}
