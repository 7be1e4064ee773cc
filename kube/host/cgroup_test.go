package host

import (
	"errors"
	"slices"
	"testing"

	"github.com/tsugiki/tsugiki/internal/cgroup"
)

func TestBeside(t *testing.T) {
	hybrid := &cgroup.Hierarchies{
		V2: cgroup.Hierarchy{Mount: "/sys/fs/cgroup/unified", Root: "/"},
		V1: map[string]cgroup.Hierarchy{"cpu": {Mount: "/sys/fs/cgroup/cpu", Root: "/"}, "name=systemd": {Mount: "/sys/fs/cgroup/systemd", Root: "/"}},
	}
	v2 := &cgroup.Hierarchies{V2: cgroup.Hierarchy{Mount: "/sys/fs/cgroup", Root: "/"}}
	inKind := &cgroup.Hierarchies{V2: cgroup.Hierarchy{Mount: "/sys/fs/cgroup", Root: "/docker/abc"}}
	for name, tt := range map[string]struct {
		text string
		all  *cgroup.Hierarchies
		want []string
		err  bool
	}{
		"cgroupfs":  {"0::/kubepods/burstable/pod1/c1\n", v2, []string{"/sys/fs/cgroup/tsugiki"}, false},
		"systemd":   {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-c1.scope\n", v2, []string{"/sys/fs/cgroup/tsugiki"}, false},
		"a root":    {"0::/a/kubepods/pod1/c1\n", v2, []string{"/sys/fs/cgroup/a/tsugiki"}, false},
		"sliced":    {"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1.slice/c1.scope\n", v2, []string{"/sys/fs/cgroup/kubelet.slice/tsugiki"}, false},
		"in a node": {"0::/docker/abc/kubelet/kubepods/pod1/c1\n", inKind, []string{"/sys/fs/cgroup/kubelet/tsugiki"}, false},
		"hybrid": {
			"3:cpu,cpuacct:/a/kubepods/pod1/c1\n2:name=systemd:/a/kubepods/pod1/c1\n1:memory:/other\n0::/a/engine\n", hybrid,
			[]string{"/sys/fs/cgroup/cpu/a/tsugiki", "/sys/fs/cgroup/systemd/a/tsugiki", "/sys/fs/cgroup/unified/a/tsugiki"},
			false,
		},
		"not mounted":      {"3:pids:/kubepods/pod1/c1\n", hybrid, nil, true},
		"above the mount":  {"0::/kubepods/pod1/c1\n", inKind, nil, true},
		"a name like ours": {"0::/mykubepods/pod1\n", v2, nil, true},
		"no pod":           {"0::/user.slice\n", v2, nil, true},
	} {
		got, err := beside(tt.text, tt.all)
		if (err != nil) != tt.err || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, tt.want)
		}
	}
	if _, err := beside("0::/\n", v2); !errors.Is(err, ErrNoPod) {
		t.Errorf("no pod: %v, want %v", err, ErrNoPod)
	}
}
