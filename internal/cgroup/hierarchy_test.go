package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestFind(t *testing.T) {
	both := Hierarchy{"/sys/fs/cgroup/cpu,cpuacct", "/", unix.Mkdev(0, 27)}
	tests := []struct {
		name, mountinfo string
		v2              Hierarchy
		v1              map[string]Hierarchy
	}{
		{
			"pure v2", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n",
			Hierarchy{"/sys/fs/cgroup", "/", 26},
			nil,
		},
		{
			"hybrid",
			"31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
				"32 30 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/a,name=systemd\n" +
				"33 30 0:27 /docker/x /mnt/cpu rw - cgroup cgroup rw,cpu,cpuacct\n" +
				"42 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			Hierarchy{"/sys/fs/cgroup/unified", "/", 28},
			map[string]Hierarchy{"cpu": both, "cpuacct": both, "name=systemd": {"/sys/fs/cgroup/systemd", "/", 29}},
		},
		{
			"in a container", "42 30 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			Hierarchy{"/sys/fs/cgroup", "/docker/abc", 28},
			nil,
		},
		{
			"a part, and the whole", "42 30 0:28 /a /a rw - cgroup2 a rw\n43 30 0:28 / /b rw - cgroup2 b rw\n44 30 0:28 / /c rw - cgroup2 c rw\n",
			Hierarchy{"/b", "/", 28},
			nil,
		},
		{
			"names that are made up",
			`45 30 0:30 / /x\040-\040cgroup2\040cgroup2\040rw rw - tmpfs cgroup2 rw` + "\n" +
				`46 30 0:31 /a\012b /c\040d rw - cgroup2  rw` + "\nshort - cgroup\n",
			Hierarchy{"/c d", "/a\nb", 31},
			nil,
		},
		{
			"v1 only", "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu\n",
			Hierarchy{},
			map[string]Hierarchy{"cpu": both},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "mountinfo")
			if err := os.WriteFile(file, []byte(tt.mountinfo), 0o600); err != nil {
				t.Fatal(err)
			}
			if tt.v1 == nil {
				tt.v1 = map[string]Hierarchy{}
			}
			got, err := Find(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&Hierarchies{tt.v2, tt.v1}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, err := Find(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("of no file: no error")
	}
}
